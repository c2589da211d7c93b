// One step's data on its way through a worker: the batch, its plan, the rows it reads and the
// gradients it makes. A few of them go round in a ring, so that their memory is allocated once.
#ifndef THERMOCLINE_WORKER_SPARSE_STEP_WORK_H_
#define THERMOCLINE_WORKER_SPARSE_STEP_WORK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/completion.h"
#include "common/ids.h"
#include "common/uninitialized_vector.h"
#include "kernels/device.h"
#include "kernels/trace_range.h"
#include "kernels/transfer.h"
#include "worker/data/batch.h"
#include "worker/sparse/batch_plan.h"
#include "worker/sparse/cache_plan.h"

namespace thermocline {

// Where a step reads the rows of a table, and where it leaves the gradients of its distinct keys.
struct TableOperands {
  Matrix rows;       // [rows, dim] device: the slots of the plan's features are rows of it
  Matrix gradients;  // [num_unique, dim] device, in the plan's staging order
};

// Rows of one table that the servers don't know, on their way to them.
struct WrittenRows {
  CachedKeys keys;
  UninitializedVector<uint32_t> counts;  // [keys] lookups
  DownloadArena::Array<float> rows;      // [keys, row_floats]
};

// What goes between host and device for one table in a step of CachedSource.
struct CachedTableWork {
  UploadArena::Array<float> loaded_rows;    // [loaded, row_floats], or [loaded, dim] of a copy
  UploadArena::Array<float> bypassed_rows;  // [bypassed, dim]
  UninitializedVector<uint32_t> bypassed_counts;
  DownloadArena::Array<float> bypassed_gradients;  // [bypassed, dim]
  WrittenRows evicted;                             // as they were before the step
  WrittenRows written_ahead;                       // held on; as the step leaves them
  DeviceSpan<const int32_t> rows;                  // the plan's, on the device
  DeviceSpan<const int32_t> bypassed_positions;    // the plan's, on the device
};

// What a step tells the host once the device has finished it.
struct StepOutcome {
  double loss_sum = 0;
  int64_t bad_gradient = 0;  // the first float of the dense gradients that is not finite
  // Where rows are updated here: the same of the embeddings' gradients, all tables' one after the
  // other; beyond them, all are finite.
  int64_t bad_row_gradient = 0;
};

// What a step needs between host and device from its fetch on: much less often at a time than
// steps are planned ahead.
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

// The most bytes that steps brought to the device and back, each.
struct TransferSizes {
  size_t upload = 0;
  size_t download = 0;
  void Cover(const StepTransfers& transfers) {
    upload = std::max(upload, transfers.upload.used_bytes());
    download = std::max(download, transfers.download.used_bytes());
  }
};

struct StepWork {
  std::unique_ptr<Batch> batch;
  BatchPlan plan;
  CachePlan cache_plan;  // Where the pipeline plans a cache.
  bool has_cache_plan = false;

  // Of the embedding source: filled by its Await.
  std::vector<TableOperands> tables;

  // For the embedding source.
  std::vector<UploadArena::Array<float>> pulled;    // of each table [num_unique, dim]
  std::vector<DownloadArena::Array<float>> pushed;  // of each table [num_unique, dim]
  std::vector<CachedTableWork> cached;              // of each table
  UninitializedVector<float> dense_rows;            // blocks pulled
  UninitializedVector<float> dense_values;          // blocks to push
  Completion fetched;
  Step complete_through;  // Once fetched: every worker's pushes up to here are in the rows.

  // Once the step has begun.
  std::unique_ptr<StepTransfers> transfers;
  DeviceSpan<const float> dense;   // [batch, dense_stride] device
  DeviceSpan<const float> labels;  // [batch] device

  Step step() const { return batch->step; }
  UploadArena& upload() { return transfers->upload; }
  DownloadArena& download() { return transfers->download; }
  StepOutcome* outcome() { return static_cast<StepOutcome*>(transfers->outcome_memory->data()); }

  // `idle`: nothing of it is used any more, by the device neither. The batch's own arrays come
  // first: with the same transfers, those of a whole batch lie at the same place each time.
  // `expected`: what the step will bring, so that all is allocated now.
  void Begin(std::unique_ptr<StepTransfers> idle, const TransferSizes& expected = {}) {
    transfers = std::move(idle);
    upload().Clear(expected.upload);
    download().Clear(expected.download);
    dense = upload().Add(absl::MakeConstSpan(batch->dense));
    labels = upload().Add(absl::MakeConstSpan(batch->labels));
  }
};

// Sends what was added to the step's uploads; the compute waits for it.
inline void SendUploads(Device* device, StepWork* work) {
  const TraceRange range("upload");
  work->upload().Send(Stream::kCopy);
  device->Record(Stream::kCopy, work->transfers->uploaded.get());
  device->WaitFor(Stream::kCompute, *work->transfers->uploaded);
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_STEP_WORK_H_
