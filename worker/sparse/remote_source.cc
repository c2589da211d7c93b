#include "worker/sparse/remote_source.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "common/uninitialized_vector.h"

namespace thermocline {
namespace {

// Appends each server's slices to those of the same server.
template <typename Slice>
void Append(std::vector<std::vector<Slice>> more, std::vector<std::vector<Slice>>* slices) {
  for (size_t server = 0; server < more.size(); ++server) {
    for (Slice& slice : more[server]) (*slices)[server].push_back(slice);
  }
}

// Calls visit(table index, server, plan of the table) for each table and server that has keys.
template <typename Visit>
void ForEachShare(const BatchPlan& plan, uint32_t num_servers, Visit visit) {
  for (size_t table = 0; table < plan.tables.size(); ++table) {
    for (uint32_t server = 0; server < num_servers; ++server) {
      if (plan.tables[table].CountOf(ServerIndex(server)) == 0) continue;
      visit(table, ServerIndex(server), plan.tables[table]);
    }
  }
}

}  // namespace

RemoteSource::RemoteSource(const RemoteSourceOptions& options, const DenseBlocks* dense_blocks,
                           PsSession* session)
    : options_(options), dense_blocks_(dense_blocks), session_(session) {}

RemoteSource::~RemoteSource() { Drain().IgnoreError(); }

void RemoteSource::Begin() {
  absl::MutexLock lock(&mutex_);
  ++under_way_;
}

void RemoteSource::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  status_.Update(status);
  --under_way_;
}

void RemoteSource::StartPull(const std::shared_ptr<StepWork>& work, PullWork pull,
                             bool with_dense) {
  pull.slices.resize(options_.num_servers);
  ForEachShare(work->plan, options_.num_servers,
               [&](size_t table, ServerIndex server, const TablePlan& plan) {
                 const size_t dim = options_.table_dims[table];
                 pull.slices[server.value()].push_back(
                     {plan.id, plan.KeysOf(server),
                      absl::MakeSpan(work->rows[table])
                          .subspan(plan.begin_of(server) * dim, plan.CountOf(server) * dim)});
               });
  work->dense_rows.resize(with_dense ? dense_blocks_->arena_floats() : 0);
  if (with_dense) {
    Append(dense_blocks_->PullSlices(absl::MakeSpan(work->dense_rows)), &pull.slices);
  }
  work->fetched.Reset();
  Begin();
  session_->Pull(std::move(pull), [this, work = work](absl::Status status, Step through) mutable {
    work->complete_through = through;
    work->fetched.Deliver(status);
    work.reset();
    End(status);
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

absl::Status RemoteSource::Await(const StepWork& work, const DenseArenas& dense) {
  RETURN_IF_ERROR(work.fetched.Wait());
  if (!work.dense_rows.empty()) dense_blocks_->UnstageWeights(work.dense_rows, dense.weights);
  return absl::OkStatus();
}

RemoteSource::DensePush RemoteSource::DensePushOf(bool write_back) const {
  if (!owns_dense()) return DensePush::kGradients;
  return write_back ? DensePush::kWriteBack : DensePush::kNone;
}

absl::Status RemoteSource::PushEmbeddings(const std::shared_ptr<StepWork>& work,
                                          float learning_rate, bool write_back) {
  PushWork push;
  push.first_step = push.last_step = work->step();
  push.learning_rate = learning_rate;
  push.waves.emplace_back(options_.num_servers);
  ForEachShare(
      work->plan, options_.num_servers,
      [&](size_t table, ServerIndex server, const TablePlan& plan) {
        const size_t dim = options_.table_dims[table];
        push.waves[0][server.value()].push_back(
            {plan.id, wire::PushKind::kGradient, plan.KeysOf(server), plan.CountsOf(server),
             absl::MakeConstSpan(work->gradients[table])
                 .subspan(plan.begin_of(server) * dim, plan.CountOf(server) * dim)});
      });
  dense_push_ = DensePushOf(write_back);
  if (dense_push_ == DensePush::kGradients) {
    work->dense_values.resize(dense_blocks_->arena_floats());
    push.waves.push_back(dense_blocks_->GradientSlices(work->dense_values));
  } else if (dense_push_ == DensePush::kWriteBack) {
    work->dense_values.resize(dense_blocks_->num_blocks() * dense_blocks_->row_floats());
    push.waves.push_back(dense_blocks_->AssignSlices(work->dense_values));
  }
  Begin();
  session_->StartPush(std::move(push), [this, work = work](absl::Status status) mutable {
    work.reset();
    End(status);
  });
  return session_->ReleaseWave(work->step(), 0);
}

absl::Status RemoteSource::PushDense(const std::shared_ptr<StepWork>& work,
                                     const DenseArenas& dense) {
  if (dense_push_ == DensePush::kNone) return absl::OkStatus();
  if (dense_push_ == DensePush::kGradients) {
    dense_blocks_->StageGradients(dense.gradients, absl::MakeSpan(work->dense_values));
  } else {
    dense_blocks_->StageRows(dense.weights, dense.slots, absl::MakeSpan(work->dense_values));
  }
  return session_->ReleaseWave(work->step(), 1);
}

absl::Status RemoteSource::LoadDense(Step step, const DenseArenas& dense) {
  UninitializedVector<float> rows;
  rows.resize(dense_blocks_->num_blocks() * dense_blocks_->row_floats());
  PullWork pull;
  pull.kind = wire::PullKind::kRead;
  pull.step = step;
  pull.with_slots = true;
  pull.slices = dense_blocks_->PullRowSlices(absl::MakeSpan(rows));
  Begin();
  session_->Pull(std::move(pull), [this](absl::Status status, Step) { End(status); });
  RETURN_IF_ERROR(Drain());
  dense_blocks_->UnstageRows(rows, dense.weights, dense.slots);
  return absl::OkStatus();
}

absl::Status RemoteSource::Drain() {
  absl::MutexLock lock(&mutex_, absl::Condition(this, &RemoteSource::Idle));
  return status_;
}

void RemoteSource::Cancel(const absl::Status& reason) { session_->Fail(reason); }

}  // namespace thermocline
