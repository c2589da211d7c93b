// Brings all hot rows (hot_rows.h), with their optimizer state, from the servers to a worker's
// device: in pieces, since they may be far larger than the memory of the host that is meant for
// transfers.
#ifndef THERMOCLINE_WORKER_ROWS_HOT_LOADER_H_
#define THERMOCLINE_WORKER_ROWS_HOT_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "kernels/device.h"
#include "worker/rows/cache_plan.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/owned_rows.h"
#include "worker/session/ps_session.h"

namespace thermocline {

// One thread calls it.
class HotLoader {
 public:
  // piece_bytes: of the rows that are pulled at a time; two such pieces are on the host. All that
  // is pointed to outlives it; `rows` has the layout of hot_rows, but for its staging.
  HotLoader(const HotRows* hot_rows, uint64_t piece_bytes, OwnedRows* rows, PsSession* session,
            Device* device);
  ~HotLoader();

  // Loads them as they are once every worker's pushes up to step - 1 are in them, and waits.
  // REQUIRES: all held are as the servers have them. Errors: the session's, which an error of the
  // device fails, too.
  absl::Status Load(Step step);

 private:
  struct Piece;

  const CachedSourceOptions& options() const { return rows_->options(); }
  absl::Status LoadPieces(Step step);
  bool FillPiece(Piece* piece);
  void AddToPiece(size_t t, int32_t end, CachedKeys* keys);
  void PullPiece(Step step, Piece* piece);
  absl::Status PlacePiece(Piece* piece);

  const HotRows* const hot_rows_;
  const uint64_t piece_bytes_;
  OwnedRows* const rows_;
  PsSession* const session_;
  Device* const device_;
  std::vector<std::unique_ptr<Piece>> pieces_;  // Kept from the first load on: they are pinned.

  // The row behind those of the pieces so far.
  size_t next_table_ = 0;
  int32_t next_of_table_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_HOT_LOADER_H_
