#include "worker/train/label_watch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"
#include "worker/data/dataset.h"
#include "worker/session/retry_policy.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/progress.h"

namespace thermocline {

LabelWatch::LabelWatch(const Job& job, Dataset* dataset, WorkerProgress* progress,
                       const NamedCheckpoints* checkpoints)
    : job_(job),
      dataset_(dataset),
      progress_(progress),
      checkpoints_(checkpoints),
      labels_(LearnedLabels(job)),
      seen_(labels_.size(), false) {
  // What is not learned needs no label.
  for (int i = 0; i < job.task_size(); ++i) {
    seen_[i] = job.task(i).has_weight() && job.task(i).weight() == 0;
  }
}

bool LabelWatch::SawAll() const {
  return std::find(seen_.begin(), seen_.end(), false) == seen_.end();
}

void LabelWatch::See(const Batch& batch) {
  for (size_t i = 0; i < batch.weights.size(); ++i) {
    if (batch.weights[i] > 0) seen_[i % seen_.size()] = true;
  }
}

absl::Status LabelWatch::Take(const Batch& batch) {
  if (is_over_) return absl::OkStatus();
  if (batch.pass > pass_.value_or(batch.pass)) RETURN_IF_ERROR(Look(/*may_wait=*/true));
  pass_ = batch.pass;
  See(batch);
  is_over_ |= SawAll();
  return absl::OkStatus();
}

absl::Status LabelWatch::End() { return Look(/*may_wait=*/false); }

absl::Status LabelWatch::Look(bool may_wait) {
  if (is_over_) return absl::OkStatus();
  progress_->Enter("looking for labels");
  const absl::Cleanup goes_on = [this] { progress_->Enter("training"); };
  absl::StatusOr<std::unique_ptr<BatchReader>> reader =
      dataset_->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  int64_t rows = 0;
  while (reader.ok() && !SawAll()) {
    if (may_wait && checkpoints_ != nullptr && checkpoints_->AwaitsStep()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<Batch>> batch = (*reader)->Next();
    // What can't be read says nothing of labels, and was said where it was trained.
    if (!batch.ok()) reader = batch.status();
    if (!batch.ok() || *batch == nullptr || (*batch)->pass > 0) break;
    See(**batch);
    rows += static_cast<int64_t>((*batch)->global_samples);
    progress_->OnSamples(rows, dataset_->rows(Split::kTrain));
    (*reader)->Recycle(*std::move(batch));
  }
  is_over_ = true;
  const auto missing = std::find(seen_.begin(), seen_.end(), false);
  if (!reader.ok() || missing == seen_.end()) return absl::OkStatus();
  return MarkBadJob(absl::InvalidArgumentError(
      absl::StrCat("no training row has the label '", labels_[missing - seen_.begin()],
                   "' (data.label.may_be_missing), so ",
                   job_.task_size() > 1 ? "its task learns nothing: leave the task out, "
                                        : "nothing is learned: ",
                   "name another label, or give it rows that have it")));
}

}  // namespace thermocline
