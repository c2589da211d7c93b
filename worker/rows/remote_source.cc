#include <algorithm>
#include <utility>

#include "common/base/completion.h"
#include "common/base/status_macros.h"
#include "kernels/transfer.h"
#include "worker/rows/embedding_source.h"

namespace thermocline {

struct RemoteSource::OfStep {
  std::vector<UploadArena::Array<float>> pulled;    // of each table [num_unique, dim]
  std::vector<DownloadArena::Array<float>> pushed;  // of each table [num_unique, dim]
  Completion fetched;
};

void RemoteSource::StartPull(const std::shared_ptr<StepContext>& context, PullWork pull,
                             const std::vector<std::vector<PullSlice>>& dense) {
  OfStep& step = context->of_source.Get<OfStep>();
  pull.slices.resize(options_.num_servers);
  step.pulled.resize(context->plan.tables.size());
  for (size_t t = 0; t < context->plan.tables.size(); ++t) {
    const TablePlan& plan = context->plan.tables[t];
    step.pulled[t] = context->upload().Reserve<float>(plan.keys.size() * options_.tables[t].dim);
    AddPullSlices(SharesOf(plan.id, plan), step.pulled[t].host, &pull.slices);
  }
  AddPullSlices(dense, &pull.slices);
  step.fetched.Reset();
  session_->Pull(std::move(pull), [&step, context](absl::Status status, Step through) {
    context->complete_through = through;
    step.fetched.Deliver(std::move(status));
  });
}

void RemoteSource::Fetch(const std::shared_ptr<StepContext>& context,
                         const std::vector<std::vector<PullSlice>>& dense) {
  PullWork pull;
  pull.step = context->step();
  pull.after_step = std::max(kNoStep, pull.step - 1 - options_.staleness_steps);
  StartPull(context, std::move(pull), dense);
}

void RemoteSource::FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) {
  PullWork pull;
  pull.kind = wire::PullKind::kRead;
  pull.step = step;
  StartPull(context, std::move(pull), {});
}

absl::Status RemoteSource::Await(StepContext* context) {
  OfStep& step = context->of_source.Get<OfStep>();
  RETURN_IF_ERROR(step.fetched.Wait());
  context->tables.resize(context->plan.tables.size());
  step.pushed.resize(context->plan.tables.size());
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const int dim = options_.tables[t].dim;
    const int32_t num_unique = context->plan.tables[t].num_unique();
    const DeviceSpan<const float> rows = step.pulled[t].device;
    // Only read.
    context->tables[t].rows = FloatMatrix(const_cast<float*>(rows.data), num_unique, dim);
    step.pushed[t] = context->download().Add<float>(rows.size);
    context->tables[t].gradients = FloatMatrix(step.pushed[t].device.data, num_unique, dim);
  }
  SendUploads(device_, context);
  return absl::OkStatus();
}

void RemoteSource::Update(StepContext* context) { context->download().Send(Stream::kCompute); }

absl::Status RemoteSource::Push(const std::shared_ptr<StepContext>& context,
                                std::vector<std::vector<wire::PushSlice>> dense) {
  const OfStep& step = context->of_source.Get<OfStep>();
  PushWork push;
  push.step = context->step();
  push.learning_rate = context->learning_rate;
  push.waves.emplace_back(options_.num_servers);
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const TablePlan& plan = context->plan.tables[t];
    AddPushSlices(SharesOf(plan.id, plan), wire::PushKind::kGradient, plan.counts,
                  step.pushed[t].host, &push.waves[0]);
  }
  if (!dense.empty()) push.waves.push_back(std::move(dense));
  session_->StartPush(std::move(push), [context](const absl::Status&) {});
  return session_->ReleaseWave(context->step(), 0);
}

absl::Status RemoteSource::FinishPush(StepContext*) { return absl::OkStatus(); }

}  // namespace thermocline
