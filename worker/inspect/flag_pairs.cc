#include "worker/inspect/flag_pairs.h"

#include <algorithm>

namespace thermocline {
namespace {

// The first columns of two texts that are compared, each with all others.
constexpr size_t kMostFlags = 128;
// One column says what another is if by chance at least so many rows would be exceptions,
constexpr double kMinExpected = 20;
// and at most one in so many of these is.
constexpr double kNearlyNone = 50;

}  // namespace

void FlagPairs::Add(size_t column, absl::string_view text) {
  Column& flag = columns_[column];
  if (flag.is_out) return;
  const size_t row = flag.rows++;
  if (text.empty()) return;
  size_t which = text == flag.texts[0] ? 0 : 1;
  if (which == 1 && text != flag.texts[1]) {
    which = flag.texts[0].empty() ? 0 : 1;
    flag.is_out = !flag.texts[which].empty();
    if (flag.is_out) return;
    flag.texts[which] = std::string(text);
  }
  std::vector<uint64_t>& bits = flag.bits[which];
  if (bits.size() <= row / 64) bits.resize(row / 64 + 1);
  bits[row / 64] |= uint64_t{1} << row % 64;
}

void FlagPairs::EndBlock() {
  if (counts_.empty()) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      columns_[c].is_out |= flags_.size() == kMostFlags;
      if (!columns_[c].is_out) flags_.push_back(c);
    }
    counts_.assign(flags_.size(), std::vector<Counts>(flags_.size()));
  }
  for (size_t i = 0; i < flags_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Column &a = columns_[flags_[i]], &b = columns_[flags_[j]];
      if (a.is_out || b.is_out) continue;
      for (const size_t x : {0, 1}) {
        for (const size_t y : {0, 1}) {
          const size_t words = std::min(a.bits[x].size(), b.bits[y].size());
          for (size_t w = 0; w < words; ++w) {
            counts_[i][j][x][y] += __builtin_popcountll(a.bits[x][w] & b.bits[y][w]);
          }
        }
      }
    }
  }
  for (Column& flag : columns_) {
    flag.rows = 0;
    for (std::vector<uint64_t>& bits : flag.bits) bits.clear();
  }
}

void FlagPairs::AddImplied(size_t column, const std::vector<std::string>& names,
                           nlohmann::ordered_json* figures) const {
  const size_t i = std::find(flags_.begin(), flags_.end(), column) - flags_.begin();
  if (i == flags_.size() || columns_[column].is_out) return;
  const size_t one = columns_[column].Greater();
  for (size_t j = 0; j < flags_.size(); ++j) {
    const Column& other = columns_[flags_[j]];
    if (j == i || other.is_out) continue;
    const auto count = [&](bool is_one, bool is_other_one) {
      const size_t x = is_one ? one : 1 - one,
                   y = is_other_one ? other.Greater() : 1 - other.Greater();
      return j < i ? counts_[i][j][x][y] : counts_[j][i][y][x];
    };
    const uint64_t but = count(true, false), rows = but + count(true, true);
    const uint64_t others = count(false, false) + but,
                   all = others + rows - but + count(false, true);
    if (all == 0) continue;
    const double expected =
        static_cast<double>(rows) * static_cast<double>(others) / static_cast<double>(all);
    if (expected < kMinExpected || static_cast<double>(but) * kNearlyNone > expected) continue;
    (*figures)["implies"].push_back({{"column", names[flags_[j]]}, {"rows", rows}, {"but", but}});
  }
}

}  // namespace thermocline
