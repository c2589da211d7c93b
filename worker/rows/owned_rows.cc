#include "worker/rows/owned_rows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

// The metadata of held rows is prefetched so many rows ahead.
constexpr size_t kRowsAhead = 16;

// Of the rows of each slab. Owners hold different keys, each as many of every server.
double MaxUnwrittenShare(const CachedSourceOptions& options) {
  const double capacity_bytes = static_cast<double>(options.layout.capacity_bytes());
  const double max_bytes =
      static_cast<double>(options.max_unwritten_bytes) * options.num_servers / options.num_workers;
  return max_bytes < capacity_bytes ? max_bytes / capacity_bytes : 1;
}

}  // namespace

OwnedRows::OwnedRows(const CachedSourceOptions& options, PsSession* session, Device* device)
    : options_(options),
      max_unwritten_share_(MaxUnwrittenShare(options)),
      session_(session),
      device_(device),
      group_of_(options.tables.size()),
      chosen_(options.tables.size() * options.num_servers) {
  CHECK_LT(options.prefetch_steps, options.window_steps);
  for (const CacheGroupLayout& group : options.layout.groups) {
    for (const int32_t table : group.tables) group_of_[table] = slabs_.size();
    slabs_.push_back(std::make_unique<DeviceSlab>(group, device));
  }
}

PullWork OwnedRows::Begin(const CachePlan* plan, StepTransfers* transfers, OfStep* step) {
  step->plan = plan;
  step->transfers = transfers;
  step->tables.resize(options_.tables.size());
  PullWork pull;
  pull.with_state = options_.updates_rows();
  pull.slices.resize(options_.num_servers);
  for (size_t t = 0; t < step->tables.size(); ++t) {
    const CachedKeys& keys = plan->tables[t].loaded;
    const int width = WidthOf(t);
    step->tables[t].loaded = transfers->upload.Reserve<float>(keys.keys.size() * width);
    AddPullSlices(SharesOf(options_.tables[t].id, keys), step->tables[t].loaded.host, &pull.slices);
  }
  return pull;
}

absl::Status OwnedRows::ReserveStaging(const CachePlan& plan) {
  std::vector<int32_t> staging(slabs_.size(), 0);
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    staging[group_of_[t]] += plan.tables[t].bypassed.size();
  }
  for (size_t g = 0; g < slabs_.size(); ++g) {
    RETURN_IF_ERROR(slabs_[g]->ReserveStaging(staging[g]));
  }
  return absl::OkStatus();
}

// Evictions of all tables come before loads: a row of the slab may go from one table to another.
void OwnedRows::Place(Step complete_through, OfStep* step, std::vector<RowCopy>* gathers,
                      std::vector<RowCopy>* scatters) {
  for (size_t t = 0; t < options_.tables.size(); ++t) TakeEvicted(t, step, gathers);
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    PlaceLoaded(t, complete_through, step, scatters);
  }
  Count(step->plan->counts);
}

void OwnedRows::Count(const CacheCounts& planned) {
  absl::MutexLock lock(&mutex_);
  counts_.hits += planned.hits;
  counts_.loaded += planned.loaded;
  counts_.bypassed += planned.bypassed;
  counts_.rejected_no_room += planned.rejected_no_room;
  counts_.evicted += planned.evicted;
  counts_.rows_held = planned.rows_held;
  counts_.rows_kept = planned.rows_kept;
}

// Copies evicted rows that are newer than the servers' to the host.
void OwnedRows::TakeEvicted(size_t t, OfStep* step, std::vector<RowCopy>* gathers) {
  const CachedKeys& evicted = step->plan->tables[t].evicted;
  HeldRows& held = SlabOf(t).held();
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    for (int32_t i = evicted.server_begin[server]; i < evicted.server_begin[server + 1]; ++i) {
      const int32_t row = evicted.rows[i];
      CHECK_EQ(held.key(row), evicted.keys[i]);
      const uint32_t lookups = held.TakeUnwritten(row);
      if (lookups > 0) chosen_[t * options_.num_servers + server].push_back({row, lookups});
    }
  }
  GatherChosen(t, step->transfers, &step->tables[t].evicted, gathers);
}

