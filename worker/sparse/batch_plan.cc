#include "worker/sparse/batch_plan.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/hash.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {
namespace {

// Keys are hashed, and their buckets prefetched, so many at a time before the first is looked up.
constexpr size_t kLookupsAhead = 32;

size_t PowerOfTwoFrom(size_t n) {
  size_t power = 64;
  while (power < n) power *= 2;
  return power;
}

bool HasSingleLookups(const FeatureLookups& lookups, int size) {
  if (lookups.keys.size() != static_cast<size_t>(size)) return false;
  int32_t difference = 0;
  for (int i = 0; i <= size; ++i) difference |= lookups.offsets[i] ^ i;
  return difference == 0;
}

}  // namespace

BatchPlanner::BatchPlanner(std::vector<TableId> tables, std::vector<int32_t> feature_tables,
                           const ClusterMap& cluster_map)
    : tables_(std::move(tables)),
      feature_tables_(std::move(feature_tables)),
      cluster_map_(cluster_map),
      table_features_(tables_.size()) {
  for (size_t f = 0; f < feature_tables_.size(); ++f) {
    CHECK_LT(static_cast<size_t>(feature_tables_[f]), tables_.size());
    table_features_[feature_tables_[f]].push_back(static_cast<int32_t>(f));
  }
}

void BatchPlanner::Plan(const Batch& batch, BatchPlan* plan) {
  Prepare(batch, plan);
  for (int32_t table = 0; table < num_tables(); ++table) PlanTable(batch, table, plan);
}

void BatchPlanner::Prepare(const Batch& batch, BatchPlan* plan) const {
  CHECK_EQ(batch.features.size(), feature_tables_.size());
  CHECK_LT(batch.size * static_cast<int64_t>(feature_tables_.size() + 1), int64_t{1} << 31);
  plan->tables.resize(tables_.size());
  plan->features.resize(feature_tables_.size());
}

void BatchPlanner::PlanTable(const Batch& batch, int32_t t, BatchPlan* plan) {
  TablePlan& table = plan->tables[t];
  table.id = tables_[t];
  size_t lookups = 0;
  for (int32_t f : table_features_[t]) {
    const FeatureLookups& from = batch.features[f];
    FeaturePlan& feature = plan->features[f];
    lookups += from.keys.size();
    feature.table = t;
    feature.single = HasSingleLookups(from, batch.size);
    feature.slots.resize(from.keys.size());
  }
  CHECK_LT(lookups, size_t{1} << 30);
  table.keys.resize(lookups);
  table.counts.resize(lookups);
  BeginTable(lookups);
  if (table_features_[t].size() == 1) {
    const int32_t f = table_features_[t][0];
    AddRun(batch.features[f].keys, TableSalt(table.id), plan->features[f].slots.data(), &table);
  } else {
    AddFeaturesInTurn(batch, t, plan);
  }
  table.keys.resize(num_unique_);
  table.counts.resize(num_unique_);
  SortByServer(t, plan);
  FillSegments(batch, t, plan);
}

void BatchPlanner::BeginTable(size_t lookups) {
  num_unique_ = 0;
  if (servers_.size() < lookups) servers_.resize(lookups);
  const size_t wanted = PowerOfTwoFrom(2 * lookups);
  if (wanted > buckets_.size()) {
    buckets_.assign(wanted, Bucket{0, 0, 0});
    generation_ = 0;
  }
  // A small table uses the front only, so that it stays in the nearest cache.
  mask_ = wanted - 1;
  if (++generation_ == 0) {  // All numbers are used up: forget every bucket for real.
    std::fill(buckets_.begin(), buckets_.end(), Bucket{0, 0, 0});
    generation_ = 1;
  }
}

inline int32_t BatchPlanner::FindOrAdd(Key key, uint64_t hash, TablePlan* table) {
  for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
    Bucket& bucket = buckets_[i];
    if (bucket.generation != generation_) {
      const int32_t unique = num_unique_++;
      bucket = Bucket{key, generation_, unique};
      table->keys[unique] = key;
      table->counts[unique] = 1;
      servers_[unique] = cluster_map_.ServerOfHash(hash).value();
      return unique;
    }
    if (bucket.key == key) {
      ++table->counts[bucket.unique];
      return bucket.unique;
    }
  }
}

