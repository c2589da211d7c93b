// The dense parameters' share of a worker's pulls and pushes. One worker keeps them on its device
// and writes them back where the servers must have them; several pull them and push their gradients
// every step.
//
// Not thread-safe.
#ifndef THERMOCLINE_WORKER_SPARSE_DENSE_EXCHANGE_H_
#define THERMOCLINE_WORKER_SPARSE_DENSE_EXCHANGE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "worker/sparse/dense_blocks.h"
#include "worker/sparse/ps_session.h"
#include "worker/sparse/step_work.h"

namespace thermocline {

// The model's dense parameters in host memory, block by block (dense_blocks.h).
struct DenseArenas {
  absl::Span<float> weights;          // [blocks, 256]
  absl::Span<float> slots;            // [blocks, slot_floats]
  absl::Span<const float> gradients;  // [blocks, 256]
};

class DenseExchange {
 public:
  // `blocks` and `session` outlive it. `owned`: by this worker, the only one.
  DenseExchange(const DenseBlocks* blocks, PsSession* session, bool owned)
      : blocks_(blocks), session_(session), owned_(owned) {}

  bool owned() const { return owned_; }

  // Adds all weights to a pull of `work`, and takes them from it once it is answered.
  void AddToPull(StepWork* work, PullWork* pull) const;
  void TakePulled(const StepWork& work, const DenseArenas& dense) const;

  // Adds a wave to the push of `work`: gradients, or, with `write_back`, rows. None where the
  // parameters are owned and stay.
  void AddToPush(StepWork* work, bool write_back, PushWork* push);
  // Whether the push begun last has such a wave, which waits for Release with `dense` as it then
  // is.
  bool has_wave() const { return kind_ != Kind::kNone; }
  absl::Status Release(StepWork* work, const DenseArenas& dense);

  // Begins to read all rows as of `step`; `rows` outlives `done`.
  void PullRows(Step step, UninitializedVector<float>* rows, PsSession::PullDone done) const;
  void TakeRows(absl::Span<const float> rows, const DenseArenas& dense) const;

 private:
  enum class Kind { kNone, kGradients, kRows };

  const DenseBlocks* const blocks_;
  PsSession* const session_;
  const bool owned_;
  Kind kind_ = Kind::kNone;  // of the push begun last
  size_t wave_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_DENSE_EXCHANGE_H_
