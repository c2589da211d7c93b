// What is known of the keys of a feature before a job runs: from the job itself, and from the
// figures of an inspection (`inspect --json`), where there are any.
#ifndef THERMOCLINE_DEPLOY_PLAN_FEATURE_ESTIMATES_H_
#define THERMOCLINE_DEPLOY_PLAN_FEATURE_ESTIMATES_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/job/resolved_job.h"
#include "proto/job.pb.h"

namespace thermocline {

// `feature` is one of a resolved job's. `figures` may be null: there are none. Figures that are not
// what `inspect --json` prints make the JSON library throw.

// What the figures say of the column of a feature; null: nothing.
const nlohmann::ordered_json* ColumnOf(const Feature& feature,
                                       const nlohmann::ordered_json* figures);

// Lookups of a sample, on average; at most, of a list of which the figures say nothing.
double LookupsOf(const Feature& feature, const nlohmann::ordered_json* figures);
// The same of one of JobTables::features, with its last step. features: EmbeddedFeatures
double LookupsOf(const FeatureSpec& spec, const std::vector<const Feature*>& features,
                 const nlohmann::ordered_json* figures);
// [sequences] The steps of a sample, on average; at most, of lists of which the figures say
// nothing.
std::vector<double> StepsOfSample(const JobTables& tables, size_t sequences,
                                  const std::vector<const Feature*>& features,
                                  const nlohmann::ordered_json* figures);

// A feature whose keys are looked up, and the table, as its index in JobTables::sparse.
struct LookedUp {
  const Feature* feature;
  int table;
};
// Each of `features` that JobTables::features look up, in whatever way, once.
std::vector<LookedUp> LookedUpOf(const JobTables& tables,
                                 const std::vector<const Feature*>& features);

struct KnownRows {
  std::optional<double> rows;
  std::string from;  // "inspected", "buckets", ...
};
// The rows of its table that a job gets which trains on so large a share of the inspected rows.
KnownRows RowsOf(const Feature& feature, const nlohmann::ordered_json* figures,
                 double training_share);

// Distinct keys among `batch` samples, on average.
double DistinctIn(const Feature& feature, const nlohmann::ordered_json* figures, double batch);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PLAN_FEATURE_ESTIMATES_H_
