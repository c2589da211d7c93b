#include "worker/sparse/dense_exchange.h"

#include <utility>
#include <vector>

namespace thermocline {

void DenseExchange::AddToPull(StepWork* work, PullWork* pull) const {
  work->dense_rows.resize(blocks_->arena_floats());
  auto slices = blocks_->PullSlices(absl::MakeSpan(work->dense_rows));
  for (size_t server = 0; server < slices.size(); ++server) {
    for (PullSlice& slice : slices[server]) pull->slices[server].push_back(slice);
  }
}

void DenseExchange::TakePulled(const StepWork& work, const DenseArenas& dense) const {
  blocks_->UnstageWeights(work.dense_rows, dense.weights);
}

void DenseExchange::AddToPush(StepWork* work, bool write_back, PushWork* push) {
  kind_ = !owned_ ? Kind::kGradients : write_back ? Kind::kRows : Kind::kNone;
  wave_ = push->waves.size();
  if (kind_ == Kind::kGradients) {
    work->dense_values.resize(blocks_->arena_floats());
    push->waves.push_back(blocks_->GradientSlices(work->dense_values));
  } else if (kind_ == Kind::kRows) {
    work->dense_values.resize(blocks_->num_blocks() * blocks_->row_floats());
    push->waves.push_back(blocks_->AssignSlices(work->dense_values));
  }
}

absl::Status DenseExchange::Release(StepWork* work, const DenseArenas& dense) {
  if (kind_ == Kind::kNone) return absl::OkStatus();
  if (kind_ == Kind::kGradients) {
    blocks_->StageGradients(dense.gradients, absl::MakeSpan(work->dense_values));
  } else {
    blocks_->StageRows(dense.weights, dense.slots, absl::MakeSpan(work->dense_values));
  }
  return session_->ReleaseWave(work->step(), wave_);
}

void DenseExchange::PullRows(Step step, UninitializedVector<float>* rows,
                             PsSession::PullDone done) const {
  rows->resize(blocks_->num_blocks() * blocks_->row_floats());
  PullWork pull;
  pull.kind = wire::PullKind::kRead;
  pull.step = step;
  pull.with_slots = true;
  pull.slices = blocks_->PullRowSlices(absl::MakeSpan(*rows));
  session_->Pull(std::move(pull), std::move(done));
}

void DenseExchange::TakeRows(absl::Span<const float> rows, const DenseArenas& dense) const {
  blocks_->UnstageRows(rows, dense.weights, dense.slots);
}

}  // namespace thermocline
