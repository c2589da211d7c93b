// One step on its way through a worker: batch, plan, rows, gradients, and the memory in which they
// travel between host and device. All parts of the step share it; each part's own state is private
// to it (PrivateStepState). A few contexts are reused, so that their memory is allocated once.
#ifndef THERMOCLINE_WORKER_ROWS_STEP_CONTEXT_H_
#define THERMOCLINE_WORKER_ROWS_STEP_CONTEXT_H_

#include <algorithm>
#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "kernels/device.h"
#include "kernels/trace_range.h"
#include "kernels/transfer.h"
#include "worker/data/batch.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/cache_plan.h"

namespace thermocline {

// Where a step reads the rows of a table, and where it leaves the gradients of its distinct keys.
struct TableOperands {
  Matrix rows;       // [rows, dim] device: the row indices of the plan's features are rows of it
  Matrix gradients;  // [num_unique, dim] device, in the plan's staging order
};

// What the host learns of a step when the device has finished it.
struct StepOutcome {
  double loss_sum = 0;
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

// The state of one part of the worker in a step, of a type that only that part knows.
class PrivateStepState {
 public:
  // Made by the first call; stays when the context is reused. REQUIRES: one type for a context's
  // life.
  template <typename State>
  State& Get() {
    if (!state_.has_value()) state_ = std::make_shared<State>();
    const auto* state = std::any_cast<std::shared_ptr<State>>(&state_);
    CHECK(state != nullptr);
    return **state;
  }

 private:
  std::any state_;
};

struct StepContext {
  std::unique_ptr<Batch> batch;
  BatchPlan plan;
  StepBehind behind;     // Known once the pipeline hands the step out.
  CachePlan cache_plan;  // Where the pipeline plans a cache.
  bool has_cache_plan = false;

  // Once the embedding source has the rows.
  std::vector<TableOperands> tables;
  Step complete_through;  // Every worker's pushes up to here are in the rows.

  // Of the trainer, before the step's update; and before its push.
  float learning_rate = 0;
  int64_t steps_before = 0;  // That the optimizers had made before step 0.
  bool writes_back = false;  // The servers have the whole model after the step.

  // Once the step has begun.
  std::unique_ptr<StepTransfers> transfers;
  DeviceSpan<const float> dense;    // [batch, dense_stride] device
  DeviceSpan<const float> labels;   // [batch] device
  DeviceSpan<const float> weights;  // [batch] device; none where the job has none

  // The cache stage's, the embedding source's, the dense parameters'.
  PrivateStepState of_cache, of_source, of_dense;

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
    labels = upload().Add(absl::MakeConstSpan(batch->labels));
    weights = {};
    if (!batch->weights.empty()) weights = upload().Add(absl::MakeConstSpan(batch->weights));
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
