#include "server/core/step_applier.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "common/math/sparse_optimizer.h"

namespace thermocline {
namespace {

// A piece reads the keys of all others, too, which costs about a nanosecond a key; to merge one and
// to update its row, a hundred.
constexpr size_t kMinKeysPerPiece = 8192;

}  // namespace

StepApplier::StepApplier(TableSet* tables, int num_threads, int64_t steps_before)
    : tables_(tables),
      threads_(num_threads),
      steps_before_(steps_before),
      work_(tables->size()),
      oldest_kept_(tables->size()) {}

absl::Status StepApplier::Apply(absl::Span<const AssembledPush> pushes) {
  CHECK(!pushes.empty());
  StageTimer::Scope scope(&apply_timer_);
  const Step step = pushes[0].step;
  Collect(pushes);
  // First, so that a key that has a gradient in one push and none in another is admitted by all its
  // lookups.
  if (any_counted_) RETURN_IF_ERROR(CountLookups(step));
  RETURN_IF_ERROR(ApplyGradients(pushes[0].learning_rate, step));
  if (any_rows_) RETURN_IF_ERROR(AssignRows(step));
  threads_.ParallelFor(static_cast<int64_t>(tables_->size()),
                       [&](int64_t i, int) { tables_->at(i).table.Forget(step, oldest_kept_[i]); });
  return absl::OkStatus();
}

// Sorts the ranges of all chunks by table, without copying their content.
void StepApplier::Collect(absl::Span<const AssembledPush> pushes) {
  for (TableWork& work : work_) {
    work.shares.clear();
    work.counted.clear();
  }
  any_counted_ = any_rows_ = false;
  std::fill(oldest_kept_.begin(), oldest_kept_.end(), 0);
  for (size_t p = 0; p < pushes.size(); ++p) {
    for (const wire::PushChunk& chunk : pushes[p].chunks) {
      for (const wire::RowLimit& limit : chunk.row_limits) {
        oldest_kept_[tables_->Find(limit.table)] = limit.oldest_kept;
      }
      for (const wire::PushRange& range : chunk.tables) {
        if (range.count == 0) continue;
        const size_t position = tables_->Find(range.table);
        CHECK_LT(position, tables_->size());
        const GradientBlock block = {chunk.KeysOf(range), chunk.CountsOf(range),
                                     chunk.ValuesOf(range)};
        switch (range.kind) {
          case wire::PushKind::kCount:
            work_[position].counted.push_back(block);
            any_counted_ = true;
            break;
          case wire::PushKind::kAssign:
            ShareOf(position, p)->rows.push_back(block);
            any_rows_ = true;
            break;
          case wire::PushKind::kGradient:
            ShareOf(position, p)->gradients.push_back(block);
        }
        tables_->at(position).keys_pushed.fetch_add(range.count, std::memory_order_relaxed);
      }
    }
  }
}

StepApplier::Share* StepApplier::ShareOf(size_t position, size_t push) {
  std::vector<Share>& shares = work_[position].shares;
  if (shares.empty() || shares.back().push != push) shares.push_back(Share{push, {}, {}});
  return &shares.back();
}

// A table whose gradients come from one worker needs no merging: its blocks are tasks of their own,
// read where they lie. The others are cut into pieces where they are large.
std::vector<StepApplier::Task> StepApplier::PlanGradients() {
  std::vector<Task> tasks;
  for (size_t i = 0; i < work_.size(); ++i) {
    TableWork& work = work_[i];
    work.blocks.clear();
    int contributors = 0;
    size_t keys = 0;
    for (const Share& share : work.shares) {
      contributors += share.gradients.empty() ? 0 : 1;
      work.blocks.insert(work.blocks.end(), share.gradients.begin(), share.gradients.end());
      for (const GradientBlock& block : share.gradients) keys += block.keys.size();
    }
    if (contributors == 1) {
      for (const GradientBlock& block : work.blocks) tasks.push_back({i, &block, {}});
    } else if (contributors > 1) {
      const size_t most = static_cast<size_t>(threads_.num_threads());
      const uint32_t pieces =
          static_cast<uint32_t>(std::clamp<size_t>(keys / kMinKeysPerPiece, 1, most));
      if (work.merges.size() < pieces) work.merges.resize(pieces);
      for (uint32_t piece = 0; piece < pieces; ++piece) {
        tasks.push_back({i, nullptr, {piece, pieces}});
      }
    }
  }
  return tasks;
}

absl::Status StepApplier::CountLookups(Step step) {
  // Counts add up to the same in any order.
  std::vector<Task> tasks;
  for (size_t i = 0; i < work_.size(); ++i) {
    for (const GradientBlock& block : work_[i].counted) tasks.push_back({i, &block, {}});
  }
  return RunTasks(tasks.size(), [&](size_t t) {
    const GradientBlock& block = *tasks[t].block;
    return tables_->at(tasks[t].position).table.CountLookups(block.keys, block.counts, step);
  });
}

absl::Status StepApplier::ApplyGradients(float learning_rate, Step step) {
  const std::vector<Task> tasks = PlanGradients();
  return RunTasks(tasks.size(), [&](size_t t) {
    const Task& task = tasks[t];
    EmbeddingTable& table = tables_->at(task.position).table;
    const TraceSpan span("update table", step, {"table", table.layout().id.value()});
    const GradientBlock* block = task.block;
    if (block == nullptr) {
      StageTimer::Scope scope(&merge_timer_);
      TableWork& work = work_[task.position];
      GradientMerge& merge = work.merges[task.piece.index];
      merge.Run(work.blocks, table.layout().dim, task.piece);
      block = &merge.result();
    }
    const RowScalars scalars =
        ScalarsForStep(table.layout().row_optimizer(), learning_rate, step + steps_before_);
    return table.ApplyGradients(block->keys, block->counts, block->gradients, scalars, step);
  });
}

absl::Status StepApplier::AssignRows(Step step) {
  // Where several workers write one row back, the highest rank's row stays. So a table's blocks are
  // in one task.
  return RunTasks(work_.size(), [&](size_t position) -> absl::Status {
    EmbeddingTable& table = tables_->at(position).table;
    for (const Share& share : work_[position].shares) {
      for (const GradientBlock& block : share.rows) {
        RETURN_IF_ERROR(table.AssignRows(block.keys, block.counts, block.gradients, step));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status StepApplier::RunTasks(size_t num_tasks,
                                   const std::function<absl::Status(size_t)>& task) {
  absl::Mutex mutex;
  absl::Status first_error;
  threads_.ParallelFor(static_cast<int64_t>(num_tasks), [&](int64_t i, int) {
    absl::Status status = task(static_cast<size_t>(i));
    if (status.ok()) return;
    absl::MutexLock lock(&mutex);
    first_error.Update(std::move(status));
  });
  return first_error;
}

}  // namespace thermocline
