#include "worker/dense/dense_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/completion.h"
#include "common/base/status_macros.h"
#include "common/base/uninitialized_vector.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"

namespace thermocline {

struct DenseParameters::OfStep {
  UninitializedVector<float> pulled;  // [blocks, 256] weights
  UninitializedVector<float> pushed;  // [blocks, 256] gradients, or [blocks, row_floats] rows
  bool pushes = false;
};

DenseParameters::DenseParameters(const DenseBlocks* blocks, const DenseArenas& arenas,
                                 uint32_t num_workers, DenseSlices* slices, Device* device,
                                 PsSession* session)
    : blocks_(blocks),
      arenas_(arenas),
      home_(num_workers == 1    ? Home::kHere
            : slices != nullptr ? Home::kSlices
                                : Home::kServers),
      slices_(slices),
      device_(device),
      session_(session),
      bad_gradient_(device->Allocate(sizeof(int64_t))),
      weights_(MakeHostCopy(arenas.weights)),
      state_(MakeHostCopy(arenas.state)),
      gradients_(MakeHostCopy(arenas.gradients)) {
  CHECK_EQ(arenas.weights.size, blocks->arena_floats());
}

DenseParameters::HostCopy DenseParameters::MakeHostCopy(DeviceSpan<float> span) const {
  if (device_->is_host_memory()) return {nullptr, absl::MakeSpan(span.data, span.size)};
  HostCopy copy;
  copy.buffer = device_->AllocateHost(sizeof(float) * span.size);
  copy.floats = absl::MakeSpan(copy.buffer->floats(), span.size);
  return copy;
}

void DenseParameters::CopyToHost(DeviceSpan<float> from, const HostCopy& to) {
  const size_t bytes = sizeof(float) * from.size;
  if (device_->is_host_memory()) return device_->copies().AddFromDevice(bytes);
  device_->CopyToHost(to.buffer->data(), from.data, bytes, Stream::kCompute);
}

void DenseParameters::CopyToDevice(const HostCopy& from, DeviceSpan<float> to) {
  const size_t bytes = sizeof(float) * to.size;
  if (device_->is_host_memory()) return device_->copies().AddToDevice(bytes);
  device_->CopyToDevice(to.data, from.buffer->data(), bytes, Stream::kCompute);
}

// Those whose optimizer state this worker has.
const DenseBlocks& DenseParameters::state_blocks() const {
  return home_ == Home::kSlices ? slices_->own() : *blocks_;
}

void DenseParameters::Initialize(uint64_t seed) {
  blocks_->Initialize(seed, weights_.floats, state_.floats);
  CopyToDevice(weights_, arenas_.weights);
  CopyToDevice(state_, arenas_.state);
}

absl::Status DenseParameters::Pull(Step step, bool with_state,
                                   std::vector<std::vector<PullSlice>> slices) {
  PullWork pull;
  pull.kind = wire::PullKind::kRead;
  pull.step = step;
  pull.with_state = with_state;
  pull.slices = std::move(slices);
  const auto pulled = std::make_shared<Completion>();
  session_->Pull(std::move(pull),
                 [pulled](absl::Status status, Step) { pulled->Deliver(std::move(status)); });
  return pulled->Wait();
}

absl::Status DenseParameters::Load(Step step, bool with_state) {
  if (!with_state || home_ == Home::kSlices) {
    UninitializedVector<float> staged(blocks_->num_blocks() * kDenseBlockFloats);
    RETURN_IF_ERROR(Pull(step, false, blocks_->PullSlices(absl::MakeSpan(staged))));
    blocks_->UnstageWeights(staged, weights_.floats);
  }
  if (with_state) {
    const DenseBlocks& blocks = state_blocks();
    UninitializedVector<float> rows(blocks.num_blocks() * blocks.row_floats());
    RETURN_IF_ERROR(Pull(step, true, blocks.PullRowSlices(absl::MakeSpan(rows))));
    blocks.UnstageRows(rows, weights_.floats, state_.floats);
    CopyToDevice(state_, arenas_.state);
  }
  CopyToDevice(weights_, arenas_.weights);
  return absl::OkStatus();
}

std::vector<std::vector<PullSlice>> DenseParameters::PullShare(StepContext* context) const {
  if (home_ != Home::kServers) return {};
  UninitializedVector<float>& pulled = context->of_dense.Get<OfStep>().pulled;
  pulled.resize(blocks_->arena_floats());
  return blocks_->PullSlices(absl::MakeSpan(pulled));
}

absl::Status DenseParameters::Receive(StepContext* context) {
  if (home_ != Home::kServers) return Settle();
  blocks_->UnstageWeights(context->of_dense.Get<OfStep>().pulled, weights_.floats);
  CopyToDevice(weights_, arenas_.weights);
  return absl::OkStatus();
}

absl::Status DenseParameters::Settle() {
  if (owed_weights_ == kNoStep) return absl::OkStatus();
  RETURN_IF_ERROR(slices_->ReceiveWeights(owed_weights_, weights_.floats));
  owed_weights_ = kNoStep;
  CopyToDevice(weights_, arenas_.weights);
  return absl::OkStatus();
}

void DenseParameters::Update(StepContext* context) {
  if (home_ != Home::kHere) return;
  const OptimizerConfig& optimizer = blocks_->tensors()[0].layout.optimizer;
  auto* const bad_gradient = static_cast<int64_t*>(bad_gradient_->data());
  device_->FindNonFinite(arenas_.gradients.AsConst(), {bad_gradient, 1});
  device_->CopyToHost(&context->outcome()->bad_gradient, bad_gradient, sizeof(int64_t),
                      Stream::kCompute);
  device_->DenseUpdate(optimizer,
                       ScalarsForStep(optimizer, context->learning_rate, context->optimizer_step()),
                       arenas_.gradients.AsConst(), arenas_.weights, arenas_.state);
}

std::vector<std::vector<wire::PushSlice>> DenseParameters::PushShare(StepContext* context) const {
  OfStep& step = context->of_dense.Get<OfStep>();
  step.pushes = home_ == Home::kServers || context->writes_back;
  if (!step.pushes) return {};
  if (home_ == Home::kServers) {
    step.pushed.resize(blocks_->arena_floats());
    return blocks_->GradientSlices(step.pushed);
  }
  const DenseBlocks& blocks = state_blocks();
  step.pushed.resize(blocks.num_blocks() * blocks.row_floats());
  return blocks.AssignSlices(step.pushed);
}

absl::Status DenseParameters::Push(StepContext* context) {
  OfStep& step = context->of_dense.Get<OfStep>();
  switch (home_) {
    case Home::kHere:
      RETURN_IF_ERROR(context->transfers->finished->Wait());
      RETURN_IF_ERROR(CheckGradients(*context, context->outcome()->bad_gradient));
      if (!step.pushes) return absl::OkStatus();
      CopyToHost(arenas_.weights, weights_);
      CopyToHost(arenas_.state, state_);
      RETURN_IF_ERROR(device_->Synchronize());
      break;
    case Home::kSlices:
      RETURN_IF_ERROR(ExchangeSlices(context));
      if (!step.pushes) return absl::OkStatus();
      // A server applies the step when every rank has what it needs of it: so a rank may leave
      // then.
      RETURN_IF_ERROR(Settle());
      break;
    case Home::kServers:
      CopyToHost(arenas_.gradients, gradients_);
      RETURN_IF_ERROR(device_->Synchronize());
      blocks_->StageGradients(gradients_.floats, absl::MakeSpan(step.pushed));
      return session_->ReleaseWave(context->step(), PsSession::kLastWave);
  }
  state_blocks().StageRows(weights_.floats, state_.floats, absl::MakeSpan(step.pushed));
  return session_->ReleaseWave(context->step(), PsSession::kLastWave);
}

// Sends the step's gradients to the owners of the slices, and updates the own one.
absl::Status DenseParameters::ExchangeSlices(StepContext* context) {
  CopyToHost(arenas_.gradients, gradients_);
  RETURN_IF_ERROR(device_->Synchronize());
  RETURN_IF_ERROR(CheckGradients(*context, static_cast<int64_t>(FindNonFinite(gradients_.floats))));
  const Step step = context->step();
  const bool ends_data = context->behind.kind == StepBehind::Kind::kEnd;
  RETURN_IF_ERROR(slices_->PostGradients(step, ends_data, gradients_.floats));
  const OptimizerConfig& optimizer = blocks_->tensors()[0].layout.optimizer;
  RETURN_IF_ERROR(slices_->UpdateOwn(
      step, ScalarsForStep(optimizer, context->learning_rate, context->optimizer_step()),
      gradients_.floats, weights_.floats, state_.floats));
  owed_weights_ = step;
  return absl::OkStatus();
}

absl::Status DenseParameters::CheckGradients(const StepContext& context,
                                             int64_t bad_gradient) const {
  if (bad_gradient == arenas_.gradients.size) return absl::OkStatus();
  const DenseTable& tensor = blocks_->TensorOf(bad_gradient / kDenseBlockFloats);
  return absl::InvalidArgumentError(absl::StrCat("step ", context.step().value(),
                                                 ": a gradient of '", tensor.layout.name,
                                                 "' is not finite", kRateHint));
}

}  // namespace thermocline
