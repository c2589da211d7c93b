// Sees to it that training rows have the label of every task. Rows may lack labels
// (data.label.may_be_missing), but a task whose label all of them lack would learn nothing, in
// silence.
#ifndef THERMOCLINE_WORKER_TRAIN_LABEL_WATCH_H_
#define THERMOCLINE_WORKER_TRAIN_LABEL_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"

namespace thermocline {

class Dataset;

// A worker sees the labels of its own slices. Where it has seen none of a task by the end of the
// first pass that it trains, it looks through all training rows for one.
//
// Not thread-safe.
class LabelWatch {
 public:
  // Both outlive this.
  LabelWatch(const Job& job, Dataset* dataset);

  // Takes a batch that is trained. Errors: End()'s, at the first batch of the next pass.
  absl::Status Take(const Batch& batch);
  // Training is over. Errors: kInvalidArgument (no training row has the label of a task: names it).
  absl::Status End();

 private:
  void See(const Batch& batch);
  bool SawAll() const;

  const Job& job_;
  Dataset* const dataset_;
  const std::vector<std::string> labels_;
  std::vector<bool> seen_;        // [tasks]
  std::optional<uint32_t> pass_;  // The first pass that was trained.
  bool is_over_ = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_LABEL_WATCH_H_
