#include "worker/source/dense_parameters.h"

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
                                 uint32_t num_workers, Device* device, PsSession* session)
    : blocks_(blocks),
      arenas_(arenas),
      updated_here_(num_workers == 1),
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

absl::Status DenseParameters::CopyToHost() {
  if (!device_->is_host_memory()) {
    const auto copy = [this](DeviceSpan<float> from, const HostCopy& to) {
      device_->CopyToHost(to.buffer->data(), from.data, sizeof(float) * from.size,
                          Stream::kCompute);
    };
    copy(arenas_.weights, weights_);
    copy(arenas_.state, state_);
    copy(arenas_.gradients, gradients_);
  }
  return device_->Synchronize();
}

void DenseParameters::CopyToDevice() {
  if (device_->is_host_memory()) return;
  const auto copy = [this](const HostCopy& from, DeviceSpan<float> to) {
    device_->CopyToDevice(to.data, from.buffer->data(), sizeof(float) * to.size, Stream::kCompute);
  };
  copy(weights_, arenas_.weights);
  copy(state_, arenas_.state);
}

void DenseParameters::Initialize(uint64_t seed) {
  blocks_->Initialize(seed, weights_.floats, state_.floats);
  CopyToDevice();
}

absl::Status DenseParameters::Load(Step step, bool with_state) {
  const int64_t row_floats = with_state ? blocks_->row_floats() : kDenseBlockFloats;
  UninitializedVector<float> rows(blocks_->num_blocks() * row_floats);
  PullWork pull;
  pull.kind = wire::PullKind::kRead;
  pull.step = step;
  pull.with_state = with_state;
  pull.slices = with_state ? blocks_->PullRowSlices(absl::MakeSpan(rows))
                           : blocks_->PullSlices(absl::MakeSpan(rows));
  const auto loaded = std::make_shared<Completion>();
  session_->Pull(std::move(pull),
                 [loaded](absl::Status status, Step) { loaded->Deliver(std::move(status)); });
  RETURN_IF_ERROR(loaded->Wait());
  if (with_state) {
    blocks_->UnstageRows(rows, weights_.floats, state_.floats);
  } else {
    blocks_->UnstageWeights(rows, weights_.floats);
  }
  CopyToDevice();
  return absl::OkStatus();
}

std::vector<std::vector<PullSlice>> DenseParameters::PullShare(StepContext* context) const {
  if (updated_here_) return {};
  UninitializedVector<float>& pulled = context->of_dense.Get<OfStep>().pulled;
  pulled.resize(blocks_->arena_floats());
  return blocks_->PullSlices(absl::MakeSpan(pulled));
}

void DenseParameters::Receive(StepContext* context) {
  if (updated_here_) return;
  blocks_->UnstageWeights(context->of_dense.Get<OfStep>().pulled, weights_.floats);
  CopyToDevice();
}

void DenseParameters::Update(StepContext* context) {
  if (!updated_here_) return;
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
  step.pushes = !updated_here_ || context->writes_back;
  if (!step.pushes) return {};
  if (!updated_here_) {
    step.pushed.resize(blocks_->arena_floats());
    return blocks_->GradientSlices(step.pushed);
  }
  step.pushed.resize(blocks_->num_blocks() * blocks_->row_floats());
  return blocks_->AssignSlices(step.pushed);
}

absl::Status DenseParameters::Push(StepContext* context) {
  OfStep& step = context->of_dense.Get<OfStep>();
  if (updated_here_) {
    RETURN_IF_ERROR(context->transfers->finished->Wait());
    RETURN_IF_ERROR(CheckGradients(*context, context->outcome()->bad_gradient));
  }
  if (!step.pushes) return absl::OkStatus();
  RETURN_IF_ERROR(CopyToHost());
  if (updated_here_) {
    blocks_->StageRows(weights_.floats, state_.floats, absl::MakeSpan(step.pushed));
  } else {
    blocks_->StageGradients(gradients_.floats, absl::MakeSpan(step.pushed));
  }
  return session_->ReleaseWave(context->step(), PsSession::kLastWave);
}

absl::Status DenseParameters::CheckGradients(const StepContext& context,
                                             int64_t bad_gradient) const {
  if (bad_gradient == arenas_.gradients.size) return absl::OkStatus();
  int64_t block = bad_gradient / kDenseBlockFloats;
  for (const DenseTable& tensor : blocks_->tensors()) {
    if (block < tensor.num_blocks()) {
      return absl::InvalidArgumentError(absl::StrCat("step ", context.step().value(),
                                                     ": a gradient of '", tensor.layout.name,
                                                     "' is not finite", kRateHint));
    }
    block -= tensor.num_blocks();
  }
  return absl::InternalError("a gradient beyond the last tensor is not finite");
}

}  // namespace thermocline
