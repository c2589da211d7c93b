#include "common/base/hash.h"

#include <nmmintrin.h>

#include <cstring>

namespace thermocline {

Digest RowDigest(TableId table, Key key, absl::Span<const float> row) {
  const uint64_t start = Mix64(TableSalt(table) ^ Mix64(key)) + row.size();
  // Two chains with different steps, so that they run in parallel and don't collide together.
  Digest digest{start, Mix64(~start)};
  size_t i = 0;
  for (; i + 2 <= row.size(); i += 2) {
    uint64_t word;
    std::memcpy(&word, row.data() + i, sizeof(word));
    digest.low = Mix64(digest.low ^ word);
    digest.high = Mix64(digest.high + (word << 32 | word >> 32));
  }
  if (i < row.size()) {
    uint32_t word;
    std::memcpy(&word, row.data() + i, sizeof(word));
    digest.low = Mix64(digest.low ^ word);
    digest.high = Mix64(digest.high + word);
  }
  return digest;
}

Digest CandidateDigest(TableId table, Key key, uint32_t count) {
  Digest digest = RowDigest(table, key, {});
  digest.low = Mix64(digest.low ^ count);
  digest.high = Mix64(digest.high + count);
  return digest;
}

namespace {

constexpr size_t kLaneBytes = 512;

uint64_t CrcWord(uint64_t state, const uint8_t* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return _mm_crc32_u64(state, word);
}

// The product of two polynomials modulo that of CRC-32C. As in a checksum, the highest bit is the
// coefficient of x^0. Masks in place of branches, which half of all random bits would mispredict.
constexpr uint32_t MultiplyModCrc32c(uint32_t a, uint32_t b) {
  constexpr uint32_t kPolynomial = 0x82F63B78;
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    product ^= b & (0 - (a >> 31));
    b = (b >> 1) ^ (kPolynomial & (0 - (b & 1)));
  }
  return product;
}

// x^(8 * 2^i) for each i: a byte of zeros multiplies a checksum's state by x^8.
struct PowersOfBytes {
  uint32_t at[64] = {};
  constexpr PowersOfBytes() {
    at[0] = 0x80000000u >> 8;
    for (int i = 1; i < 64; ++i) at[i] = MultiplyModCrc32c(at[i - 1], at[i - 1]);
  }
};

// What so many bytes of zeros make of a checksum's state.
uint32_t AfterZeros(uint32_t state, uint64_t bytes) {
  static constexpr PowersOfBytes kPowers;
  for (int i = 0; bytes != 0; bytes >>= 1, ++i) {
    if ((bytes & 1) != 0) state = MultiplyModCrc32c(kPowers.at[i], state);
  }
  return state;
}

// AfterZeros for kLaneBytes, fast. It is linear over the state's bits: a table for each of its
// bytes.
class ZeroLane {
 public:
  ZeroLane() {
    for (size_t byte = 0; byte < 4; ++byte) {
      tables_[byte][0] = 0;
      for (uint32_t value = 1; value < 256; ++value) {
        const uint32_t rest = value & (value - 1);
        tables_[byte][value] =
            tables_[byte][rest] ^ AfterZeros((value ^ rest) << (8 * byte), kLaneBytes);
      }
    }
  }
  uint32_t operator()(uint64_t state) const {
    return tables_[0][state & 0xFF] ^ tables_[1][state >> 8 & 0xFF] ^
           tables_[2][state >> 16 & 0xFF] ^ tables_[3][state >> 24 & 0xFF];
  }

 private:
  uint32_t tables_[4][256];
};

}  // namespace

// The processor's own instruction: one a cycle, if it need not wait for the one before, which takes
// 3. So long data are three chains at a time.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes) {
  static const ZeroLane after_lane;
  const auto* at = static_cast<const uint8_t*>(data);
  uint64_t state = ~crc;
  for (; bytes >= 3 * kLaneBytes; bytes -= 3 * kLaneBytes, at += 3 * kLaneBytes) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kLaneBytes; i += sizeof(uint64_t)) {
      state = CrcWord(state, at + i);
      second = CrcWord(second, at + kLaneBytes + i);
      third = CrcWord(third, at + 2 * kLaneBytes + i);
    }
    state = after_lane(after_lane(state) ^ second) ^ third;
  }
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    state = CrcWord(state, at);
  }
  auto last = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++at) last = _mm_crc32_u8(last, *at);
  return ~last;
}

uint32_t CombineCrc32c(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return AfterZeros(first, second_bytes) ^ second;
}

}  // namespace thermocline
