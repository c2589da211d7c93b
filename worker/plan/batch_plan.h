// What a step needs to know about its batch before any row is read: the distinct keys of every
// table, server by server, which of them each lookup reads, and which lookups each of them gets
// gradients from.
//
// "Staging order" is the order of a table's distinct keys here, and so of its staged rows and
// summed gradients: server 0's first, then server 1's, ...; within a server by first appearance in
// canonical order (by sample, then by feature, then by position in the bag). So the keys, counts,
// rows and gradients that one server is sent or asked for are contiguous.
#ifndef THERMOCLINE_WORKER_PLAN_BATCH_PLAN_H_
#define THERMOCLINE_WORKER_PLAN_BATCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "worker/data/batch.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {

struct TablePlan {
  TableId id;
  UninitializedVector<Key> keys;         // [num_unique], staging order
  UninitializedVector<uint32_t> counts;  // [num_unique] lookups of the key
  std::vector<int32_t> server_begin;     // [num_servers + 1]: server s has [s] .. [s + 1]
  // The bags (rows by VectorPlace, worker/model/sparse_batch.h; where a feature is read step by
  // step, each lookup is one) that looked key u up are segment_bags[segment_offsets[u] ..
  // segment_offsets[u + 1]), in canonical order; a bag that did so twice stands there twice.
  UninitializedVector<int32_t> segment_offsets;  // [num_unique + 1]
  UninitializedVector<int32_t> segment_bags;     // [lookups of all the table's features]
  // What the bags' gradients are multiplied with; empty where no feature of the table has weights.
  UninitializedVector<float> segment_weights;  // [as segment_bags]

  int32_t num_unique() const { return static_cast<int32_t>(keys.size()); }
  absl::Span<const Key> KeysOf(ServerIndex server) const {
    return absl::MakeConstSpan(keys).subspan(begin_of(server), CountOf(server));
  }
  absl::Span<const uint32_t> CountsOf(ServerIndex server) const {
    return absl::MakeConstSpan(counts).subspan(begin_of(server), CountOf(server));
  }
  size_t begin_of(ServerIndex server) const { return server_begin[server.value()]; }
  size_t CountOf(ServerIndex server) const {
    return server_begin[server.value() + 1] - server_begin[server.value()];
  }
};

struct FeaturePlan {
  int32_t table = 0;                         // Index into BatchPlan::tables.
  UninitializedVector<int32_t> row_indices;  // [lookups] staging position of each lookup's key
  // Every bag has exactly one lookup, without a weight: no offsets needed.
  bool single = false;
};

// Used again and again: its vectors keep their capacity.
struct BatchPlan {
  std::vector<TablePlan> tables;
  std::vector<FeaturePlan> features;  // As in the batch.
};

// Distinct keys of a table, server by server, wherever they lie: what a planner decides on, a pull
// asks for, and a push brings.
struct KeyShares {
  TableId table;
  absl::Span<const Key> keys;
  absl::Span<const int32_t> server_begin;  // [num_servers + 1]: server s has [s] .. [s + 1]
  absl::Span<const uint32_t> counts = {};  // [keys] lookups; empty where nothing is pushed

  int32_t size() const { return static_cast<int32_t>(keys.size()); }
};

// keys: anything with keys, server_begin and counts
template <typename Keys>
KeyShares SharesOf(TableId table, const Keys& keys) {
  return {table, keys.keys, keys.server_begin, keys.counts};
}
std::vector<KeyShares> SharesOf(const BatchPlan& plan);  // [tables]

// Makes plans. Not thread-safe (it holds scratch memory), but several planners may plan different
// tables of one batch at the same time.
class BatchPlanner {
 public:
  // feature_tables[f]: index into `tables` of the table that feature f reads. places: where the
  // model has the vectors of each feature (Model::vector_places); empty: side by side.
  BatchPlanner(std::vector<TableId> tables, std::vector<int32_t> feature_tables,
               const ClusterMap& cluster_map, std::vector<VectorPlace> places = {});

  // Plans all tables. REQUIRES: fewer than 2^30 lookups a table, and places of the batch below
  // 2^31.
  void Plan(const Batch& batch, BatchPlan* plan);

  // The same in two steps, to share the tables among threads: one Prepare(), then PlanTable() for
  // each table, by any planner of the same arguments.
  void Prepare(const Batch& batch, BatchPlan* plan) const;
  void PlanTable(const Batch& batch, int32_t table, BatchPlan* plan);

  int32_t num_tables() const { return static_cast<int32_t>(tables_.size()); }

 private:
  struct Inserter;

  // The row of the feature's first vector (sparse_batch.h).
  int64_t FirstRow(const Batch& batch, int32_t feature) const;
  void BeginTable(size_t lookups);
  // Finds or adds keys in turn; row_indices[i] = number of keys[i] by first appearance.
  void AddRun(absl::Span<const Key> keys, int32_t* row_indices, TablePlan* table);
  void AddFeaturesInTurn(const Batch& batch, int32_t table, BatchPlan* plan);
  // Turns keys and counts from first appearance into the staging order; fills positions_.
  void SortByServer(TablePlan* table);
  // kReorder: turns the row_indices as well.
  template <bool kReorder>
  void FillSegments(const Batch& batch, int32_t table, BatchPlan* plan);

  const std::vector<TableId> tables_;
  const std::vector<int32_t> feature_tables_;
  const ClusterMap cluster_map_;
  const std::vector<VectorPlace> places_;             // [features]
  std::vector<std::vector<int32_t>> table_features_;  // [tables], ascending

  // base_ + number by first appearance of the key that the bucket holds; below base_: none. Linear
  // probing, at most half full.
  std::vector<uint32_t> buckets_;
  size_t buckets_in_use_ = 0;  // The front: as many as the table at hand needs, a power of two.
  uint64_t shift_ = 0;         // 64 - log2(buckets_in_use_)
  uint32_t base_ = 1;
  int32_t num_unique_ = 0;                  // of the table at hand
  UninitializedVector<uint32_t> servers_;   // [num_unique] by first appearance
  UninitializedVector<int32_t> positions_;  // [num_unique] first appearance -> staging order
  UninitializedVector<Key> unsorted_keys_;
  UninitializedVector<uint32_t> unsorted_counts_;
  std::vector<int32_t> next_of_server_;  // [num_servers] next staging position
  std::vector<int32_t> first_rows_;      // [features of the table at hand]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PLAN_BATCH_PLAN_H_
