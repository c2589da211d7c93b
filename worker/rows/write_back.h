// All rows held that are newer than the servers', on their way to them with one push, in pieces: a
// step that writes back leaves the whole model with the servers.
#ifndef THERMOCLINE_WORKER_ROWS_WRITE_BACK_H_
#define THERMOCLINE_WORKER_ROWS_WRITE_BACK_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "kernels/device.h"
#include "worker/rows/cache_plan.h"
#include "worker/rows/row_slabs.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_tasks.h"
#include "worker/session/ps_session.h"

namespace thermocline {

// If there are few pieces, their values stay until the push is acknowledged. Otherwise they are
// lent to the session: a place is reused when every server has its piece, and tasks go on until the
// push is acknowledged, so that rows do not change and can be read again if a restarted server has
// lost pieces.
//
// One thread makes it and runs its tasks. As an event: the tasks can go on.
class WriteBack : public StepEvent, public std::enable_shared_from_this<WriteBack> {
 public:
  // Chooses the rows, and adds a wave for each piece to the push. `transfers` are for the pieces on
  // their way from the device, of one write-back at a time. All that is pointed to outlives it.
  static std::shared_ptr<WriteBack> Begin(RowSlabs* slabs, StepTransfers* transfers,
                                          PsSession* session, Device* device, PushWork* push);

  // Adds the tasks that release the pieces, with the rows as the device has them then.
  void AddTasks(Step step, StepTasks* tasks);
  // The push is over. On any thread.
  void End();

  bool IsOver() const override;
  void Wait() const override;

 private:
  struct Piece {
    std::vector<CachedKeys> keys;      // [tables]
    std::vector<size_t> first_floats;  // [tables] of the table's rows in the piece
    size_t floats = 0;
  };

  WriteBack(RowSlabs* slabs, StepTransfers* transfers, PsSession* session, Device* device)
      : slabs_(*slabs), transfers_(*transfers), session_(*session), device_(*device) {}

  void ChoosePieces();
  void AddWaves(PushWork* push);
  bool is_lent() const { return places_.size() < pieces_.size(); }
  float* PlaceOf(size_t piece) { return places_[piece % places_.size()].data(); }
  std::optional<size_t> TakeNext();
  absl::Status SendNext(Step step, StepTasks* tasks);
  absl::Status Release(Step step, size_t piece, bool again);
  bool PlaceIsFree(size_t piece) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::optional<size_t> NextPiece() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  RowSlabs& slabs_;
  StepTransfers& transfers_;
  PsSession& session_;
  Device& device_;
  std::vector<Piece> pieces_;
  size_t first_wave_ = 0;                            // Piece p is wave first_wave_ + p of the push.
  std::vector<UninitializedVector<float>> places_;   // Piece p is at p modulo their number.
  std::vector<DownloadArena::Array<float>> packed_;  // [tables] the piece that leaves the device

  mutable absl::Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;            // to be released first
  std::vector<bool> is_here_ ABSL_GUARDED_BY(mutex_);  // [pieces] released, and not returned
  std::set<size_t> wanted_ ABSL_GUARDED_BY(mutex_);    // again
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_WRITE_BACK_H_
