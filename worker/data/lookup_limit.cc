#include "worker/data/lookup_limit.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"

namespace thermocline {

LookupLimit LookupLimitOf(const Job& job) {
  LookupLimit limit;
  if (!job.sequence().empty()) {
    const JobTables tables = ResolveTables(job);
    for (const FeatureSpec& feature : tables.features) {
      limit.features.push_back(feature.name);
      limit.tables.push_back(tables.sparse[feature.table_index].name);
    }
    return limit;
  }
  for (const Feature* feature : EmbeddedFeatures(job)) {
    limit.features.push_back(feature->name());
    limit.tables.push_back(feature->table());
  }
  return limit;
}

absl::Status CheckLookups(const LookupLimit& limit, const RawBatch& raw,
                          const std::vector<int64_t>& bad_rows, const Batch& batch,
                          BatchSource* source) {
  size_t all = 0;
  for (const FeatureLookups& feature : batch.features) all += feature.keys.size();
  if (all <= static_cast<size_t>(limit.most) || limit.features.empty()) return absl::OkStatus();
  auto bad = bad_rows.begin();
  int64_t row = raw.slice_begin;
  std::map<absl::string_view, int64_t> lookups;  // By table, of the samples so far.
  for (int sample = 0; sample < batch.size; ++sample, ++row) {
    for (; bad != bad_rows.end() && *bad == row; ++bad) ++row;
    for (size_t f = 0; f < batch.features.size(); ++f) {
      const UninitializedVector<int32_t>& offsets = batch.features[f].offsets;
      const int64_t of_row = offsets[sample + 1] - offsets[sample];
      int64_t& of_table = lookups[limit.tables[f]];
      of_table += of_row;
      if (of_table <= limit.most) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          source->PlaceOf(raw, row), ": feature '", limit.features[f], "' has ", of_row,
          of_row == 1 ? " value" : " values", " here, with which this worker's batch has ",
          of_table, " lookups of table '", limit.tables[f], "', and may have ", limit.most,
          "; make train.batch_size (in an evaluation train.eval_batch_size) smaller, or the lists "
          "shorter (sequence.max_length)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace thermocline
