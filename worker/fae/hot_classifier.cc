#include "worker/fae/hot_classifier.h"

#include <algorithm>

#include "worker/fae/pack_format.h"

namespace thermocline {
namespace {

// Samples that a thread takes at a time.
constexpr int kRunSamples = 256;

}  // namespace

HotClassifier::HotClassifier(const JobTables& tables, const std::vector<CountedTable>& counted,
                             const CalibrationResult& result)
    : tables_(result.tables), free_bytes_(result.budget_bytes - result.hot_bytes) {
  for (const FeatureSpec& feature : tables.features) table_of_.push_back(feature.table_index);
  for (const std::vector<Key>& keys : HotKeys(counted, result)) {
    hot_.emplace_back(keys.begin(), keys.end());
  }
}

void HotClassifier::AddRowsOfWholeTables(const Batch& batch) {
  for (size_t f = 0; f < table_of_.size(); ++f) {
    const int table = table_of_[f];
    if (!tables_[table].is_whole) continue;
    for (const Key key : batch.features[f].keys) {
      if (totals_.is_full) return;
      if (hot_[table].contains(key)) continue;
      if (tables_[table].row_bytes > free_bytes_) {
        totals_.is_full = true;
        return;
      }
      hot_[table].insert(key);
      free_bytes_ -= tables_[table].row_bytes;
      ++totals_.added_rows;
      totals_.added_bytes += tables_[table].row_bytes;
    }
  }
}

void HotClassifier::ClassifyRows(const Batch& batch, int begin, int end, uint8_t* is_hot,
                                 Totals* totals) const {
  std::fill(is_hot + begin, is_hot + end, uint8_t{1});
  for (size_t f = 0; f < table_of_.size(); ++f) {
    const FeatureLookups& lookups = batch.features[f];
    const absl::flat_hash_set<Key>& hot = hot_[table_of_[f]];
    for (int row = begin; row < end; ++row) {
      for (int32_t i = lookups.offsets[row]; i < lookups.offsets[row + 1]; ++i) {
        const bool found = hot.contains(lookups.keys[i]);
        totals->hot_lookups += found ? 1 : 0;
        if (!found) is_hot[row] = 0;
      }
    }
    totals->lookups += static_cast<uint64_t>(lookups.offsets[end] - lookups.offsets[begin]);
  }
  totals->samples += end - begin;
  totals->hot_samples += std::count(is_hot + begin, is_hot + end, uint8_t{1});
}

void HotClassifier::Classify(const Batch& batch, ThreadPool* pool, std::vector<uint8_t>* is_hot) {
  if (!totals_.is_full) AddRowsOfWholeTables(batch);
  is_hot->resize(static_cast<size_t>(batch.size));
  std::vector<Totals> of_threads(static_cast<size_t>(pool->num_threads()));
  pool->ParallelFor((batch.size + kRunSamples - 1) / kRunSamples, [&](int64_t run, int thread) {
    const int begin = static_cast<int>(run) * kRunSamples;
    ClassifyRows(batch, begin, std::min(begin + kRunSamples, batch.size), is_hot->data(),
                 &of_threads[thread]);
  });
  for (const Totals& part : of_threads) {
    totals_.samples += part.samples;
    totals_.hot_samples += part.hot_samples;
    totals_.lookups += part.lookups;
    totals_.hot_lookups += part.hot_lookups;
  }
}

HotSet HotClassifier::MakeHotSet() const {
  HotSet set;
  for (const absl::flat_hash_set<Key>& keys : hot_) {
    std::vector<Key>& sorted = set.tables.emplace_back(keys.begin(), keys.end());
    std::sort(sorted.begin(), sorted.end());
  }
  set.digest = DigestOf(set.tables);
  return set;
}

}  // namespace thermocline
