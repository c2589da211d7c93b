// Lists that are read step by step (Job.sequence): which columns they are, and how a batch's
// columns become what its model looks up. It is the same for all formats: a source parses a job's
// categorical features, checks with StepLists that the lists of each sequence have one length, and
// its reader has MakeLookups() do the rest.
#ifndef THERMOCLINE_WORKER_DATA_STEP_LISTS_H_
#define THERMOCLINE_WORKER_DATA_STEP_LISTS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/job/resolved_job.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"

namespace thermocline {

// Immutable. Features are numbered as EmbeddedFeatures (common/job/job_data.h) has them.
class StepLists {
 public:
  StepLists() = default;  // No sequence.
  // REQUIRES: a resolved, valid job
  explicit StepLists(const Job& job);

  bool empty() const { return sequences_.empty(); }
  // Whether a feature is a list of a sequence: each of its values needs a key.
  bool Has(size_t feature) const { return feature < is_list_.size() && is_list_[feature]; }

  // Two lists of one sequence whose lengths differ.
  struct Mismatch {
    int first = -1;   // A list of the sequence; -1: nothing differs.
    int second = -1;  // One that has another length.
    const std::string* sequence = nullptr;
  };
  // length_of(feature): how many values a list has, before its sequence leaves any out.
  template <typename LengthOf>
  Mismatch FindMismatch(const LengthOf& length_of) const {
    for (const Lists& lists : sequences_) {
      const auto length = length_of(lists.features[0]);
      for (const int feature : lists.features) {
        if (length_of(feature) != length) return {lists.features[0], feature, &lists.sequence};
      }
    }
    return {};
  }
  // Returns what is wrong: "column 7 ('a') has 3 values, but column 8 ('b') has 2; sequence
  // 'events' reads them together".
  static std::string Describe(const Mismatch& mismatch, absl::string_view first,
                              size_t first_length, absl::string_view second, size_t second_length);

 private:
  struct Lists {
    std::string sequence;
    std::vector<int> features;
  };

  std::vector<Lists> sequences_;
  std::vector<bool> is_list_;  // [features]
};

// Turns the columns that a source has parsed into what a model looks up. Immutable.
class LookupMaker {
 public:
  explicit LookupMaker(std::vector<FeatureSpec> features);  // JobTables::features

  // Takes batch->features, which are the job's categorical features, and puts what
  // JobTables::features says in their place. What is left of the columns, and their memory, are in
  // `columns`.
  void MakeLookups(Batch* batch, std::vector<FeatureLookups>* columns) const;

 private:
  const std::vector<FeatureSpec> features_;
  std::vector<bool> is_last_use_;  // [features] No later one reads its source.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_STEP_LISTS_H_
