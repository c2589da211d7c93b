#include "worker/fae/lookup_counts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace thermocline {

LookupCounts::LookupCounts(const JobTables& tables, ThreadPool* pool)
    : pool_(*pool),
      features_(tables.sparse.size()),
      counts_(tables.sparse.size()),
      lookups_(tables.sparse.size()) {
  for (size_t f = 0; f < tables.features.size(); ++f) {
    features_[tables.features[f].table_index].push_back(static_cast<int>(f));
  }
}

void LookupCounts::Add(absl::Span<const std::unique_ptr<Batch>> batches) {
  pool_.ParallelFor(static_cast<int64_t>(counts_.size()), [&](int64_t table, int) {
    for (const std::unique_ptr<Batch>& batch : batches) {
      for (const int feature : features_[table]) {
        const auto& keys = batch->features[feature].keys;
        for (const Key key : keys) {
          uint32_t& count = counts_[table][key];
          if (count < std::numeric_limits<uint32_t>::max()) ++count;
        }
        lookups_[table] += keys.size();
      }
    }
  });
}

std::vector<CountedTable> LookupCounts::Finish() {
  std::vector<CountedTable> tables(counts_.size());
  pool_.ParallelFor(static_cast<int64_t>(counts_.size()), [&](int64_t t, int) {
    std::vector<std::pair<Key, uint32_t>> sorted(counts_[t].begin(), counts_[t].end());
    absl::flat_hash_map<Key, uint32_t>().swap(counts_[t]);
    std::sort(sorted.begin(), sorted.end());
    tables[t].keys.reserve(sorted.size());
    tables[t].counts.reserve(sorted.size());
    for (const auto& [key, count] : sorted) {
      tables[t].keys.push_back(key);
      tables[t].counts.push_back(count);
    }
    tables[t].lookups = lookups_[t];
  });
  return tables;
}

}  // namespace thermocline