void BatchPlanner::AddRun(absl::Span<const Key> keys, uint64_t salt, int32_t* slots,
                          TablePlan* table) {
  uint64_t hashes[kLookupsAhead];
  for (size_t begin = 0; begin < keys.size(); begin += kLookupsAhead) {
    const size_t n = std::min(kLookupsAhead, keys.size() - begin);
    for (size_t i = 0; i < n; ++i) {
      hashes[i] = KeyHash(salt, keys[begin + i]);
      __builtin_prefetch(&buckets_[hashes[i] & mask_], 1);
    }
    for (size_t i = 0; i < n; ++i) {
      slots[begin + i] = FindOrAdd(keys[begin + i], hashes[i], table);
    }
  }
}

// Several features share the table: sample by sample, because that is the canonical order.
void BatchPlanner::AddFeaturesInTurn(const Batch& batch, int32_t t, BatchPlan* plan) {
  const uint64_t salt = TableSalt(tables_[t]);
  for (int sample = 0; sample < batch.size; ++sample) {
    for (int32_t f : table_features_[t]) {
      const FeatureLookups& from = batch.features[f];
      const int32_t begin = from.offsets[sample];
      AddRun(absl::MakeConstSpan(from.keys).subspan(begin, from.offsets[sample + 1] - begin), salt,
             plan->features[f].slots.data() + begin, &plan->tables[t]);
    }
  }
}

void BatchPlanner::SortByServer(int32_t t, BatchPlan* plan) {
  TablePlan& table = plan->tables[t];
  const uint32_t num_servers = cluster_map_.num_servers();
  table.server_begin.assign(num_servers + 1, 0);
  if (num_servers == 1) {
    table.server_begin[1] = num_unique_;
    return;
  }
  for (int32_t u = 0; u < num_unique_; ++u) ++table.server_begin[servers_[u] + 1];
  for (uint32_t s = 0; s < num_servers; ++s) table.server_begin[s + 1] += table.server_begin[s];

  next_of_server_.assign(table.server_begin.begin(), table.server_begin.end() - 1);
  positions_.resize(num_unique_);
  std::swap(table.keys, unsorted_keys_);
  std::swap(table.counts, unsorted_counts_);
  table.keys.resize(num_unique_);
  table.counts.resize(num_unique_);
  for (int32_t u = 0; u < num_unique_; ++u) {
    const int32_t position = next_of_server_[servers_[u]]++;
    positions_[u] = position;
    table.keys[position] = unsorted_keys_[u];
    table.counts[position] = unsorted_counts_[u];
  }
  for (int32_t f : table_features_[t]) {
    for (int32_t& slot : plan->features[f].slots) slot = positions_[slot];
  }
}

void BatchPlanner::FillSegments(const Batch& batch, int32_t t, BatchPlan* plan) {
  TablePlan& table = plan->tables[t];
  table.segment_offsets.resize(num_unique_ + 1);
  cursors_.resize(num_unique_);
  int32_t lookups = 0;
  for (int32_t u = 0; u < num_unique_; ++u) {
    table.segment_offsets[u] = lookups;
    cursors_[u] = lookups;
    lookups += table.counts[u];
  }
  table.segment_offsets[num_unique_] = lookups;
  table.segment_bags.resize(lookups);

  const std::vector<int32_t>& features = table_features_[t];
  const int32_t num_features = static_cast<int32_t>(feature_tables_.size());
  int32_t* const bags = table.segment_bags.data();
  if (features.size() == 1 && plan->features[features[0]].single) {
    const int32_t* const slots = plan->features[features[0]].slots.data();
    for (int32_t sample = 0; sample < batch.size; ++sample) {
      bags[cursors_[slots[sample]]++] = BagRow(sample, features[0], num_features);
    }
    return;
  }
  for (int32_t sample = 0; sample < batch.size; ++sample) {
    for (int32_t f : features) {
      const int32_t bag = BagRow(sample, f, num_features);
      const UninitializedVector<int32_t>& offsets = batch.features[f].offsets;
      for (int32_t i = offsets[sample]; i < offsets[sample + 1]; ++i) {
        bags[cursors_[plan->features[f].slots[i]]++] = bag;
      }
    }
  }
}

}  // namespace thermocline
