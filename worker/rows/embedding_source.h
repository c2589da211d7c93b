// Where a trainer's rows come from and where its gradients go. Implementations: RemoteSource (pull
// and push every step), CachedSource (rows stay on the device, cached_source.h), SharedSource (of
// several workers with one cache, shared_source.h), HotSource (of hot and cold batches,
// hot_source.h).
//
// One thread calls it, for each step in order: Fetch, Await, Update, Push, FinishPush. Up to
// fetch_ahead() later steps may be fetched before a step's Push. A trainer that pipelines its steps
// (trainer.h) calls Await and Update of the next step before Push, too, unless the step writes back
// or the next one awaits its push. An error of a fetch or a push fails the session,
// which its owner drains and cancels (ps_session.h).
//
// The dense parameters are not the source's (dense_parameters.h). But a worker has one push a step,
// so their share of a step's pull and push goes along with the rows.
#ifndef THERMOCLINE_WORKER_ROWS_EMBEDDING_SOURCE_H_
#define THERMOCLINE_WORKER_ROWS_EMBEDDING_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/completion.h"
#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "common/wire/messages.h"
#include "kernels/device.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/step_context.h"
#include "worker/session/ps_session.h"
#include "worker/session/transport.h"

namespace thermocline {

class OwnedRows;

class EmbeddingSource {
 public:
  virtual ~EmbeddingSource() = default;

  // Steps that may be fetched beyond the one being computed.
  virtual int fetch_ahead() const = 0;

  // Begins to bring the rows of `context`; the servers answer when their steps allow it. dense:
  // [num_servers] what the same pull brings for the dense parameters; empty: nothing.
  virtual void Fetch(const std::shared_ptr<StepContext>& context,
                     const std::vector<std::vector<PullSlice>>& dense) = 0;
  // The last step whose push the rows of `context` wait for: its Push comes before Await.
  virtual Step AwaitsPushOf(const StepContext& context) const = 0;
  // Waits for all that Fetch brings, and fills context->tables and complete_through for the
  // operations that the device is given next.
  virtual absl::Status Await(StepContext* context) = 0;

  // Queues the device's work after the gradients in context->tables: held rows are updated with
  // context->learning_rate, and what the step pushes is copied to the host.
  virtual void Update(StepContext* context) = 0;

  // Begins the push of the step, which the device has finished. Where context->writes_back, the
  // push also holds every row that only the worker has, so that the servers have the whole model
  // afterwards. The source holds `context` until the push is acknowledged. dense: [num_servers] the
  // push's last wave, which the dense parameters release; empty: none.
  virtual absl::Status Push(const std::shared_ptr<StepContext>& context,
                            std::vector<std::vector<wire::PushSlice>> dense) = 0;
  // After all waves are released: does the work of the push that is left for this thread.
  virtual absl::Status FinishPush(StepContext* context) = 0;

  // Evaluation: reads rows as they are once every worker's pushes up to step - 1 are in them. Then
  // Await.
  virtual void FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) = 0;

  // The rows that it holds between steps; null: none.
  virtual const OwnedRows* cache() const { return nullptr; }
};

// Adds slices of other keys, [num_servers] or empty.
void AddPullSlices(const std::vector<std::vector<PullSlice>>& more,
                   std::vector<std::vector<PullSlice>>* slices);
// Both add a slice for each server that has keys; the spans must outlive the slices.
//   rows, values: [keys, width] for some width
void AddPullSlices(const KeyShares& shares, absl::Span<float> rows,
                   std::vector<std::vector<PullSlice>>* slices);
void AddPushSlices(const KeyShares& shares, wire::PushKind kind,
                   absl::Span<const uint32_t> counts,  // [keys]
                   absl::Span<const float> values,
                   std::vector<std::vector<wire::PushSlice>>* slices);

// Begins the pulls of a step, one or more. `fetched` is delivered, and context->complete_through
// set, when the last of them is done.
void StartPulls(PsSession* session, std::vector<PullWork> pulls,
                const std::shared_ptr<StepContext>& context, Completion* fetched);

struct RemoteSourceOptions {
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;
  uint32_t staleness_steps = 0;
  std::vector<TableLayout> tables;  // the plan's
};

// Without a cache: every step pulls its rows from the servers and pushes their gradients back. With
// a CPU device this is XDL's CPU-only arm, with a GPU its CPU-GPU arm.
class RemoteSource : public EmbeddingSource {
 public:
  // All that is pointed to outlives the source.
  RemoteSource(const RemoteSourceOptions& options, PsSession* session, Device* device)
      : options_(options), session_(session), device_(device) {}

  int fetch_ahead() const override { return static_cast<int>(options_.staleness_steps); }
  void Fetch(const std::shared_ptr<StepContext>& context,
             const std::vector<std::vector<PullSlice>>& dense) override;
  Step AwaitsPushOf(const StepContext& context) const override {
    return context.step() - 1 - options_.staleness_steps;
  }
  absl::Status Await(StepContext* context) override;
  void Update(StepContext* context) override;
  absl::Status Push(const std::shared_ptr<StepContext>& context,
                    std::vector<std::vector<wire::PushSlice>> dense) override;
  absl::Status FinishPush(StepContext* context) override;
  void FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) override;

 private:
  struct OfStep;

  void StartPull(const std::shared_ptr<StepContext>& context, PullWork pull,
                 const std::vector<std::vector<PullSlice>>& dense);

  const RemoteSourceOptions options_;
  PsSession* const session_;
  Device* const device_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_EMBEDDING_SOURCE_H_
