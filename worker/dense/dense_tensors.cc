#include "worker/dense/dense_tensors.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"

namespace thermocline {

namespace {

// Adds what `more` has for each server.
template <typename Slices>
void Append(const Slices& more, Slices* slices) {
  for (size_t server = 0; server < more.size(); ++server) {
    (*slices)[server].insert((*slices)[server].end(), more[server].begin(), more[server].end());
  }
}

}  // namespace

DenseTensors::DenseTensors(const DenseBlocks* blocks, const DenseArenas& arenas,
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
      gradients_(MakeHostCopy(arenas.gradients)),
      copied_(device->MakeEvent()) {
  CHECK_EQ(arenas.weights.size, blocks->arena_floats());
}

DenseTensors::HostCopy DenseTensors::MakeHostCopy(DeviceSpan<float> span) const {
  if (device_->is_host_memory()) return {nullptr, absl::MakeSpan(span.data, span.size)};
  HostCopy copy;
  copy.buffer = device_->AllocateHost(sizeof(float) * span.size);
  copy.floats = absl::MakeSpan(copy.buffer->floats(), span.size);
  return copy;
}

void DenseTensors::CopyToHost(DeviceSpan<float> from, const HostCopy& to) {
  const size_t bytes = sizeof(float) * from.size;
  if (device_->is_host_memory()) return device_->copies().AddFromDevice(bytes);
  device_->CopyToHost(to.buffer->data(), from.data, bytes, Stream::kCompute);
}

void DenseTensors::CopyToDevice(const HostCopy& from, DeviceSpan<float> to) {
  const size_t bytes = sizeof(float) * to.size;
  if (device_->is_host_memory()) return device_->copies().AddToDevice(bytes);
  device_->CopyToDevice(to.data, from.buffer->data(), bytes, Stream::kCompute);
}

const DenseBlocks& DenseTensors::state_blocks() const {
  return home_ == Home::kSlices ? slices_->own() : *blocks_;
}

void DenseTensors::Initialize(uint64_t seed) {
  blocks_->Initialize(seed, weights_.floats, state_.floats);
  CopyToDevice(weights_, arenas_.weights);
  CopyToDevice(state_, arenas_.state);
}

void DenseTensors::Load(Step step, bool with_state, StepTasks* tasks) {
  loads_.Begin(blocks_->num_servers());
  const auto add = [&](StepPulls::Kind kind, const PullsByServer& slices) {
    PullWork& pull = loads_.work(kind);
    pull.kind = wire::PullKind::kRead;
    pull.step = step;
    Append(slices, &pull.slices);
  };
  if (!with_state || home_ == Home::kSlices) {
    loaded_weights_.resize(blocks_->arena_floats());
    add(StepPulls::kLatest, blocks_->PullSlices(absl::MakeSpan(loaded_weights_)));
  }
  if (with_state) {
    const DenseBlocks& blocks = state_blocks();
    loaded_rows_.resize(blocks.num_blocks() * blocks.row_floats());
    add(StepPulls::kWithState, blocks.PullRowSlices(absl::MakeSpan(loaded_rows_)));
  }
  loads_.Start(session_, step - 1, nullptr);
  tasks->After(StepWait::For(&loads_), [this, with_state] { return TakeLoaded(with_state); });
}

absl::Status DenseTensors::TakeLoaded(bool with_state) {
  RETURN_IF_ERROR(loads_.status());
  if (!with_state || home_ == Home::kSlices) {
    blocks_->UnstageWeights(loaded_weights_, weights_.floats);
  }
  if (with_state) {
    state_blocks().UnstageRows(loaded_rows_, weights_.floats, state_.floats);
    CopyToDevice(state_, arenas_.state);
  }
  CopyToDevice(weights_, arenas_.weights);
  loaded_weights_ = loaded_rows_ = {};
  return absl::OkStatus();
}

void DenseTensors::AddPulls(StepContext* context) const {
  if (home_ != Home::kServers) return;
  UninitializedVector<float>& pulled = context->dense_transfers.pulled;
  pulled.resize(blocks_->arena_floats());
  Append(blocks_->PullSlices(absl::MakeSpan(pulled)),
         &context->pulls.work(StepPulls::kLatest).slices);
}

void DenseTensors::Receive(StepContext* context, StepTasks* tasks) {
  if (home_ != Home::kServers) return Settle(tasks);
  tasks->After(StepWait::For(&context->pulls), [this, context] {
    blocks_->UnstageWeights(context->dense_transfers.pulled, weights_.floats);
    CopyToDevice(weights_, arenas_.weights);
    return absl::OkStatus();
  });
}

void DenseTensors::Settle(StepTasks* tasks) {
  if (owed_weights_ == kNoStep) return;
  tasks->After(StepWait::For({owed_weights_, Phase::kDenseWeights}),
               [this] { return ReceiveSlices(); });
}

absl::Status DenseTensors::ReceiveSlices() {
  RETURN_IF_ERROR(slices_->ReceiveWeights(owed_weights_, weights_.floats));
  owed_weights_ = kNoStep;
  CopyToDevice(weights_, arenas_.weights);
  return absl::OkStatus();
}

void DenseTensors::Update(StepContext* context) {
  if (home_ != Home::kHere) return;
  const OptimizerConfig& optimizer = blocks_->optimizer();
  auto* const bad_gradient = static_cast<int64_t*>(bad_gradient_->data());
  device_->FindNonFinite(arenas_.gradients.AsConst(), {bad_gradient, 1});
  device_->CopyToHost(&context->outcome()->bad_gradient, bad_gradient, sizeof(int64_t),
                      Stream::kCompute);
  device_->DenseUpdate(optimizer,
                       ScalarsForStep(optimizer, context->learning_rate, context->optimizer_step()),
                       arenas_.gradients.AsConst(), arenas_.weights, arenas_.state);
}

void DenseTensors::AddPush(StepContext* context, StepTasks*) {
  DenseTransfers& step = context->dense_transfers;
  step.pushes = home_ == Home::kServers || context->writes_back;
  if (!step.pushes) return;
  std::vector<PushesByServer>& waves = context->push.work.waves;
  if (home_ == Home::kServers) {
    step.pushed.resize(blocks_->arena_floats());
    waves.push_back(blocks_->GradientSlices(step.pushed));
    return;
  }
  const DenseBlocks& blocks = state_blocks();
  step.pushed.resize(blocks.num_blocks() * blocks.row_floats());
  waves.push_back(blocks.AssignSlices(step.pushed));
}

void DenseTensors::FinishPush(StepContext* context, StepTasks* tasks) {
  if (home_ == Home::kHere) {
    tasks->After(StepWait::For(context->transfers->finished.get()), [this, context, tasks] {
      RETURN_IF_ERROR(CheckGradients(*context, context->outcome()->bad_gradient));
      if (!context->dense_transfers.pushes) return absl::OkStatus();
      CopyToHost(arenas_.weights, weights_);
      CopyToHost(arenas_.state, state_);
      device_->Record(Stream::kCompute, copied_.get());
      tasks->After(StepWait::For(copied_.get()), [this, context] { return Release(context); });
      return absl::OkStatus();
    });
    return;
  }
  CopyToHost(arenas_.gradients, gradients_);
  device_->Record(Stream::kCompute, copied_.get());
  tasks->After(StepWait::For(copied_.get()), [this, context, tasks] {
    if (home_ == Home::kServers) return Release(context);
    return ExchangeSlices(context, tasks);
  });
}

// Sends the step's gradients to the owners of the slices, and updates the own one.
absl::Status DenseTensors::ExchangeSlices(StepContext* context, StepTasks* tasks) {
  RETURN_IF_ERROR(CheckGradients(*context, static_cast<int64_t>(FindNonFinite(gradients_.floats))));
  const Step step = context->step();
  const bool ends_data = context->behind.kind == StepBehind::Kind::kEnd;
  RETURN_IF_ERROR(slices_->PostGradients(step, ends_data, gradients_.floats));
  tasks->After(StepWait::For({step, Phase::kDenseGradients}), [this, context, step] {
    const OptimizerConfig& optimizer = blocks_->optimizer();
    RETURN_IF_ERROR(slices_->UpdateOwn(
        step, ScalarsForStep(optimizer, context->learning_rate, context->optimizer_step()),
        gradients_.floats, weights_.floats, state_.floats));
    owed_weights_ = step;
    return absl::OkStatus();
  });
  if (!context->dense_transfers.pushes) return absl::OkStatus();
  // A server applies the step when every rank has what it needs of it: so a rank may leave then.
  tasks->After(StepWait::For({step, Phase::kDenseWeights}), [this, context] {
    RETURN_IF_ERROR(ReceiveSlices());
    return Release(context);
  });
  return absl::OkStatus();
}

// The host has what the step pushes.
absl::Status DenseTensors::Release(StepContext* context) {
  UninitializedVector<float>& pushed = context->dense_transfers.pushed;
  if (home_ == Home::kServers) {
    blocks_->StageGradients(gradients_.floats, absl::MakeSpan(pushed));
  } else {
    state_blocks().StageRows(weights_.floats, state_.floats, absl::MakeSpan(pushed));
  }
  return session_->ReleaseWave(context->step(), PsSession::kLastWave);
}

absl::Status DenseTensors::CheckGradients(const StepContext& context, int64_t bad_gradient) const {
  if (bad_gradient == arenas_.gradients.size) return absl::OkStatus();
  const DenseTable& tensor = blocks_->TensorOf(bad_gradient / kDenseBlockFloats);
  return absl::InvalidArgumentError(absl::StrCat("step ", context.step().value(),
                                                 ": a gradient of '", tensor.layout.name,
                                                 "' is not finite", kRateHint));
}

}  // namespace thermocline
