// Counts how many distinct keys a stream has, and how unevenly they occur, in bounded memory.
#ifndef THERMOCLINE_WORKER_INSPECT_KEY_COUNTS_H_
#define THERMOCLINE_WORKER_INSPECT_KEY_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/ids.h"

namespace thermocline {

// Counts every key as long as there are at most `max_keys`. Beyond that it keeps the keys whose
// hash begins with a zero bit, later with two, and so on (adaptive sampling: Flajolet, "On adaptive
// sampling", 1990). A key that is kept has been counted since its first occurrence, so the counts
// are exact. Keys that are frequent when others are dropped stay, whatever their hash: the most
// frequent keys alone decide how skewed a stream is. Not thread-safe.
class KeyCounts {
 public:
  explicit KeyCounts(size_t max_keys) : max_keys_(max_keys) {}

  void Add(Key key);

  uint64_t lookups() const { return lookups_; }

  struct Summary {
    uint64_t lookups = 0;
    double distinct = 0;
    // Two standard deviations of `distinct`, as a share of it; 0: it is exact.
    double distinct_error = 0;
    double top_share = 0;   // The share of lookups that the most frequent 1% of the keys have.
    double once_share = 0;  // The share of keys that occur once.
    // [draws] How many distinct keys so many lookups have on average, if each is drawn at random
    // from the stream.
    std::vector<double> distinct_among;
  };
  Summary Summarize(const std::vector<double>& draws = {}) const;

 private:
  struct Count {
    uint64_t lookups;
    double keys;  // How many keys this one stands for.
  };

  bool IsSampled(uint64_t hash) const { return level_ == 0 || hash >> (64 - level_) == 0; }
  // Drops half of the sampled keys.
  void RaiseLevel();
  std::vector<Count> AllCounts() const;

  const size_t max_keys_;
  int level_ = 0;  // Leading zero bits of the hashes of sampled_; a key there stands for 2^level.
  uint64_t lookups_ = 0;
  absl::flat_hash_map<Key, uint64_t> sampled_;
  absl::flat_hash_map<Key, Count> frequent_;  // None of them is in sampled_.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_KEY_COUNTS_H_
