// Sees to it that training rows have the label of every task that is learned. Rows may lack labels
// (data.label.may_be_missing), but a task whose label all of them lack would learn nothing, in
// silence. A task of weight 0 is not learned.
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
class NamedCheckpoints;
class WorkerProgress;

// A worker sees the labels of its own slices. Where it has seen none of a task by the end of the
// first pass that it trains, it looks through all training rows for one, which may take as long as
// a pass.
//
// Not thread-safe.
class LabelWatch {
 public:
  // All outlive this. checkpoints: where one waits for the next step, training goes on, and it
  // looks at the end of the next pass; null: none does.
  LabelWatch(const Job& job, Dataset* dataset, WorkerProgress* progress,
             const NamedCheckpoints* checkpoints);

  // Takes a batch that is trained. Errors: End()'s, at the first batch of the next pass.
  absl::Status Take(const Batch& batch);
  // Training is over. Errors: kInvalidArgument, marked as that of a bad job (no training row has
  // the label of a task: names it).
  absl::Status End();

 private:
  void See(const Batch& batch);
  bool SawAll() const;
  absl::Status Look(bool may_wait);

  const Job& job_;
  Dataset* const dataset_;
  WorkerProgress* const progress_;
  const NamedCheckpoints* const checkpoints_;
  const std::vector<std::string> labels_;
  std::vector<bool> seen_;        // [tasks]
  std::optional<uint32_t> pass_;  // The pass at whose end it looks.
  bool is_over_ = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_LABEL_WATCH_H_
