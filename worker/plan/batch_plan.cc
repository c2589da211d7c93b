#include "worker/plan/batch_plan.h"

#include <algorithm>
#include <utility>

#include "absl/base/optimization.h"
#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

// Keys are hashed, and their buckets prefetched, so many at a time before the first is looked up.
constexpr size_t kLookupsAhead = 32;

constexpr int kMinBucketBits = 6;
constexpr size_t kMinBuckets = size_t{1} << kMinBucketBits;

bool HasSingleLookups(const FeatureLookups& lookups, int size) {
  if (lookups.keys.size() != static_cast<size_t>(size) || !lookups.weights.empty()) return false;
  int32_t difference = 0;
  for (int i = 0; i <= size; ++i) difference |= lookups.offsets[i] ^ i;
  return difference == 0;
}

}  // namespace

std::vector<KeyShares> SharesOf(const BatchPlan& plan) {
  std::vector<KeyShares> shares;
  for (const TablePlan& table : plan.tables) shares.push_back(SharesOf(table.id, table));
  return shares;
}

BatchPlanner::BatchPlanner(std::vector<TableId> tables, std::vector<int32_t> feature_tables,
                           const ClusterMap& cluster_map, std::vector<VectorPlace> places)
    : tables_(std::move(tables)),
      feature_tables_(std::move(feature_tables)),
      cluster_map_(cluster_map),
      places_(places.empty()
                  ? PlacesSideBySide(static_cast<int32_t>(feature_tables_.size()), /*leading=*/0)
                  : std::move(places)),
      table_features_(tables_.size()) {
  CHECK_EQ(places_.size(), feature_tables_.size());
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
  for (size_t f = 0; f < places_.size(); ++f) {
    const VectorPlace& place = places_[f];
    const int64_t bags = place.is_by_step ? batch.features[f].keys.size() : batch.size;
    CHECK_LT(FirstRow(batch, static_cast<int32_t>(f)) + bags * place.stride, int64_t{1} << 31);
  }
  plan->tables.resize(tables_.size());
  plan->features.resize(feature_tables_.size());
}

int64_t BatchPlanner::FirstRow(const Batch& batch, int32_t feature) const {
  return FirstRowOf(places_, feature, [&batch](int32_t f) {
    return static_cast<int64_t>(batch.features[f].keys.size());
  });
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
    feature.single = places_[f].is_by_step || HasSingleLookups(from, batch.size);
    feature.row_indices.resize(from.keys.size());
  }
  CHECK_LT(lookups, size_t{1} << 30);
  table.keys.resize(lookups);
  table.counts.assign(lookups, 0);
  BeginTable(lookups);
  if (table_features_[t].size() == 1) {
    const int32_t f = table_features_[t][0];
    AddRun(batch.features[f].keys, plan->features[f].row_indices.data(), &table);
  } else {
    AddFeaturesInTurn(batch, t, plan);
  }
  table.keys.resize(num_unique_);
  table.counts.resize(num_unique_);
  if (cluster_map_.num_servers() > 1) {
    SortByServer(&table);
    FillSegments<true>(batch, t, plan);
  } else {
    table.server_begin = {0, num_unique_};
    FillSegments<false>(batch, t, plan);
  }
}

void BatchPlanner::BeginTable(size_t lookups) {
  size_t wanted = kMinBuckets;
  shift_ = 64 - kMinBucketBits;
  for (; wanted < 2 * lookups; wanted *= 2) --shift_;
  // What earlier tables left in the buckets is below base_, so nothing need be cleared until the
  // numbers are used up. A small table uses the front only, so that it stays in the nearest cache.
  base_ += num_unique_;
  num_unique_ = 0;
  if (wanted > buckets_.size() || base_ > (uint32_t{1} << 31)) {
    buckets_.assign(std::max(wanted, buckets_.size()), 0);
    base_ = 1;
  }
  buckets_in_use_ = wanted;
}

// What the inner loop works on, in registers: stores through the pointers can't change it.
struct BatchPlanner::Inserter {
  uint32_t* const buckets;
  const uint64_t shift;
  const uint64_t mask;
  const uint32_t base;
  Key* const keys;
  uint32_t* const counts;  // 0 where there is no key yet
  uint32_t num_unique;

  // Cheaper than KeyHash, which is needed for distinct keys alone. The upper bits are good.
  uint64_t Home(Key key) const { return ((key ^ (key >> 32)) * 0x9E3779B97F4A7C15u) >> shift; }

  // Branches on whether a key is new would be mispredicted, so both cases run the same
  // instructions; only a bucket that another key holds is a branch.
  uint32_t FindOrAdd(Key key, uint64_t home) {
    for (uint64_t i = home;; i = (i + 1) & mask) {
      const uint32_t held = buckets[i];
      const uint32_t is_new = held < base;  // 1 or 0
      const uint32_t number = held - base;
      const uint32_t unique = number ^ ((number ^ num_unique) & (0 - is_new));
      // All ones where the bucket holds a key, else 0; keys[num_unique] may be read but doesn't
      // count.
      const uint64_t holds = uint64_t{is_new} - 1;
      if (ABSL_PREDICT_FALSE(((keys[unique] ^ key) & holds) != 0)) continue;
      buckets[i] = base + unique;
      keys[num_unique] = key;  // For nothing, where the key was found.
      ++counts[unique];
      num_unique += is_new;
      return unique;
    }
  }
};

