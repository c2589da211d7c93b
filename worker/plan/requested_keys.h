// The keys that the workers ask one of them for in a step: of a table, the distinct keys of all
// requests, server by server, and where each rank's rows are among them.
//
// A rank asks for the distinct keys of its batch that the other owns (batch_plan.h, planned with a
// ClusterMap over the ranks); it gets a row for each, and sends back a gradient for each, in the
// order in which it asked. So neither rows nor gradients travel with keys.
#ifndef THERMOCLINE_WORKER_PLAN_REQUESTED_KEYS_H_
#define THERMOCLINE_WORKER_PLAN_REQUESTED_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "common/math/key_numbers.h"

namespace thermocline {

// What one rank asks for.
struct KeyRequest {
  absl::Span<const Key> keys;         // [n] distinct
  absl::Span<const uint32_t> counts;  // [n] lookups of the key, one or more
};

// One rank's requests of a step, as they travel: of each table the number of its keys (uint32),
// zeros up to a multiple of 8 bytes, the keys of all tables, then their lookups (uint32). Little
// endian.
UninitializedVector<uint8_t> EncodeRequests(absl::Span<const KeyRequest> tables);
// [num_tables] over `bytes`. Errors: kInvalidArgument (they are not as many bytes as they say).
// REQUIRES: `bytes` begin at a multiple of 8.
absl::StatusOr<std::vector<KeyRequest>> DecodeRequests(absl::Span<const uint8_t> bytes,
                                                       size_t num_tables);

// The requested keys of one table. It is used again and again, so its vectors keep their capacity.
struct RequestedKeys {
  TableId id;
  // Server 0's first, then server 1's, ...; within a server those of the lowest rank that asked for
  // them come first, in its order.
  UninitializedVector<Key> keys;              // [num_unique]
  UninitializedVector<uint32_t> counts;       // [num_unique] of all ranks together
  UninitializedVector<uint32_t> first_ranks;  // [num_unique] the lowest rank that asked
  std::vector<int32_t> server_begin;          // [num_servers + 1]: server s has [s] .. [s + 1]
  // positions[r][i]: which of `keys` is the i-th that rank r asked for.
  std::vector<UninitializedVector<int32_t>> positions;  // [ranks][its keys]

  int32_t num_unique() const { return static_cast<int32_t>(keys.size()); }
};

// Not thread-safe (it holds scratch memory); several may plan different tables side by side.
class RequestPlanner {
 public:
  // `owner`: whose keys are asked for, of `num_ranks`, each of which owns the keys that
  // ClusterMap(num_ranks) gives it.
  RequestPlanner(WorkerRank owner, uint32_t num_ranks, const ClusterMap& servers);

  // requests: [ranks] of one table. Errors: kInvalidArgument (a rank asks twice for a key, for one
  // without a lookup, or for one that another rank owns: names rank, table and key; all together
  // ask for 2^31 keys or more). A count saturates.
  absl::Status Plan(TableId table, absl::Span<const KeyRequest> requests, RequestedKeys* to);

 private:
  absl::Status AddRequest(uint32_t rank, const KeyRequest& request, RequestedKeys* to);
  void SortByServer(RequestedKeys* to);

  const WorkerRank owner_;
  const ClusterMap ranks_;
  const ClusterMap servers_;

  // The keys of the table under way, by first appearance.
  uint64_t salt_ = 0;
  KeyNumbers numbers_;
  UninitializedVector<uint32_t> servers_of_, counts_, first_ranks_, last_ranks_;
  UninitializedVector<int32_t> positions_;  // first appearance -> staging order
  std::vector<int32_t> next_of_server_;
};

// Leaves the keys u with keep[u] != 0, in their order; of every rank, the positions of those.
//   keep: [num_unique]
void RetainKeys(absl::Span<const uint8_t> keep, RequestedKeys* requested);

// Sums the ranks' gradients key by key, in rank order, as a server does (MergeGradient).
//   gradients: [ranks] of [its keys, dim]; merged: [num_unique, dim]
void MergeRequested(const RequestedKeys& requested,
                    absl::Span<const absl::Span<const float>> gradients, int dim,
                    absl::Span<float> merged);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PLAN_REQUESTED_KEYS_H_
