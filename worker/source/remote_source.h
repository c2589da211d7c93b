// An EmbeddingSource without a cache: every step pulls its rows from the servers and pushes their
// gradients back. With a CPU device this is XDL's CPU-only arm, with a GPU its CPU-GPU arm.
#ifndef THERMOCLINE_WORKER_SOURCE_REMOTE_SOURCE_H_
#define THERMOCLINE_WORKER_SOURCE_REMOTE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/math/table_spec.h"
#include "kernels/device.h"
#include "worker/session/ps_session.h"
#include "worker/source/embedding_source.h"

namespace thermocline {

struct RemoteSourceOptions {
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;
  uint32_t staleness_steps = 0;
  std::vector<TableLayout> tables;  // the plan's
};

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

#endif  // THERMOCLINE_WORKER_SOURCE_REMOTE_SOURCE_H_
