// The route of several workers with one cache: a worker asks other ranks for rows, and owns some
// itself.
//
//   AddPulls    pulls the rows of this rank's batch that no owner holds, and those that its owner
//               loads
//   Place       the owner sends each rank the held rows that it asked for; this rank takes its own
//   Push        sends each owner this rank's gradients of held rows, and the servers the others
//   FinishPush  the owner adds the ranks' gradients in rank order, as a server does, updates its
//               rows, and sends the servers what it writes
//
// Waits follow the order of the exchange's phases: nothing that this rank owes for an earlier phase
// is left to do when it waits. All of it is exact: a key is held or not for all ranks alike in a
// step, and a pull that names the last push of its keys is answered once every rank's is applied.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "worker/rows/row_gradients.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/row_route.h"

namespace thermocline {
namespace {

// The gradients of pulled rows and evicted rows are wave 0 of a push; these come once the rows are
// updated.
constexpr size_t kUpdatedRowsWave = 1;

size_t BytesOf(size_t rows, int dim) { return sizeof(float) * rows * dim; }

// Memory for what owners copy between host and device, as much as was ever in use together. A step
// whose push is not acknowledged yet may outlive the route, and keeps it.
class OwnerTransfers {
 public:
  explicit OwnerTransfers(Device* device) : device_(device) {}

  StepTransfers* Take() {
    StepTransfers* taken = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (!idle_.empty()) {
        taken = idle_.back();
        idle_.pop_back();
      }
    }
    if (taken == nullptr) taken = all_.emplace_back(std::make_unique<StepTransfers>(device_)).get();
    largest_.Cover(*taken);
    taken->upload.Clear(largest_.upload);
    taken->download.Clear(largest_.download);
    return taken;
  }
  // On any thread.
  void Return(StepTransfers* taken) {
    absl::MutexLock lock(&mutex_);
    idle_.push_back(taken);
  }

 private:
  Device* const device_;
  std::vector<std::unique_ptr<StepTransfers>> all_;
  TransferSizes largest_;
  absl::Mutex mutex_;
  std::vector<StepTransfers*> idle_ ABSL_GUARDED_BY(mutex_);
};

class OwnerRoute : public RowRoute {
 public:
  explicit OwnerRoute(const RouteParts& parts)
      : parts_(parts), transfers_(std::make_shared<OwnerTransfers>(parts.device)) {}

  void AddPulls(StepContext* context) override {
    context->owner_transfers = transfers_->Take();
    parts_.slabs->AddPulls(context);
  }
  absl::Status Place(StepContext* context, StepTasks* tasks) override;
  void Update(StepContext* context) override { context->download().Send(Stream::kCompute); }
  absl::Status Push(StepContext* context, StepTasks* tasks) override;
  void FinishPush(StepContext* context, StepTasks* tasks) override;

 private:
  size_t num_tables() const { return parts_.options.tables.size(); }
  int DimOf(size_t t) const { return parts_.options.tables[t].dim; }
  DeviceEvent* RecordFinished(const StepContext& context) const {
    DeviceEvent* const finished = context.owner_transfers->finished.get();
    parts_.device->Record(Stream::kCompute, finished);
    return finished;
  }
  absl::Status SendRows(const StepContext& context);
  absl::Status TakeRows(StepContext* context);
  void PlaceOperands(StepContext* context);
  absl::Status SendGradients(const StepContext& context);
  void PackPulled(StepContext* context);
  absl::Status MergeGradients(StepContext* context);
  void UpdateHeld(StepContext* context);

