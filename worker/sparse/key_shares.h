// The keys of one table as the slices of pulls and pushes that go to each server.
#ifndef THERMOCLINE_WORKER_SPARSE_KEY_SHARES_H_
#define THERMOCLINE_WORKER_SPARSE_KEY_SHARES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/wire/messages.h"
#include "worker/sparse/transport.h"

namespace thermocline {

// Distinct keys of a table, server by server.
struct KeyShares {
  TableId table;
  absl::Span<const Key> keys;
  absl::Span<const int32_t> server_begin;  // [num_servers + 1]: server s has [s] .. [s + 1]
};

// keys: a TablePlan, or CachedKeys
template <typename Keys>
KeyShares SharesOf(TableId table, const Keys& keys) {
  return {table, keys.keys, keys.server_begin};
}

// Adds the slices of other keys, [num_servers] or empty.
void AddPullSlices(const std::vector<std::vector<PullSlice>>& more,
                   std::vector<std::vector<PullSlice>>* slices);
// Both add a slice for each server that has keys; the spans must outlive the slices.
//   rows, values: [keys, width] for some width
void AddPullSlices(const KeyShares& shares, absl::Span<float> rows,
                   std::vector<std::vector<PullSlice>>* slices);
void AddPushSlices(const KeyShares& shares, wire::PushKind kind,
                   absl::Span<const uint32_t> counts,  // [keys]
                   absl::Span<const float> values, std::vector<std::vector<PushSlice>>* slices);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_KEY_SHARES_H_
