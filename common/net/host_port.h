// Addresses as users and processes write them: host:port, where an IPv6 address has brackets.
#ifndef THERMOCLINE_COMMON_NET_HOST_PORT_H_
#define THERMOCLINE_COMMON_NET_HOST_PORT_H_

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace thermocline {

struct HostPort {
  std::string host;  // Without brackets.
  uint16_t port = 0;
};

// "[::1]" -> "::1"; other text is returned unchanged.
inline absl::string_view WithoutBrackets(absl::string_view host) {
  const bool has = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  return has ? host.substr(1, host.size() - 2) : host;
}

// `what` is for the error: "'x' is no address to listen on". Errors: kInvalidArgument
inline absl::StatusOr<HostPort> ParseHostPort(absl::string_view address, absl::string_view what,
                                              uint16_t lowest_port = 0) {
  const size_t colon = address.rfind(':');
  const absl::string_view host =
      colon == absl::string_view::npos ? "" : WithoutBrackets(address.substr(0, colon));
  uint32_t port = 0;
  if (host.empty() || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < lowest_port ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is no address ", what, "; host:port is"));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

// `host` with brackets or without.
inline std::string JoinHostPort(absl::string_view host, uint16_t port) {
  host = WithoutBrackets(host);
  const bool is_ipv6 = host.find(':') != absl::string_view::npos;
  return absl::StrCat(is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", ":", port);
}

// The normal form of an IP address. An IPv4 address mapped into IPv6 becomes the IPv4 address.
// nullopt: `text` is no IP address.
inline std::optional<std::string> IpAddress(absl::string_view text) {
  const std::string host(text);
  char normal[INET6_ADDRSTRLEN] = "";
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return inet_ntop(AF_INET, &v4, normal, sizeof(normal));
  }
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return std::nullopt;
  if (!IN6_IS_ADDR_V4MAPPED(&v6)) return inet_ntop(AF_INET6, &v6, normal, sizeof(normal));
  return inet_ntop(AF_INET, v6.s6_addr + 12, normal, sizeof(normal));
}

// The IP address in gRPC's name of a peer: "ipv4:10.0.0.1:4000", "ipv6:%5B::1%5D:4000"; "": there
// is none.
inline std::string HostOfPeer(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) return "";
  std::string host(peer.substr(0, peer.rfind(':')));
  host = std::string(WithoutBrackets(absl::StrReplaceAll(host, {{"%5B", "["}, {"%5D", "]"}})));
  return IpAddress(host.substr(0, host.find('%'))).value_or("");  // Without the interface.
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_HOST_PORT_H_
