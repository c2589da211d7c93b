// Which hosts are this machine, reached by nobody else.
#ifndef THERMOCLINE_COMMON_NET_LOOPBACK_H_
#define THERMOCLINE_COMMON_NET_LOOPBACK_H_

#include "absl/strings/string_view.h"

namespace thermocline {

// host: a name or an address without a port; IPv6 with brackets or without. A name that only looks
// like an address of the loopback network ("127.example.org") is none.
bool IsLoopbackHost(absl::string_view host);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_LOOPBACK_H_
