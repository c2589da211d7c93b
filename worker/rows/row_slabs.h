// The rows that a worker holds on its device: carries out what plans say of its slabs. Rows that
// a step loads are pulled into them. Updates there make rows newer than the servers'; they return
// to the servers as whole rows: when they are evicted, all of them at steps that write back
// (write_back.h), and some earlier when too many are newer.
//
// Why no pull reads a row too early: it names the last push that must be in its rows, which is the
// plan's pushed_through (cache_plan.h); pushes reach a server in the order of their steps, so that
// no two writes of a key can change places.
#ifndef THERMOCLINE_WORKER_ROWS_ROW_SLABS_H_
#define THERMOCLINE_WORKER_ROWS_ROW_SLABS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/transfer.h"
#include "worker/rows/cache_plan.h"
#include "worker/rows/device_slab.h"
#include "worker/rows/held_rows.h"
#include "worker/rows/row_source_options.h"
#include "worker/rows/step_context.h"

namespace thermocline {

// One thread calls it, but for counts().
class RowSlabs {
 public:
  // `device` outlives it.
  RowSlabs(const RowSourceOptions& options, Device* device);

  // Adds the pull of the rows that the step's plan loads.
  void AddPulls(StepContext* context);
  // Makes room for the rows of staging that the plan names.
  absl::Status ReserveStaging(const CachePlan& plan);
  // Adds the copies that carry the plan out, gathers first: evicted rows that are newer than the
  // servers' go to the host, pulled ones into their slabs. REQUIRES: the pulls are over.
  void Place(StepContext* context, std::vector<RowCopy>* gathers, std::vector<RowCopy>* scatters);

  // Appends the updates of the rows of table t that are held.
  //   gradients: [n, dim], rows: [n] of the slab, device; those in staging are passed over
  void AppendUpdatesOf(size_t t, const StepContext& context, Matrix gradients,
                       DeviceSpan<const int32_t> rows, std::vector<RowUpdateGroup>* updates);
  // Notes that update, which stands for counts[i] lookups of rows[i]. Rows that it passed over
  // since they have no gradient count as updated.
  void NoteUpdates(size_t t, absl::Span<const int32_t> rows, absl::Span<const uint32_t> counts);
  // Adds the copies of the rows that the step writes early, so that not too many are newer than
  // the servers'. They stay held; their values are those of the device when the copies run.
  void WriteAhead(StepContext* context, std::vector<RowCopy>* gathers);
  // Adds what a push assigns to the servers' rows.
  void AddEvicted(const StepContext& context, PushesByServer* wave) const;
  void AddWrittenAhead(const StepContext& context, PushesByServer* wave) const;

  bool HasUnwritten() const;
  // Chooses rows that are newer than the servers', until none is or about `most_bytes` are chosen;
  // they count as written. Returns whether there are more.
  //   keys: [tables]
  bool ChooseUnwritten(uint64_t most_bytes, std::vector<CachedKeys>* keys);
  // Adds the copy of the rows of table t to the host. Returns where they will be: [keys, width].
  DownloadArena::Array<float> Gather(size_t t, const CachedKeys& keys, StepTransfers* transfers,
                                     std::vector<RowCopy>* gathers);
  size_t WidthOf(size_t table) const { return slabs_[group_of_[table]]->layout().row_floats; }

  DeviceSlab& SlabOf(size_t table) { return *slabs_[group_of_[table]]; }
  const RowSourceOptions& options() const { return options_; }
  // The sums over all steps so far. May be called from any thread.
  CacheCounts counts() const;
  void Count(const CacheCounts& planned);

 private:
  StepTransfers* TransfersOf(StepContext* context) const {
    return context->owner_transfers != nullptr ? context->owner_transfers
                                               : context->transfers.get();
  }
  void TakeEvicted(size_t table, StepContext* context, std::vector<RowCopy>* gathers);
  void PlaceLoaded(size_t table, StepContext* context, std::vector<RowCopy>* scatters);
  bool Choose(double share, uint64_t most_bytes);
  void TakeChosen(size_t table, CachedKeys* keys);
  void AddWritten(size_t table, const WrittenRows& written, PushesByServer* wave) const;

  const RowSourceOptions options_;
  const double max_unwritten_share_;  // of the rows of a slab
  Device* const device_;

  std::vector<std::unique_ptr<DeviceSlab>> slabs_;  // [groups]
  std::vector<size_t> group_of_;                    // [tables]
  // Rows chosen to be written: [tables * servers]. Used only within a call.
  std::vector<std::vector<HeldRows::Unwritten>> chosen_;

  mutable absl::Mutex mutex_;
  CacheCounts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_ROW_SLABS_H_
