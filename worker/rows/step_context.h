// One step on its way through a worker: batch, plans, rows, gradients, the memory in which they
// travel between host and device, and the pulls and the push that rows and dense parameters share.
// A few contexts are reused, so that their memory is allocated once.
#ifndef THERMOCLINE_WORKER_ROWS_STEP_CONTEXT_H_
#define THERMOCLINE_WORKER_ROWS_STEP_CONTEXT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "common/model/model_graph.h"
#include "kernels/device.h"
#include "kernels/trace_range.h"
#include "kernels/transfer.h"
#include "worker/data/batch.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/step_plan.h"
#include "worker/rows/step_pulls.h"

namespace thermocline {

// Where a step reads the rows of a table, and where it leaves the gradients of its distinct keys.
struct TableOperands {
  Matrix rows;       // [rows, dim] device: the row indices of the plan's features are rows of it
  Matrix gradients;  // [num_unique, dim] device, in the plan's staging order
  // [num_unique] in that order: 1, or 0 where the model made no gradient, so that the optimizer
  // must leave the row and its state as they are, and the row of `gradients` was not written.
  // Empty: every key has one. A model may fill it before RowSource::Update, where the device's
  // memory is the host's and there is one worker.
  std::vector<uint8_t> has_gradient;
};

// What the host learns of a step when the device has finished it.
struct StepOutcome {
  std::array<double, kMaxTasks> loss_sums{};  // [tasks] the sum of the samples' losses
  int64_t bad_gradient = 0;  // the first float of the dense gradients that is not finite
  // Where rows are updated here: the same of the embeddings' gradients, all tables' one after the
  // other; beyond them, all are finite.
  int64_t bad_row_gradient = 0;
};

// The memory for a step's transfers between host and device, needed from its fetch on: many fewer
// are in use than steps are planned ahead.
struct StepTransfers {
  // `device` outlives it.
  explicit StepTransfers(Device* device)
      : upload(device),
        download(device),
        uploaded(device->MakeEvent()),
        finished(device->MakeEvent()),
        outcome_memory(device->AllocateHost(sizeof(StepOutcome))) {}

  UploadArena upload;
  DownloadArena download;
  std::unique_ptr<DeviceEvent> uploaded, finished;
  std::unique_ptr<DeviceBuffer> outcome_memory;
};

// The most bytes that any step copied to the device, and back.
struct TransferSizes {
  size_t upload = 0;
  size_t download = 0;
  void Cover(const StepTransfers& transfers) {
    upload = std::max(upload, transfers.upload.used_bytes());
    download = std::max(download, transfers.download.used_bytes());
  }
};

// What comes behind a step in the data.
struct StepBehind {
  enum class Kind { kStep, kEnd, kError };  // kError: it can't be read.
  Kind kind = Kind::kEnd;
  uint32_t ends_pass = 0;  // The pass that the step before it ends, from 1; 0: none.
};

// Rows of a table that are newer than the servers', on their way to them.
struct WrittenRows {
  CachedKeys keys;
  DownloadArena::Array<float> rows;  // [keys, row_floats]
};

// The rows and gradients of a table between host and device, as its step's plan says.
struct TableTransfers {
  UploadArena::Array<float> staged;  // [pulled, then asked; dim]
  // The gradients that leave the device: [pulled, dim] with kLocal, else [num_unique, dim].
  DownloadArena::Array<float> gradients;
  DeviceSpan<const int32_t> held;              // kLocal: [num_unique] rows of the slab
  DeviceSpan<const int32_t> pulled_positions;  // kLocal: the plan's

  // Only where the model says which keys have a gradient (TableOperands::has_gradient).
  UninitializedVector<int32_t> updated;        // kLocal: `held`, without rows that have none
  CachedKeys with_gradient, without_gradient;  // the pulled keys

  // What changes in the slab.
  UploadArena::Array<float> loaded;  // [loaded, row_floats]
  WrittenRows evicted;               // as they were before the step
  WrittenRows written_ahead;         // as they are after the step

