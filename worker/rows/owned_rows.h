// The rows that a worker holds on its device: carries out the plans of a CachePlanner. Rows that it
// loads are pulled into slabs. Where it updates them there, they become newer than the servers'
// rows. They return to the servers as whole rows: when they are evicted, all of them at steps that
// write back, and some earlier when too many are newer.
//
// Why no pull reads a row too early: it names the last push that must be in its rows, which is the
// plan's pushed_through (cache_planner.h); pushes reach a server in the order of their steps, so
// that no two writes of a key can change places.
#ifndef THERMOCLINE_WORKER_ROWS_OWNED_ROWS_H_
#define THERMOCLINE_WORKER_ROWS_OWNED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/device.h"
#include "kernels/transfer.h"
#include "worker/rows/cache_plan.h"
#include "worker/rows/cached_source_options.h"
#include "worker/rows/device_slab.h"
#include "worker/rows/embedding_source.h"
#include "worker/rows/held_rows.h"
#include "worker/session/ps_session.h"

namespace thermocline {

class OwnedRows {
 public:
  // What is kept with a step until its push is acknowledged.
  struct OfStep;

  // All that is pointed to outlives it.
  OwnedRows(const CachedSourceOptions& options, PsSession* session, Device* device);

  // The pull of the rows that the plan loads; its steps are the caller's. `plan` and `transfers`
  // stay until the push of the step is acknowledged.
  PullWork Begin(const CachePlan* plan, StepTransfers* transfers, OfStep* step);
  // Makes room for the rows of staging that the plan names.
  absl::Status ReserveStaging(const CachePlan& plan);
  // Adds the copies that carry the plan out, gathers first: evicted rows that are newer than the
  // servers' go to the host, pulled ones into their slabs. REQUIRES: the pull is done.
  void Place(Step complete_through, OfStep* step, std::vector<RowCopy>* gathers,
             std::vector<RowCopy>* scatters);

  // The update of the rows of table t that are held.
  //   gradients: [n, dim], rows: [n] of the slab, device; others are passed over
  RowUpdateGroup UpdateOf(size_t t, const StepContext& context, Matrix gradients,
                          DeviceSpan<const int32_t> rows);
  // Notes that update, which stands for counts[i] lookups of rows[i].
  void NoteUpdates(size_t t, absl::Span<const int32_t> rows, absl::Span<const uint32_t> counts);
  // Adds the copies of the rows that the step writes early. They stay held; their values are those
  // of the device when the copies run. It bounds the push of a checkpoint.
  void WriteAhead(OfStep* step, std::vector<RowCopy>* gathers);

  // What a push assigns to the servers' rows.
  void AddEvicted(const OfStep& step, std::vector<std::vector<wire::PushSlice>>* wave) const;
  void AddWrittenAhead(const OfStep& step, std::vector<std::vector<wire::PushSlice>>* wave) const;
  // Begins the push, with all rows that are newer than the servers' after the waves so far where
  // the step writes back, and `dense` as its last wave where that is not empty. Holds `context`
  // until it is acknowledged.
  void StartPush(const std::shared_ptr<StepContext>& context, PushWork push,
                 std::vector<std::vector<wire::PushSlice>> dense, OfStep* step);
  // Releases the waves of the rows written back, as the device has them now.
  absl::Status SendPieces(Step at, OfStep* step);
  // Where values were lent to the session, waits until the push is acknowledged, and changes no
  // row meanwhile: a lent piece that a restarted server has lost is read again from the device.
  absl::Status FinishPush(Step at, OfStep* step);

  DeviceSlab& SlabOf(size_t table) { return *slabs_[group_of_[table]]; }
  const CachedSourceOptions& options() const { return options_; }
  // Of all steps so far; may be called from any thread.
  CacheCounts counts() const;
  // Counts what a plan says; Place has counted its own.
  void Count(const CacheCounts& planned);

 private:
  struct WrittenRows;
  struct WrittenBack;

  int WidthOf(size_t table) const { return slabs_[group_of_[table]]->layout().row_floats; }
  void TakeEvicted(size_t table, OfStep* step, std::vector<RowCopy>* gathers);
  void PlaceLoaded(size_t table, Step complete_through, OfStep* step,
                   std::vector<RowCopy>* scatters);
  void GatherChosen(size_t table, StepTransfers* transfers, WrittenRows* written,
                    std::vector<RowCopy>* gathers);
  bool ChooseUnwritten(double share, uint64_t most_bytes);
  void TakeChosen(size_t table, CachedKeys* keys, UninitializedVector<uint32_t>* counts);
  void AddWritten(size_t table, const WrittenRows& written,
                  std::vector<std::vector<wire::PushSlice>>* wave) const;
  std::shared_ptr<WrittenBack> ChooseWriteBack();
  void AddPieces(WrittenBack* written, PushWork* push) const;
  absl::Status FillPiece(size_t piece, WrittenBack* written);

  const CachedSourceOptions options_;
  const double max_unwritten_share_;  // of the rows of a slab
  PsSession* const session_;
  Device* const device_;

  std::vector<std::unique_ptr<DeviceSlab>> slabs_;  // [groups]
  std::vector<size_t> group_of_;                    // [tables]
  // Rows chosen to be written: [tables * servers]. Used only within a call.
  std::vector<std::vector<HeldRows::Unwritten>> chosen_;
  std::unique_ptr<StepTransfers> of_pieces_;  // That are written back; kept from the first one on.

  mutable absl::Mutex mutex_;
  CacheCounts counts_ ABSL_GUARDED_BY(mutex_);
};

// Rows of one table that are newer than the servers', on their way to them.
struct OwnedRows::WrittenRows {
  CachedKeys keys;
  UninitializedVector<uint32_t> counts;  // [keys] lookups
  DownloadArena::Array<float> rows;      // [keys, row_floats]
};

struct OwnedRows::OfStep {
  struct Table {
    UploadArena::Array<float> loaded;  // [loaded, row_floats], or [loaded, dim] without state
    WrittenRows evicted;               // as they were before the step
    WrittenRows written_ahead;         // values after the step
  };
  const CachePlan* plan = nullptr;
  StepTransfers* transfers = nullptr;
  std::vector<Table> tables;
  std::shared_ptr<WrittenBack> written_back;  // between StartPush and FinishPush
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_OWNED_ROWS_H_
