// An EmbeddingSource without a cache: every step pulls its rows from the servers and pushes their
// gradients back. With a CPU device this is XDL's CPU-only arm, with a GPU its CPU-GPU arm.
//
// With one worker the dense parameters stay on its device, and steps with `write_back` bring them
// to the servers; with several they are pulled and pushed like rows.
#ifndef THERMOCLINE_WORKER_SPARSE_REMOTE_SOURCE_H_
#define THERMOCLINE_WORKER_SPARSE_REMOTE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/table_spec.h"
#include "kernels/device.h"
#include "worker/sparse/dense_exchange.h"
#include "worker/sparse/embedding_source.h"
#include "worker/sparse/operations_under_way.h"
#include "worker/sparse/ps_session.h"

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
  RemoteSource(const RemoteSourceOptions& options, const DenseBlocks* dense_blocks,
               PsSession* session, Device* device);
  // Waits for whatever is under way.
  ~RemoteSource() override;

  bool owns_dense() const override { return dense_.owned(); }
  int fetch_ahead() const override { return static_cast<int>(options_.staleness_steps); }
  void Fetch(const std::shared_ptr<StepWork>& work) override;
  Step AwaitsPushOf(const StepWork& work) const override {
    return work.step() - 1 - options_.staleness_steps;
  }
  absl::Status Await(StepWork* work, const DenseArenas& dense) override;
  void Update(StepWork* work, float learning_rate) override;
  absl::Status PushEmbeddings(const std::shared_ptr<StepWork>& work, float learning_rate,
                              bool write_back) override;
  bool pushes_dense() const override { return dense_.has_wave(); }
  absl::Status PushDense(const std::shared_ptr<StepWork>& work, const DenseArenas& dense) override;
  absl::Status LoadDense(Step step, const DenseArenas& dense) override;
  absl::Status Drain() override;
  void Cancel(const absl::Status& reason) override;
  void FetchForEvaluation(const std::shared_ptr<StepWork>& work, Step step,
                          bool with_dense) override;

 private:
  void StartPull(const std::shared_ptr<StepWork>& work, PullWork pull, bool with_dense);

  const RemoteSourceOptions options_;
  PsSession* const session_;
  Device* const device_;
  DenseExchange dense_;
  OperationsUnderWay under_way_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_REMOTE_SOURCE_H_
