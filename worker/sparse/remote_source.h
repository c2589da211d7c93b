// An EmbeddingSource without a cache: every step pulls its rows from the servers and pushes their
// gradients back. With a CPU device this is XDL's CPU-only arm.
//
// With one worker the dense parameters stay on its device, and steps with `write_back` bring them
// to the servers; with several they are pulled and pushed like rows.
#ifndef THERMOCLINE_WORKER_SPARSE_REMOTE_SOURCE_H_
#define THERMOCLINE_WORKER_SPARSE_REMOTE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/sparse/dense_blocks.h"
#include "worker/sparse/embedding_source.h"
#include "worker/sparse/ps_session.h"

namespace thermocline {

struct RemoteSourceOptions {
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;
  uint32_t staleness_steps = 0;
  std::vector<int> table_dims;  // of the plan's tables
};

class RemoteSource : public EmbeddingSource {
 public:
  // `session` and `dense_blocks` outlive the source.
  RemoteSource(const RemoteSourceOptions& options, const DenseBlocks* dense_blocks,
               PsSession* session);
  // Waits for whatever is under way.
  ~RemoteSource() override;

  bool owns_dense() const override { return options_.num_workers == 1; }
  int fetch_ahead() const override { return static_cast<int>(options_.staleness_steps); }
  void Fetch(const std::shared_ptr<StepWork>& work) override;
  absl::Status Await(const StepWork& work, const DenseArenas& dense) override;
  absl::Status PushEmbeddings(const std::shared_ptr<StepWork>& work, float learning_rate,
                              bool write_back) override;
  absl::Status PushDense(const std::shared_ptr<StepWork>& work, const DenseArenas& dense) override;
  absl::Status LoadDense(Step step, const DenseArenas& dense) override;
  absl::Status Drain() override;
  void Cancel(const absl::Status& reason) override;
  void FetchForEvaluation(const std::shared_ptr<StepWork>& work, Step step,
                          bool with_dense) override;

 private:
  enum class DensePush { kNone, kGradients, kWriteBack };

  DensePush DensePushOf(bool write_back) const;
  void StartPull(const std::shared_ptr<StepWork>& work, PullWork pull, bool with_dense);
  void Begin();
  void End(const absl::Status& status);
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return under_way_ == 0; }

  const RemoteSourceOptions options_;
  const DenseBlocks* const dense_blocks_;
  PsSession* const session_;

  DensePush dense_push_ = DensePush::kNone;  // of the push begun last

  absl::Mutex mutex_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;    // pulls and pushes
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first error
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_REMOTE_SOURCE_H_
