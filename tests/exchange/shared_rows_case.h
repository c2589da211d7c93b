// What a simulated job (shared_rows.h) is: drawn from a seed, with what goes wrong, and with its
// data and gradients.
#ifndef THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_CASE_H_
#define THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_CASE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "common/base/hash.h"
#include "common/base/ids.h"

namespace thermocline::shared_rows {

inline constexpr int64_t kMillisecond = 1'000;
inline constexpr int64_t kPatience = int64_t{120} * 1'000'000;  // Far longer than any run takes.
inline constexpr int kDim = 2;
inline constexpr TableId kTable{3};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix64(seed)) {}

  uint64_t Next() { return Mix64(state_ += 0x9E3779B97F4A7C15ull); }
  uint64_t Below(uint64_t n) { return Next() % n; }  // In [0, n).
  int64_t Between(int64_t low, int64_t high) {       // In [low, high].
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

enum class Planted {
  kNone,
  kArrivalOrder,       // an owner merges gradients in another order than that of the ranks
  kOwnLast,            // its own come last
  kEvictedEarly,       // a row leaves the cache before the gradients of the step before are in it
  kStaleRow,           // a row is sent as it was before the update of the step before
  kOldGeneration,      // chunks of an earlier generation's streams are taken
  kSharedCredit,       // a block that is held takes the room of all phases
  kLeavesByReceipts,   // a rank leaves once all it has sent has arrived, not before
  kWaitsBeforeItSent,  // a rank waits for gradients before it has sent its own
  kPushesLate,         // a rank waits for the next step's rows before its push is whole
};

struct Case {
  uint64_t seed = 0;
  uint32_t num_ranks = 2;
  int64_t num_steps = 5;
  int window_steps = 2;
  int32_t capacity = 4;
  int most_keys = 6;
  uint64_t key_space = 20;
  bool is_smallest = true;  // Credit 1 in every phase, and keys of the window alone are posted.
  int64_t write_back_every = 3;
  int breaks = 0;
  bool repeats = false;
  int pauses = 0, deaths = 0, server_absences = 0;
  Planted planted = Planted::kNone;
};

inline Case MakeCase(uint64_t seed) {
  Random random(seed);
  Case made;
  made.seed = seed;
  made.num_ranks = static_cast<uint32_t>(random.Between(2, 5));
  made.num_steps = random.Between(3, 10);
  made.window_steps = static_cast<int>(random.Between(1, 4));
  made.capacity = static_cast<int32_t>(random.Between(0, 10));
  made.most_keys = static_cast<int>(random.Between(1, 8));
  made.key_space = static_cast<uint64_t>(random.Between(2, 30));
  made.is_smallest = random.Chance(0.6);
  made.write_back_every = random.Between(1, 4);
  made.breaks = random.Chance(0.3) ? 0 : static_cast<int>(random.Between(1, 30));
  made.repeats = random.Chance(0.5);
  made.pauses = static_cast<int>(random.Between(0, 3));
  made.deaths = random.Chance(0.5) ? 0 : static_cast<int>(random.Between(1, 2));
  made.server_absences = static_cast<int>(random.Between(0, 2));
  return made;
}

using Row = std::array<float, kDim>;

inline Row InitialRow(Key key) {
  return {static_cast<float>(key % 97) * 0.25f, -static_cast<float>(key % 89)};
}
// A function of what was read, the rank and the step: a wrong row makes a wrong model.
inline Row GradientOf(const Case& of, const Row& row, Key key, uint32_t rank, int64_t step) {
  Random random(Mix64(of.seed ^ Mix64(key)) ^ Mix64(rank * 1000 + static_cast<uint64_t>(step)));
  Row gradient;
  for (int d = 0; d < kDim; ++d) {
    gradient[d] = 0.1f * row[d] + static_cast<float>(random.Between(-1000, 1000)) * 1e-3f;
  }
  return gradient;
}
inline void Update(const Row& gradient, Row* row) {
  for (int d = 0; d < kDim; ++d) (*row)[d] -= 0.3f * gradient[d];
}
// The distinct keys of a rank's slice of a step; maybe none.
inline std::vector<Key> KeysOf(const Case& of, uint32_t rank, int64_t step) {
  Random random(Mix64(of.seed + rank) ^ Mix64(static_cast<uint64_t>(step)));
  std::set<Key> keys;
  for (int64_t i = random.Between(0, of.most_keys); i > 0; --i) {
    keys.insert(Mix64(std::min(random.Below(of.key_space), random.Below(of.key_space))));
  }
  return {keys.begin(), keys.end()};
}

}  // namespace thermocline::shared_rows

#endif  // THERMOCLINE_TESTS_EXCHANGE_SHARED_ROWS_CASE_H_
