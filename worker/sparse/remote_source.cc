#include "worker/sparse/remote_source.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "common/uninitialized_vector.h"
#include "worker/sparse/key_shares.h"

namespace thermocline {

RemoteSource::RemoteSource(const RemoteSourceOptions& options, const DenseBlocks* dense_blocks,
                           PsSession* session, Device* device)
    : options_(options),
      session_(session),
      device_(device),
      dense_(dense_blocks, session, options.num_workers == 1) {}

RemoteSource::~RemoteSource() { Drain().IgnoreError(); }

void RemoteSource::StartPull(const std::shared_ptr<StepWork>& work, PullWork pull,
                             bool with_dense) {
  pull.slices.resize(options_.num_servers);
  work->pulled.resize(work->plan.tables.size());
  for (size_t t = 0; t < work->plan.tables.size(); ++t) {
    const TablePlan& plan = work->plan.tables[t];
    work->pulled[t] = work->upload().Reserve<float>(plan.keys.size() * options_.tables[t].dim);
    AddPullSlices(SharesOf(plan.id, plan), work->pulled[t].host, &pull.slices);
  }
  work->dense_rows.clear();
  if (with_dense) dense_.AddToPull(work.get(), &pull);
  work->fetched.Reset();
  under_way_.Begin();
  session_->Pull(std::move(pull), [this, work = work](absl::Status status, Step through) mutable {
    work->complete_through = through;
    work->fetched.Deliver(status);
    work.reset();
    under_way_.End(status);
  });
}

void RemoteSource::Fetch(const std::shared_ptr<StepWork>& work) {
  PullWork pull;
  pull.step = work->step();
  pull.after_step = std::max(kNoStep, pull.step - 1 - options_.staleness_steps);
  StartPull(work, std::move(pull), !owns_dense());
}

void RemoteSource::FetchForEvaluation(const std::shared_ptr<StepWork>& work, Step step,
                                      bool with_dense) {
  PullWork pull;
  pull.kind = wire::PullKind::kRead;
  pull.step = step;
  StartPull(work, std::move(pull), with_dense);
}

absl::Status RemoteSource::Await(StepWork* work, const DenseArenas& dense) {
  RETURN_IF_ERROR(work->fetched.Wait());
  if (!work->dense_rows.empty()) dense_.TakePulled(*work, dense);
  work->tables.resize(work->plan.tables.size());
  work->pushed.resize(work->plan.tables.size());
  for (size_t t = 0; t < work->tables.size(); ++t) {
    const int dim = options_.tables[t].dim;
    const int32_t num_unique = work->plan.tables[t].num_unique();
    const DeviceSpan<const float> rows = work->pulled[t].device;
    // Nobody writes to these rows.
    work->tables[t].rows = FloatMatrix(const_cast<float*>(rows.data), num_unique, dim);
    work->pushed[t] = work->download().Add<float>(rows.size);
    work->tables[t].gradients = FloatMatrix(work->pushed[t].device.data, num_unique, dim);
  }
  SendUploads(device_, work);
  return absl::OkStatus();
}

void RemoteSource::Update(StepWork* work, float) { work->download().Send(Stream::kCompute); }

absl::Status RemoteSource::PushEmbeddings(const std::shared_ptr<StepWork>& work,
                                          float learning_rate, bool write_back) {
  PushWork push;
  push.first_step = push.last_step = work->step();
  push.learning_rate = learning_rate;
  push.waves.emplace_back(options_.num_servers);
  for (size_t t = 0; t < work->tables.size(); ++t) {
    const TablePlan& plan = work->plan.tables[t];
    AddPushSlices(SharesOf(plan.id, plan), wire::PushKind::kGradient, plan.counts,
                  work->pushed[t].host, &push.waves[0]);
  }
  dense_.AddToPush(work.get(), write_back, &push);
  under_way_.Begin();
  session_->StartPush(std::move(push), [this, work = work](absl::Status status) mutable {
    work.reset();
    under_way_.End(status);
  });
  return session_->ReleaseWave(work->step(), 0);
}

absl::Status RemoteSource::PushDense(const std::shared_ptr<StepWork>& work,
                                     const DenseArenas& dense) {
  return dense_.Release(work.get(), dense);
}

absl::Status RemoteSource::LoadDense(Step step, const DenseArenas& dense) {
  UninitializedVector<float> rows;
  under_way_.Begin();
  dense_.PullRows(step, &rows, [this](absl::Status status, Step) { under_way_.End(status); });
  RETURN_IF_ERROR(Drain());
  dense_.TakeRows(rows, dense);
  return absl::OkStatus();
}

absl::Status RemoteSource::Drain() { return under_way_.Drain(); }

void RemoteSource::Cancel(const absl::Status& reason) { session_->Fail(reason); }

}  // namespace thermocline
