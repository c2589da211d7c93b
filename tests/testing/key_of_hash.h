// Keys with chosen hashes, so that they collide or belong to one server.
#ifndef THERMOCLINE_TESTS_TESTING_KEY_OF_HASH_H_
#define THERMOCLINE_TESTS_TESTING_KEY_OF_HASH_H_

#include <cstdint>

#include "common/base/hash.h"
#include "common/base/ids.h"

namespace thermocline {

constexpr uint64_t UndoXorShift(uint64_t x, int shift) {
  for (uint64_t y = x >> shift; y != 0; y >>= shift) x ^= y;
  return x;
}

constexpr uint64_t InverseOfOdd(uint64_t a) {  // Newton's iteration: every round doubles the bits.
  uint64_t inverse = a;
  for (int i = 0; i < 6; ++i) inverse *= 2 - a * inverse;
  return inverse;
}

// Returns the key whose KeyHash is `hash`.
constexpr Key KeyOfHash(uint64_t table_salt, uint64_t hash) {
  uint64_t x = UndoXorShift(hash, 31) * InverseOfOdd(0x94D049BB133111EBull);
  x = UndoXorShift(x, 27) * InverseOfOdd(0xBF58476D1CE4E5B9ull);
  return (UndoXorShift(x, 30) - 0x9E3779B97F4A7C15ull) ^ table_salt;
}
static_assert(KeyHash(5, KeyOfHash(5, 0x0123456789ABCDEFull)) == 0x0123456789ABCDEFull);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_KEY_OF_HASH_H_
