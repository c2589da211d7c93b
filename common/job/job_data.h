// Interprets the data stanza and the features of a job: both forms of `data` as one, ranges of
// column names, and the features of each kind.
#ifndef THERMOCLINE_COMMON_JOB_JOB_DATA_H_
#define THERMOCLINE_COMMON_JOB_JOB_DATA_H_

#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace thermocline {

// A job has at most so many columns of a kind. No range or count makes more features.
inline constexpr uint32_t kMaxColumns = 4096;

// The data of a resolved job in the long form (data.train, test, split and label), even if it is
// written in the short form.
Data DescribeData(const Data& resolved);

// The columns that the model may learn: data.label.column; "label" where the format has its own.
std::vector<std::string> LabelColumns(const Job& job);

// The columns of them that it learns: its tasks', in their order, or the first.
std::vector<std::string> LearnedLabels(const Job& resolved);

// How many numbers they are in a sample of a batch: a label for each, and a weight where samples
// have weights or labels may be missing.
size_t NumbersOfLabels(const Job& resolved);

// The one of them that decides in evaluations, and whose metrics stand for the model's.
size_t DecidingTask(const Job& resolved);

inline bool IsNpy(const Data& data) {
  return data.has_train() ? data.train().has_npy() : data.format() == Data::DLRM_NPY;
}

// How a file of a job's data differs from before: "has 12 bytes, and had 10"; "": it doesn't, or it
// can't be seen. Paths are not compared.
std::string DescribeChange(const DataFile& now, const DataFile& before);

// The files that an npy job reads, of those called PREFIX_*.npy: "labels", "dense", "sparse", and
// for each list "NAME_values" and "NAME_offsets".
std::vector<std::string> NpyParts(const Job& resolved);

// The names of the columns if the job has them; {} where a header or a schema does.
std::vector<std::string> TextColumns(const Data::Files& files);

// Expands "C1..C3" to C1, C2, C3. Other names, malformed ranges (C3..C1, C1..D3) and ranges of more
// than kMaxColumns names stay as they are.
std::vector<std::string> ExpandColumns(
    const google::protobuf::RepeatedPtrField<std::string>& columns);

// Whether the job counts which rows are hot: with `fae`, and with a cache whose policy is STATIC.
inline bool CountsHotRows(const Job& job) {
  return job.has_fae() || job.cache().policy() == Cache::STATIC;
}

inline bool IsNumeric(const Feature& feature) { return feature.has_numeric(); }

// Whether a feature may have several keys in a sample, and is no `sequence`.
inline bool IsBag(const Feature& feature) {
  return !feature.has_sequence() &&
         (!feature.categorical().separator().empty() || feature.columns() > 1);
}

// The features that read a table, and those that are dense inputs, in the job's order. They point
// into `resolved`.
std::vector<const Feature*> EmbeddedFeatures(const Job& resolved);
std::vector<const Feature*> NumericFeatures(const Job& resolved);

// For every feature of the resolved job, the position of its stanza in the job as it was `written`.
// Features after the last one come from no stanza.
std::vector<int> FeatureStanzas(const Job& written);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_DATA_H_