void BatchPlanner::AddRun(absl::Span<const Key> keys, int32_t* row_indices, TablePlan* table) {
  Inserter inserter{buckets_.data(),
                    shift_,
                    buckets_in_use_ - 1,
                    base_,
                    table->keys.data(),
                    table->counts.data(),
                    static_cast<uint32_t>(num_unique_)};
  const Key* const from = keys.data();
  const size_t size = keys.size();
  uint64_t homes[kLookupsAhead];
  for (size_t begin = 0; begin < size; begin += kLookupsAhead) {
    const size_t n = std::min(kLookupsAhead, size - begin);
    for (size_t i = 0; i < n; ++i) {
      homes[i] = inserter.Home(from[begin + i]);
      __builtin_prefetch(&inserter.buckets[homes[i]], 1);
    }
    for (size_t i = 0; i < n; ++i) {
      row_indices[begin + i] = static_cast<int32_t>(inserter.FindOrAdd(from[begin + i], homes[i]));
    }
  }
  num_unique_ = static_cast<int32_t>(inserter.num_unique);
}

// Several features share the table: sample by sample, because that is the canonical order.
void BatchPlanner::AddFeaturesInTurn(const Batch& batch, int32_t t, BatchPlan* plan) {
  for (int sample = 0; sample < batch.size; ++sample) {
    for (int32_t f : table_features_[t]) {
      const FeatureLookups& from = batch.features[f];
      const int32_t begin = from.offsets[sample];
      AddRun(absl::MakeConstSpan(from.keys).subspan(begin, from.offsets[sample + 1] - begin),
             plan->features[f].row_indices.data() + begin, &plan->tables[t]);
    }
  }
}

void BatchPlanner::SortByServer(TablePlan* plan) {
  TablePlan& table = *plan;
  const uint32_t num_servers = cluster_map_.num_servers();
  table.server_begin.assign(num_servers + 1, 0);
  const uint64_t salt = TableSalt(table.id);
  servers_.resize(num_unique_);
  for (int32_t u = 0; u < num_unique_; ++u) {
    servers_[u] = cluster_map_.ServerOfHash(KeyHash(salt, table.keys[u])).value();
    ++table.server_begin[servers_[u] + 1];
  }
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
}

template <bool kReorder>
void BatchPlanner::FillSegments(const Batch& batch, int32_t t, BatchPlan* plan) {
  TablePlan& table = plan->tables[t];
  // While the bags are filled in, ends[u] is where the next bag of key u goes; it begins as the
  // start of u's segment and becomes its end, which is the start of u + 1.
  table.segment_offsets.resize(num_unique_ + 1);
  table.segment_offsets[0] = 0;
  int32_t* const ends = table.segment_offsets.data() + 1;
  int32_t lookups = 0;
  for (int32_t u = 0; u < num_unique_; ++u) {
    ends[u] = lookups;
    lookups += table.counts[u];
  }
  table.segment_bags.resize(lookups);
  table.segment_weights.clear();
  int32_t* const bags = table.segment_bags.data();

  const std::vector<int32_t>& features = table_features_[t];
  first_rows_.clear();
  for (const int32_t f : features) {
    first_rows_.push_back(static_cast<int32_t>(FirstRow(batch, f)));
  }
  if (features.size() == 1 && plan->features[features[0]].single) {
    int32_t* const row_indices = plan->features[features[0]].row_indices.data();
    const auto size = static_cast<int32_t>(plan->features[features[0]].row_indices.size());
    const int32_t stride = places_[features[0]].stride;
    int32_t bag = first_rows_[0];
    for (int32_t i = 0; i < size; ++i) {
      if (kReorder) row_indices[i] = positions_[row_indices[i]];
      bags[ends[row_indices[i]]++] = bag;
      bag += stride;
    }
    return;
  }
  const bool is_weighted = std::any_of(features.begin(), features.end(), [&](int32_t f) {
    return !batch.features[f].weights.empty();
  });
  if (is_weighted) table.segment_weights.assign(lookups, 1.0f);
  for (int32_t sample = 0; sample < batch.size; ++sample) {
    for (size_t n = 0; n < features.size(); ++n) {
      const int32_t f = features[n], first = first_rows_[n];
      const VectorPlace& place = places_[f];
      const int32_t bag = first + sample * place.stride;
      const UninitializedVector<int32_t>& offsets = batch.features[f].offsets;
      const UninitializedVector<float>& weights = batch.features[f].weights;
      int32_t* const row_indices = plan->features[f].row_indices.data();
      for (int32_t i = offsets[sample]; i < offsets[sample + 1]; ++i) {
        if (kReorder) row_indices[i] = positions_[row_indices[i]];
        const int32_t at = ends[row_indices[i]]++;
        bags[at] = place.is_by_step ? first + i * place.stride : bag;
        if (!weights.empty()) table.segment_weights[at] = weights[i];
      }
    }
  }
}

}  // namespace thermocline