  // kOwner, as the owner; [requested]:
  DeviceSpan<const int32_t> requested_rows;  // of the slab
  DownloadArena::Array<float> read;          // [requested, dim]
  UploadArena::Array<float> merged;          // [requested, dim] gradients
};

class WriteBack;

// What a step brings the servers. Parts add waves, whose values they release later.
struct StepPush {
  PushWork work;
  std::shared_ptr<WriteBack> write_back;  // Null: the push is none that writes back, or over.
  // What is kept until the push is acknowledged, beside the context.
  std::vector<std::shared_ptr<void>> kept;
};

// The dense parameters of a step on the host.
struct DenseTransfers {
  UninitializedVector<float> pulled;  // [blocks, 256] weights
  UninitializedVector<float> pushed;  // [blocks, 256] gradients, or [blocks, row_floats] rows
  bool pushes = false;
};

struct StepContext {
  std::unique_ptr<Batch> batch;
  BatchPlan plan;
  StepPlan row_plan;
  StepBehind behind;  // Known once the pipeline hands the step out.

  StepPulls pulls;
  StepPush push;

  // Once the rows are here.
  std::vector<TableOperands> tables;
  Step complete_through;  // Every worker's pushes up to here are in the rows.

  // The trainer sets these before the step's update, and before its push; a script may give the
  // step a rate of its own, and make no gradient of it at all.
  float learning_rate = 0;
  bool is_skipped = false;
  int64_t steps_before = 0;  // Steps that the optimizers had made before step 0.
  bool writes_back = false;  // The servers have the whole model after the step.

  // Once the step has begun.
  std::unique_ptr<StepTransfers> transfers;
  DeviceSpan<const float> dense;    // [batch, dense_stride] device
  DeviceSpan<const float> labels;   // [tasks, batch] device
  DeviceSpan<const float> weights;  // [tasks, batch] device; none where the batch has none
  SamplePlace place_of_batch;
  DeviceSpan<const SamplePlace> place;  // [1] device: the same

  std::vector<TableTransfers> table_transfers;
  // The owner's part of the step has memory of its own, since it is sent and awaited earlier; it is
  // kept until the push is acknowledged. Null: as `transfers`.
  StepTransfers* owner_transfers = nullptr;
  DenseTransfers dense_transfers;

  Step step() const { return batch->step; }
  Step optimizer_step() const { return step() + steps_before; }
  UploadArena& upload() { return transfers->upload; }
  DownloadArena& download() { return transfers->download; }
  StepOutcome* outcome() const {
    return static_cast<StepOutcome*>(transfers->outcome_memory->data());
  }

  // `idle`: neither the host nor the device uses it any more. The batch's own arrays come first, so
  // that with the same transfers a full batch's arrays have the same addresses each time.
  // `expected`: the bytes that the step will need, which are allocated now.
  void Begin(std::unique_ptr<StepTransfers> idle, const TransferSizes& expected = {}) {
    transfers = std::move(idle);
    upload().Clear(expected.upload);
    download().Clear(expected.download);
    dense = upload().Add(absl::MakeConstSpan(batch->dense));
    labels = UploadByTask(batch->labels);
    weights = UploadByTask(batch->weights);
    place_of_batch = {batch->step.value(), batch->slice_begin};
    place = upload().Add(absl::MakeConstSpan(&place_of_batch, 1));
  }

 private:
  // Adds the batch's values of each task, those of one task next to each other.
  DeviceSpan<const float> UploadByTask(const UninitializedVector<float>& by_sample) {
    if (batch->num_tasks == 1) return upload().Add(absl::MakeConstSpan(by_sample));
    const UploadArena::Array<float> by_task = upload().Reserve<float>(by_sample.size());
    const size_t tasks = batch->num_tasks, samples = by_sample.size() / tasks;
    for (size_t t = 0; t < tasks; ++t) {
      for (size_t b = 0; b < samples; ++b) {
        by_task.host[t * samples + b] = by_sample[b * tasks + t];
      }
    }
    return by_task.device;
  }
};

// Sends what was added to the step's uploads; the compute waits for it.
inline void SendUploads(Device* device, StepContext* context) {
  const TraceRange range("upload");
  context->upload().Send(Stream::kCopy);
  device->Record(Stream::kCopy, context->transfers->uploaded.get());
  device->WaitFor(Stream::kCompute, *context->transfers->uploaded);
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_STEP_CONTEXT_H_
