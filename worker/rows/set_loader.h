// Brings all fixed rows (hot_rows.h), with their optimizer state, from the servers to a worker's
// device, before a step: in pieces, since they may be far larger than the memory of the host that
// is meant for transfers.
#ifndef THERMOCLINE_WORKER_ROWS_SET_LOADER_H_
#define THERMOCLINE_WORKER_ROWS_SET_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "kernels/device.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/row_slabs.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_tasks.h"
#include "worker/session/ps_session.h"

namespace thermocline {

// One thread calls it, and runs its tasks.
class SetLoader {
 public:
  // All that is pointed to outlives it; `slabs` have the layout of their options' fixed_rows, but
  // for its staging. REQUIRES: the session is drained before it is destroyed.
  SetLoader(RowSlabs* slabs, PsSession* session, Device* device);

  // Adds tasks that load the rows as they are once every worker's pushes up to step - 1 are in
  // them. REQUIRES: all held are as the servers have them. Errors: the session's, the device's.
  void AddTasks(Step step, StepTasks* tasks);

 private:
  const HotRows& rows() const { return *slabs_.options().fixed_rows; }
  absl::Status GoOn(Step step, StepTasks* tasks);
  bool FillPiece(StepContext* piece);
  void AddToPiece(size_t t, int32_t end, CachedKeys* keys);
  void PullPiece(Step step, StepContext* piece);
  absl::Status PlacePiece(StepContext* piece);

  RowSlabs& slabs_;
  PsSession& session_;
  Device& device_;
  // Each is used as a step that reads no batch. They are kept from the first load on, since their
  // memory is pinned.
  std::vector<std::unique_ptr<StepContext>> pieces_;
  bool has_more_ = false;  // Some rows are in no piece yet.
  size_t begun_ = 0, placed_ = 0;

  // The row behind those of the pieces so far.
  size_t next_table_ = 0;
  int32_t next_of_table_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_SET_LOADER_H_
