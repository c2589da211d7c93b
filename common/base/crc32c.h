// CRC-32C (Castagnoli, RFC 3720): the checksum of everything we write to a disk.
#ifndef THERMOCLINE_COMMON_BASE_CRC32C_H_
#define THERMOCLINE_COMMON_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace thermocline {

// The checksum of what `crc` covers followed by `data`; `crc` is 0 for the first piece.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);

inline uint32_t Crc32c(const void* data, size_t bytes) { return ExtendCrc32c(0, data, bytes); }

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_CRC32C_H_
