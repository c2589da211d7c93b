#include "worker/train/label_watch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/job_data.h"
#include "worker/data/dataset.h"

namespace thermocline {

LabelWatch::LabelWatch(const Job& job, Dataset* dataset)
    : job_(job), dataset_(dataset), labels_(LearnedLabels(job)), seen_(labels_.size(), false) {}

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
  if (!pass_.has_value()) pass_ = batch.pass;
  if (batch.pass > *pass_) return End();
  See(batch);
  is_over_ = SawAll();
  return absl::OkStatus();
}

absl::Status LabelWatch::End() {
  if (std::exchange(is_over_, true)) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<BatchReader>> reader =
      dataset_->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  while (reader.ok() && !SawAll()) {
    absl::StatusOr<std::unique_ptr<Batch>> batch = (*reader)->Next();
    // What can't be read says nothing of labels, and was said where it was trained.
    if (!batch.ok()) return absl::OkStatus();
    if (*batch == nullptr || (*batch)->pass > 0) break;
    See(**batch);
    (*reader)->Recycle(*std::move(batch));
  }
  const auto missing = std::find(seen_.begin(), seen_.end(), false);
  if (!reader.ok() || missing == seen_.end()) return absl::OkStatus();
  const std::string& label = labels_[missing - seen_.begin()];
  return absl::InvalidArgumentError(absl::StrCat(
      "no training row has the label '", label, "' (data.label.may_be_missing): ",
      job_.task_size() > 1 ? "its task learns nothing; leave the task out, or give it rows"
                           : "nothing is learned"));
}

}  // namespace thermocline