  const RouteParts parts_;
  const std::shared_ptr<OwnerTransfers> transfers_;
  std::vector<RowCopy> written_ahead_;  // of the step at hand; to be queued after the update
};

// As an owner: brings the slabs to what the plan says, and reads the rows that ranks asked for.
absl::Status OwnerRoute::Place(StepContext* context, StepTasks* tasks) {
  context->complete_through = context->step() - 1;
  std::vector<RowCopy> gathers, scatters, reads;
  parts_.slabs->Place(context, &gathers, &scatters);
  StepTransfers& transfers = *context->owner_transfers;
  for (size_t t = 0; t < num_tables(); ++t) {
    TableTransfers& table = context->table_transfers[t];
    const UninitializedVector<int32_t>& held_rows = context->row_plan.tables[t].held_rows;
    const auto held = static_cast<int32_t>(held_rows.size());
    table.requested_rows = transfers.upload.Add(absl::MakeConstSpan(held_rows));
    table.read = transfers.download.Add<float>(size_t{1} * held * DimOf(t));
    if (held == 0) continue;
    reads.push_back({parts_.slabs->SlabOf(t).Rows(DimOf(t)), table.requested_rows,
                     FloatMatrix(table.read.device.data, held, DimOf(t))});
  }
  transfers.upload.Send(Stream::kCompute);
  parts_.device->GatherRows(gathers);
  parts_.device->ScatterRows(scatters);
  parts_.device->GatherRows(reads);
  transfers.download.Send(Stream::kCompute);
  tasks->After(StepWait::For(RecordFinished(*context)),
               [this, context] { return SendRows(*context); });
  tasks->After(StepWait::For({context->step(), Phase::kRows}), [this, context] {
    RETURN_IF_ERROR(TakeRows(context));
    PlaceOperands(context);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

// Sends each rank the rows that it asked for.
absl::Status OwnerRoute::SendRows(const StepContext& context) {
  std::vector<Block> blocks(parts_.exchange->num_ranks());
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    size_t bytes = 0;
    for (size_t t = 0; t < num_tables(); ++t) {
      bytes += BytesOf(context.row_plan.tables[t].requested.positions[rank].size(), DimOf(t));
    }
    const auto block = std::make_shared<BlockBytes>(bytes);
    uint8_t* to = block->data();
    for (size_t t = 0; t < num_tables(); ++t) {
      const size_t row_bytes = BytesOf(1, DimOf(t));
      const float* const read = context.table_transfers[t].read.host.data();
      for (const int32_t position : context.row_plan.tables[t].requested.positions[rank]) {
        std::memcpy(to, read + size_t{1} * position * DimOf(t), row_bytes);
        to += row_bytes;
      }
    }
    blocks[rank].bytes = block;
  }
  return parts_.exchange->Post({context.step(), Phase::kRows}, std::move(blocks));
}

// Puts the rows that the owners send behind those pulled.
absl::Status OwnerRoute::TakeRows(StepContext* context) {
  const BlockId id = {context->step(), Phase::kRows};
  ASSIGN_OR_RETURN(const ReceivedBlocks blocks, parts_.exchange->Receive(id));
  for (uint32_t owner = 0; owner < blocks.size(); ++owner) {
    const absl::Span<const uint8_t> block = blocks.from(WorkerRank(owner));
    size_t expected = 0;
    for (size_t t = 0; t < num_tables(); ++t) {
      expected += BytesOf(context->row_plan.tables[t].CountOf(owner), DimOf(t));
    }
    RETURN_IF_ERROR(CheckSize(id, owner, block.size(), expected, parts_.exchange));
    const uint8_t* from = block.data();
    for (size_t t = 0; t < num_tables(); ++t) {
      const StepPlan::Table& table = context->row_plan.tables[t];
      const size_t bytes = BytesOf(table.CountOf(owner), DimOf(t));
      if (bytes == 0) continue;
      const size_t first = table.pulled.keys.size() + table.owner_begin[owner];
      std::memcpy(context->table_transfers[t].staged.host.data() + first * DimOf(t), from, bytes);
      from += bytes;
    }
  }
  return absl::OkStatus();
}

void OwnerRoute::PlaceOperands(StepContext* context) {
  context->tables.resize(num_tables());
  for (size_t t = 0; t < num_tables(); ++t) {
    context->tables[t].rows = StagedRows(*context, t, DimOf(t));
  }
  PlaceGradients(parts_.options, context);
  SendUploads(parts_.device, context);
}

absl::Status OwnerRoute::Push(StepContext* context, StepTasks*) {
  RETURN_IF_ERROR(SendGradients(*context));
  PackPulled(context);
  // Which rows the step writes depends on its keys alone.
  written_ahead_.clear();
  for (size_t t = 0; t < num_tables(); ++t) {
    const StepPlan::Table& table = context->row_plan.tables[t];
    parts_.slabs->NoteUpdates(t, table.held_rows, table.requested.counts);
  }
  parts_.slabs->WriteAhead(context, &written_ahead_);
  std::vector<PushesByServer>& waves = context->push.work.waves;
  PushPulled(parts_.options, context);
  parts_.slabs->AddEvicted(*context, &waves[0]);
  waves.emplace_back(parts_.options.num_servers);
  parts_.slabs->AddWrittenAhead(*context, &waves[kUpdatedRowsWave]);
  context->push.kept.emplace_back(
      context->owner_transfers,
      [idle = transfers_](StepTransfers* transfers) { idle->Return(transfers); });
  return absl::OkStatus();
}

// Sends the owners the gradients of the rows that they hold.
absl::Status OwnerRoute::SendGradients(const StepContext& context) {
  std::vector<Block> blocks(parts_.exchange->num_ranks());
  for (uint32_t owner = 0; owner < blocks.size(); ++owner) {
    size_t floats = 0;
    for (size_t t = 0; t < num_tables(); ++t) {
      floats += size_t{1} * context.row_plan.tables[t].CountOf(owner) * DimOf(t);
    }
    const auto block = std::make_shared<BlockBytes>(sizeof(float) * floats);
    auto* to = reinterpret_cast<float*>(block->data());
    for (size_t t = 0; t < num_tables(); ++t) {
      const StepPlan::Table& table = context.row_plan.tables[t];
      const size_t dim = DimOf(t);
      const auto asked =
          absl::MakeConstSpan(table.asked).subspan(table.owner_begin[owner], table.CountOf(owner));
      float* const first = to;
      for (const int32_t u : asked) {
        const float* const gradient = context.table_transfers[t].gradients.host.data() + u * dim;
        to = std::copy(gradient, gradient + dim, to);
      }
      RETURN_IF_ERROR(CheckFinite(context.step(), parts_.options.tables[t],
                                  absl::MakeConstSpan(first, to - first), "the gradient",
                                  [&](size_t i) { return context.plan.tables[t].keys[asked[i]]; }));
    }
    blocks[owner].bytes = block;
  }
  return parts_.exchange->Post({context.step(), Phase::kGradients}, std::move(blocks));
}

// The gradients of pulled keys come to the front, server by server. The others are sent already.
void OwnerRoute::PackPulled(StepContext* context) {
  for (size_t t = 0; t < num_tables(); ++t) {
    const size_t dim = DimOf(t);
    float* const gradients = context->table_transfers[t].gradients.host.data();
    float* to = gradients;
    for (const int32_t u : context->row_plan.tables[t].pulled_positions) {
      std::memmove(to, gradients + u * dim, sizeof(float) * dim);
      to += dim;
    }
  }
}

void OwnerRoute::FinishPush(StepContext* context, StepTasks* tasks) {
  tasks->After(StepWait::For({context->step(), Phase::kGradients}), [this, context, tasks] {
    RETURN_IF_ERROR(MergeGradients(context));
    UpdateHeld(context);
    tasks->After(StepWait::For(RecordFinished(*context)), [this, context] {
      return parts_.session->ReleaseWave(context->step(), kUpdatedRowsWave);
    });
    return absl::OkStatus();
  });
}

absl::Status OwnerRoute::MergeGradients(StepContext* context) {
  const BlockId id = {context->step(), Phase::kGradients};
  ASSIGN_OR_RETURN(const ReceivedBlocks gradients, parts_.exchange->Receive(id));
  std::vector<absl::Span<const float>> left;  // [ranks] of its block
  for (uint32_t rank = 0; rank < gradients.size(); ++rank) {
    const absl::Span<const uint8_t> block = gradients.from(WorkerRank(rank));
    size_t expected = 0;
    for (size_t t = 0; t < num_tables(); ++t) {
      expected += BytesOf(context->row_plan.tables[t].requested.positions[rank].size(), DimOf(t));
    }
    RETURN_IF_ERROR(CheckSize(id, rank, block.size(), expected, parts_.exchange));
    left.emplace_back(reinterpret_cast<const float*>(block.data()), block.size() / sizeof(float));
  }
  std::vector<absl::Span<const float>> of_table(left.size());
  for (size_t t = 0; t < num_tables(); ++t) {
    const RequestedKeys& requested = context->row_plan.tables[t].requested;
    for (size_t rank = 0; rank < left.size(); ++rank) {
      const size_t floats = requested.positions[rank].size() * DimOf(t);
      of_table[rank] = left[rank].subspan(0, floats);
      left[rank].remove_prefix(floats);
    }
    UploadArena::Array<float>& merged = context->table_transfers[t].merged;
    merged = context->owner_transfers->upload.Reserve<float>(requested.keys.size() * DimOf(t));
    parts_.options.merge(requested, of_table, DimOf(t), merged.host);
    RETURN_IF_ERROR(CheckFinite(context->step(), parts_.options.tables[t], merged.host,
                                "the sum of all workers' gradients",
                                [&](size_t i) { return requested.keys[i]; }));
  }
  return absl::OkStatus();
}

// As an owner: one update of each row held, with the sum of the ranks' gradients.
void OwnerRoute::UpdateHeld(StepContext* context) {
  std::vector<RowUpdateGroup> updates;
  for (size_t t = 0; t < num_tables(); ++t) {
    const TableTransfers& table = context->table_transfers[t];
    // The device only reads the gradients.
    const Matrix merged = FloatMatrix(const_cast<float*>(table.merged.device.data),
                                      static_cast<int32_t>(table.requested_rows.size), DimOf(t));
    parts_.slabs->AppendUpdatesOf(t, *context, merged, table.requested_rows, &updates);
  }
  context->owner_transfers->upload.Send(Stream::kCompute);
  parts_.device->SparseUpdate(updates);
  parts_.device->GatherRows(written_ahead_);
  context->owner_transfers->download.Send(Stream::kCompute);
}

}  // namespace

std::unique_ptr<RowRoute> MakeOwnerRoute(const RouteParts& parts) {
  return std::make_unique<OwnerRoute>(parts);
}

}  // namespace thermocline
