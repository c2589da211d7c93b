// What a step reads of the servers.
#ifndef THERMOCLINE_WORKER_ROWS_STEP_PULLS_H_
#define THERMOCLINE_WORKER_ROWS_STEP_PULLS_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/step_tasks.h"
#include "worker/session/ps_session.h"
#include "worker/session/transport.h"

namespace thermocline {

// Adds a slice for each server that has keys; the spans must outlive the slices.
//   rows, values: [keys, width] for some width
void AddPull(const KeyShares& keys, absl::Span<float> rows, PullsByServer* slices);
void AddPush(const KeyShares& keys, wire::PushKind kind, absl::Span<const float> values,
             PushesByServer* slices);

// Up to three pulls, which differ in the pushes that must be in their rows. Parts of the step add
// their keys, then the pulls start; they are over when all of them are answered. Used again.
//
// Thread-safe once it has started.
class StepPulls : public StepEvent {
 public:
  enum Kind { kLatest, kPlanned, kWithState };  // kWithState: rows come with optimizer state.

  // Begins a step without any keys. REQUIRES: what was started before is over.
  void Begin(uint32_t num_servers);
  PullWork& work(Kind kind) { return pulls_[kind]; }
  // Pulls the keys that were added. `keep` lives until they are answered. Where there are none, it
  // is over at once. complete_through() is then `default_through`.
  void Start(PsSession* session, Step default_through, std::shared_ptr<const void> keep);

  bool IsOver() const override;
  void Wait() const override;
  // REQUIRES: it is over.
  absl::Status status() const;
  // Every worker's pushes up to here are in all rows.
  Step complete_through() const;

 private:
  void OnAnswer(const absl::Status& status, Step complete_through);

  std::array<PullWork, 3> pulls_;
  mutable absl::Mutex mutex_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Step complete_through_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_STEP_PULLS_H_
