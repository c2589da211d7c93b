// Where a trainer's rows come from and where its gradients go. Implementations: RemoteSource (pull
// and push every step), CachedSource (hot rows stay on the device).
//
// One thread calls it, for each step in order: Fetch, Await, Update, PushEmbeddings, PushDense. Up
// to fetch_ahead() later steps may be fetched before a step's PushEmbeddings; where that is more
// than 0 and the dense parameters are the trainer's, the next step's Await and Update may come
// before it too, unless it writes back or the next step awaits its push.
#ifndef THERMOCLINE_WORKER_SPARSE_EMBEDDING_SOURCE_H_
#define THERMOCLINE_WORKER_SPARSE_EMBEDDING_SOURCE_H_

#include <memory>

#include "absl/status/status.h"
#include "common/ids.h"
#include "worker/sparse/dense_exchange.h"
#include "worker/sparse/step_work.h"

namespace thermocline {

class EmbeddingSource {
 public:
  virtual ~EmbeddingSource() = default;

  // Whether the trainer itself updates the dense parameters (else they come with Await).
  virtual bool owns_dense() const = 0;
  // Steps that may be fetched beyond the one being computed.
  virtual int fetch_ahead() const = 0;

  // Begins to bring the rows of `work`; they arrive as the servers' steps allow.
  virtual void Fetch(const std::shared_ptr<StepWork>& work) = 0;
  // The last step whose push the rows of `work` wait for: its PushEmbeddings comes before Await.
  virtual Step AwaitsPushOf(const StepWork& work) const = 0;
  // Waits for them and fills work->tables for the operations that the device is given next; also
  // dense.weights, where the source doesn't leave them to the trainer.
  virtual absl::Status Await(StepWork* work, const DenseArenas& dense) = 0;

  // Queues on the device what follows the gradients in work->tables: rows held there are updated,
  // what is to be pushed begins its way to the host.
  virtual void Update(StepWork* work, float learning_rate) = 0;

  // Begins the push of the step, which the device has finished. `write_back`: the servers must have
  // everything afterwards, so whatever the worker alone holds is part of it. The source holds
  // `work` until the push is acknowledged.
  virtual absl::Status PushEmbeddings(const std::shared_ptr<StepWork>& work, float learning_rate,
                                      bool write_back) = 0;
  // Whether that push waits for PushDense: the dense gradients are there (dense.gradients), or,
  // where the trainer owns the parameters, the step's update is done.
  virtual bool pushes_dense() const = 0;
  virtual absl::Status PushDense(const std::shared_ptr<StepWork>& work,
                                 const DenseArenas& dense) = 0;

  // Reads the dense parameters as they are once every worker's pushes up to step - 1 are in them,
  // and waits for them. Where the trainer owns them, and doesn't begin at step 0, before its first
  // step.
  virtual absl::Status LoadDense(Step step, const DenseArenas& dense) = 0;

  // Waits until every fetch and push begun so far is over: answered and acknowledged, or failed.
  virtual absl::Status Drain() = 0;
  // Ends whatever is under way with `reason`; nothing can be fetched or pushed afterwards.
  virtual void Cancel(const absl::Status& reason) = 0;

  // Evaluation: reads rows as they are once every worker's pushes up to step - 1 are in them.
  // `with_dense`: also dense.weights. Then Await.
  virtual void FetchForEvaluation(const std::shared_ptr<StepWork>& work, Step step,
                                  bool with_dense) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_EMBEDDING_SOURCE_H_
