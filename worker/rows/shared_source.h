// An EmbeddingSource of several workers with one cache: carries out the plans of a shared cache
// stage (cache_stage.h), as a rank that asks other ranks for rows, and as the owner of those that
// it holds.
//
//   Fetch       pulls the bypassed rows of this rank's batch, and those that its owner loads
//   Await       the owner sends each rank the held rows that it asked for; this rank takes its own
//   Push        sends each owner this rank's gradients of held rows, and the servers the others
//   FinishPush  the owner adds the ranks' gradients in rank order, as a server does, updates its
//               rows, and sends the servers what it writes
//
// Waits follow the order of the exchange's phases: nothing that this rank owes for an earlier phase
// is left to do when it waits. All of it is exact: a key is held or bypassed for all ranks alike in
// a step, and a pull that names the last push of its keys is answered once every rank's is applied.
#ifndef THERMOCLINE_WORKER_ROWS_SHARED_SOURCE_H_
#define THERMOCLINE_WORKER_ROWS_SHARED_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/device.h"
#include "worker/exchange/exchange.h"
#include "worker/rows/cache_stage.h"
#include "worker/rows/embedding_source.h"
#include "worker/rows/owned_rows.h"
#include "worker/session/ps_session.h"

namespace thermocline {

class SharedSource : public EmbeddingSource {
 public:
  // All that is pointed to outlives the source. REQUIRES: options.shares_rows, staleness_steps is
  // 0; contexts that are fetched have a shared plan, those fetched for evaluation have none.
  SharedSource(const CachedSourceOptions& options, Exchange* exchange, PsSession* session,
               Device* device);
  ~SharedSource() override;

  int fetch_ahead() const override { return options_.prefetch_steps; }
  void Fetch(const std::shared_ptr<StepContext>& context,
             const std::vector<std::vector<PullSlice>>& dense) override;
  Step AwaitsPushOf(const StepContext& context) const override { return context.step() - 1; }
  absl::Status Await(StepContext* context) override;
  void Update(StepContext* context) override;
  // Errors of both: kInvalidArgument (a gradient, or the sum of the ranks' gradients, is not
  // finite: names table and key), those of the exchange and the session.
  absl::Status Push(const std::shared_ptr<StepContext>& context,
                    std::vector<std::vector<wire::PushSlice>> dense) override;
  absl::Status FinishPush(StepContext* context) override;
  void FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) override;
  const OwnedRows* cache() const override { return &rows_; }

 private:
  struct TableOfStep;
  struct OfStep;

  bool IsShared(size_t table) { return rows_.SlabOf(table).layout().holds_rows; }
  StepTransfers* TakeTransfers();
  absl::Status SendRows(StepContext* context);
  absl::Status TakeRows(StepContext* context);
  absl::Status SendGradients(StepContext* context);
  void PackBypassed(StepContext* context);
  absl::Status UpdateHeld(StepContext* context);
  absl::Status MergeGradients(StepContext* context, const ReceivedBlocks& gradients);
  absl::Status WaitForDevice(StepTransfers* transfers);

  const CachedSourceOptions options_;
  Exchange* const exchange_;
  PsSession* const session_;
  Device* const device_;
  RemoteSource uncached_;  // for evaluation
  OwnedRows rows_;

  // For what owners copy between host and device; as many as were ever in use together.
  std::vector<std::unique_ptr<StepTransfers>> transfers_;
  TransferSizes largest_transfers_;
  absl::Mutex mutex_;
  std::vector<StepTransfers*> idle_transfers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_SHARED_SOURCE_H_
