// What the data stanza and the features of a job mean: both forms of `data` as one, ranges of
// column names, and the features of each kind.
#ifndef THERMOCLINE_COMMON_JOB_JOB_DATA_H_
#define THERMOCLINE_COMMON_JOB_JOB_DATA_H_

#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace thermocline {

// Columns of a kind that a job has at most; no range or count makes more features.
inline constexpr uint32_t kMaxColumns = 4096;

// The data of a resolved job in the long form (data.train, test, split and label), whichever it
// was written in.
Data DescribeData(const Data& resolved);

inline bool IsNpy(const Data& data) {
  return data.has_train() ? data.train().has_npy() : data.format() == Data::DLRM_NPY;
}

// What differs between two files of a job's data but their paths: "has 12 bytes, and had 10"; "":
// nothing, or one of them can't be told from others.
std::string DescribeChange(const DataFile& now, const DataFile& before);

// The names of the columns, as far as the job alone tells: {} where a header or a schema does.
std::vector<std::string> TextColumns(const Data::Files& files);

// "C1..C3" as C1, C2, C3; any other name as itself. A range that is none (C3..C1, C1..D3) or has
// more than kMaxColumns names is left as it is.
std::vector<std::string> ExpandColumns(
    const google::protobuf::RepeatedPtrField<std::string>& columns);

// Whether the job counts which rows are hot: with `fae`, and with a cache whose policy is STATIC.
inline bool CountsHotRows(const Job& job) {
  return job.has_fae() || job.cache().policy() == Cache::STATIC;
}

inline bool IsNumeric(const Feature& feature) { return feature.has_numeric(); }

// The features that read a table, and those that are dense inputs, in the job's order. They point
// into `resolved`.
std::vector<const Feature*> EmbeddedFeatures(const Job& resolved);
std::vector<const Feature*> NumericFeatures(const Job& resolved);

// For every feature of the resolved job, which stanza of the job as it was `written` it comes from;
// those after the last come from no stanza.
std::vector<int> FeatureStanzas(const Job& written);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_DATA_H_
