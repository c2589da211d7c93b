// Numbers at places of bytes, in the machine's order, which is that of our files (docs/formats.md).
#ifndef THERMOCLINE_COMMON_BASE_BYTES_H_
#define THERMOCLINE_COMMON_BASE_BYTES_H_

#include <cstddef>
#include <cstring>

#include "absl/strings/string_view.h"

namespace thermocline {

// REQUIRES: there are sizeof(T) bytes from bytes[at] on.
template <typename T>
void StoreAt(T value, size_t at, char* bytes) {
  std::memcpy(bytes + at, &value, sizeof(value));
}

// REQUIRES: at + sizeof(T) <= bytes.size()
template <typename T>
T LoadAt(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_BYTES_H_