// Copies the chosen rows of the table to the host.
void OwnedRows::GatherChosen(size_t t, StepTransfers* transfers, WrittenRows* written,
                             std::vector<RowCopy>* gathers) {
  TakeChosen(t, &written->keys, &written->counts);
  const int32_t count = written->keys.size();
  const int width = WidthOf(t);
  written->rows = transfers->download.Add<float>(size_t{1} * count * width);
  if (count == 0) return;
  gathers->push_back({SlabOf(t).Rows(width),
                      transfers->upload.Add(absl::MakeConstSpan(written->keys.rows)),
                      FloatMatrix(written->rows.device.data, count, width)});
}

// Copies pulled rows to their places in the slab.
void OwnedRows::PlaceLoaded(size_t t, Step complete_through, OfStep* step,
                            std::vector<RowCopy>* scatters) {
  const CachedKeys& loaded = step->plan->tables[t].loaded;
  if (loaded.size() == 0) return;
  const float* const packed = step->tables[t].loaded.device.data;
  const int width = WidthOf(t);
  scatters->push_back({SlabOf(t).Rows(width),
                       step->transfers->upload.Add(absl::MakeConstSpan(loaded.rows)),
                       // The device only reads it.
                       FloatMatrix(const_cast<float*>(packed), loaded.size(), width)});
  for (int32_t i = 0; i < loaded.size(); ++i) {
    SlabOf(t).held().Hold(loaded.rows[i], static_cast<int32_t>(t), loaded.keys[i],
                          complete_through);
  }
}

RowUpdateGroup OwnedRows::UpdateOf(size_t t, const StepContext& context, Matrix gradients,
                                   DeviceSpan<const int32_t> rows) {
  const OptimizerConfig& optimizer = options_.tables[t].optimizer;
  return {optimizer, ScalarsForStep(optimizer, context.learning_rate, context.optimizer_step()),
          gradients, rows, SlabOf(t).CachedRows()};
}

void OwnedRows::NoteUpdates(size_t t, absl::Span<const int32_t> rows,
                            absl::Span<const uint32_t> counts) {
  DeviceSlab& slab = SlabOf(t);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t ahead = rows[std::min(i + kRowsAhead, rows.size() - 1)];
    if (slab.IsCached(ahead)) slab.held().Prefetch(ahead);
    if (slab.IsCached(rows[i])) slab.held().AddUpdate(rows[i], counts[i]);
  }
}

// Chooses rows that are newer than the servers', until at most `share` of each slab is newer or
// about `most_bytes` are chosen. Returns whether there are more.
bool OwnedRows::ChooseUnwritten(double share, uint64_t most_bytes) {
  const ClusterMap cluster(options_.num_servers);
  uint64_t bytes = 0;
  for (const auto& slab : slabs_) {
    HeldRows& held = slab->held();
    const auto most = static_cast<int32_t>(share * slab->layout().capacity);
    while (held.num_unwritten() > most) {
      if (bytes >= most_bytes) return true;
      bytes += sizeof(float) * slab->layout().row_floats;
      const HeldRows::Unwritten chosen = held.TakeOldest();
      const int32_t t = held.table(chosen.row);
      const uint64_t hash = KeyHash(TableSalt(options_.tables[t].id), held.key(chosen.row));
      chosen_[t * options_.num_servers + cluster.ServerOfHash(hash).value()].push_back(chosen);
    }
  }
  return false;
}

void OwnedRows::TakeChosen(size_t t, CachedKeys* keys, UninitializedVector<uint32_t>* counts) {
  const HeldRows& held = SlabOf(t).held();
  keys->keys.clear();
  keys->rows.clear();
  keys->server_begin.assign(1, 0);
  counts->clear();
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    std::vector<HeldRows::Unwritten>& chosen = chosen_[t * options_.num_servers + server];
    for (const HeldRows::Unwritten& one : chosen) {
      keys->keys.push_back(held.key(one.row));
      keys->rows.push_back(one.row);
      counts->push_back(one.lookups);
    }
    chosen.clear();
    keys->server_begin.push_back(keys->size());
  }
}

// A row written ahead has been neither evicted nor bypassed in this step, so that no key comes
// twice in its push.
void OwnedRows::WriteAhead(OfStep* step, std::vector<RowCopy>* gathers) {
  ChooseUnwritten(max_unwritten_share_, std::numeric_limits<uint64_t>::max());
  int64_t rows = 0;
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    WrittenRows& written = step->tables[t].written_ahead;
    GatherChosen(t, step->transfers, &written, gathers);
    rows += written.keys.size();
  }
  step->transfers->upload.Send(Stream::kCompute);
  absl::MutexLock lock(&mutex_);
  counts_.written_ahead += rows;
}

CacheCounts OwnedRows::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace thermocline
