#include "worker/inspect/key_counts.h"

#include <algorithm>
#include <cmath>

#include "common/base/hash.h"

namespace thermocline {
namespace {

// The share of max_keys for frequent keys, which stay whatever their hash.
constexpr size_t kFrequentShare = 4;
// A key is frequent if it has more than this many times its share of the lookups.
constexpr double kFrequentTimes = 2;
constexpr double kTopShare = 0.01;

// Returns 1 - (1 - share)^draws.
double ChanceToOccur(double share, double draws) {
  return share >= 1 ? 1 : -std::expm1(draws * std::log1p(-share));
}

}  // namespace

void KeyCounts::Add(Key key) {
  ++lookups_;
  if (level_ > 0) {
    const auto frequent = frequent_.find(key);
    if (frequent != frequent_.end()) {
      ++frequent->second.lookups;
      return;
    }
    if (!IsSampled(Mix64(key))) return;
  }
  ++sampled_[key];
  while (sampled_.size() > max_keys_) RaiseLevel();
}

void KeyCounts::RaiseLevel() {
  const double weight = std::ldexp(1.0, level_);
  ++level_;
  const double share = static_cast<double>(lookups_) / static_cast<double>(max_keys_);
  absl::flat_hash_map<Key, uint64_t> kept;
  kept.reserve(max_keys_);
  for (const auto& [key, lookups] : sampled_) {
    if (static_cast<double>(lookups) > kFrequentTimes * share &&
        frequent_.size() < max_keys_ / kFrequentShare) {
      frequent_.emplace(key, Count{lookups, weight});
    } else if (IsSampled(Mix64(key))) {
      kept.emplace(key, lookups);
    }
  }
  sampled_.swap(kept);
}

std::vector<KeyCounts::Count> KeyCounts::AllCounts() const {
  std::vector<Count> counts;
  counts.reserve(sampled_.size() + frequent_.size());
  for (const auto& [key, count] : frequent_) counts.push_back(count);
  const double weight = std::ldexp(1.0, level_);
  for (const auto& [key, lookups] : sampled_) counts.push_back({lookups, weight});
  std::sort(counts.begin(), counts.end(), [](const Count& a, const Count& b) {
    return a.lookups != b.lookups ? a.lookups > b.lookups : a.keys < b.keys;
  });
  return counts;
}

KeyCounts::Summary KeyCounts::Summarize(const std::vector<double>& draws) const {
  Summary summary;
  summary.lookups = lookups_;
  const std::vector<Count> counts = AllCounts();
  double once = 0;
  for (const Count& count : counts) {
    summary.distinct += count.keys;
    if (count.lookups == 1) once += count.keys;
  }
  summary.distinct_among.resize(draws.size());
  if (counts.empty()) return summary;
  // Each key beyond the frequent ones was kept with probability p = 2^-level: the estimate has the
  // variance n (1 - p) / p.
  const double weight = std::ldexp(1.0, level_);
  const double estimated = static_cast<double>(sampled_.size()) * weight;
  summary.distinct_error = 2 * std::sqrt(estimated * (weight - 1)) / summary.distinct;
  summary.once_share = once / summary.distinct;
  double wanted = std::max(1.0, kTopShare * summary.distinct), top = 0;
  for (const Count& count : counts) {
    const double taken = std::min(wanted, count.keys);
    top += taken * static_cast<double>(count.lookups);
    wanted -= taken;
    if (wanted <= 0) break;
  }
  const auto lookups = static_cast<double>(lookups_);
  summary.top_share = std::min(1.0, top / lookups);
  for (const Count& count : counts) {
    const double share = static_cast<double>(count.lookups) / lookups;
    for (size_t i = 0; i < draws.size(); ++i) {
      summary.distinct_among[i] += count.keys * ChanceToOccur(share, draws[i]);
    }
  }
  return summary;
}

}  // namespace thermocline
