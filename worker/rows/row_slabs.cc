#include "worker/rows/row_slabs.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// The metadata of held rows is prefetched so many rows ahead.
constexpr size_t kRowsAhead = 16;

// The share of each slab. Owners hold different keys, each as many of every server.
double MaxUnwrittenShare(const RowSourceOptions& options) {
  const double capacity_bytes = static_cast<double>(options.layout.capacity_bytes());
  const double max_bytes =
      static_cast<double>(options.max_unwritten_bytes) * options.num_servers / options.num_workers;
  return max_bytes < capacity_bytes ? max_bytes / capacity_bytes : 1;
}

}  // namespace

RowSlabs::RowSlabs(const RowSourceOptions& options, Device* device)
    : options_(options),
      max_unwritten_share_(MaxUnwrittenShare(options)),
      device_(device),
      group_of_(options.tables.size()),
      chosen_(options.tables.size() * options.num_servers) {
  for (const CacheGroupLayout& group : options.layout.groups) {
    for (const int32_t table : group.tables) group_of_[table] = slabs_.size();
    slabs_.push_back(std::make_unique<DeviceSlab>(group, device));
  }
}

void RowSlabs::AddPulls(StepContext* context) {
  context->table_transfers.resize(options_.tables.size());
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    const CachedKeys& keys = context->row_plan.cache.tables[t].loaded;
    UploadArena::Array<float>& loaded = context->table_transfers[t].loaded;
    loaded = TransfersOf(context)->upload.Reserve<float>(keys.keys.size() * WidthOf(t));
    AddPull(SharesOf(options_.tables[t].id, keys), loaded.host,
            &context->pulls.work(StepPulls::kWithState).slices);
  }
}

absl::Status RowSlabs::ReserveStaging(const CachePlan& plan) {
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
void RowSlabs::Place(StepContext* context, std::vector<RowCopy>* gathers,
                     std::vector<RowCopy>* scatters) {
  for (size_t t = 0; t < options_.tables.size(); ++t) TakeEvicted(t, context, gathers);
  for (size_t t = 0; t < options_.tables.size(); ++t) PlaceLoaded(t, context, scatters);
}

void RowSlabs::Count(const CacheCounts& planned) {
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
void RowSlabs::TakeEvicted(size_t t, StepContext* context, std::vector<RowCopy>* gathers) {
  const CachedKeys& evicted = context->row_plan.cache.tables[t].evicted;
  HeldRows& held = SlabOf(t).held();
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    for (int32_t i = evicted.server_begin[server]; i < evicted.server_begin[server + 1]; ++i) {
      const int32_t row = evicted.rows[i];
      CHECK_EQ(held.key(row), evicted.keys[i]);
      const uint32_t lookups = held.TakeUnwritten(row);
      if (lookups > 0) chosen_[t * options_.num_servers + server].push_back({row, lookups});
    }
  }
  WrittenRows& written = context->table_transfers[t].evicted;
  TakeChosen(t, &written.keys);
  written.rows = Gather(t, written.keys, TransfersOf(context), gathers);
}

DownloadArena::Array<float> RowSlabs::Gather(size_t t, const CachedKeys& keys,
                                             StepTransfers* transfers,
                                             std::vector<RowCopy>* gathers) {
  const auto width = static_cast<int>(WidthOf(t));
  const DownloadArena::Array<float> rows = transfers->download.Add<float>(keys.keys.size() * width);
  if (keys.size() > 0) {
    gathers->push_back({SlabOf(t).Rows(width),
                        transfers->upload.Add(absl::MakeConstSpan(keys.rows)),
                        FloatMatrix(rows.device.data, keys.size(), width)});
  }
  return rows;
}

// Copies pulled rows to their places in the slab.
void RowSlabs::PlaceLoaded(size_t t, StepContext* context, std::vector<RowCopy>* scatters) {
  const CachedKeys& loaded = context->row_plan.cache.tables[t].loaded;
  if (loaded.size() == 0) return;
  const float* const packed = context->table_transfers[t].loaded.device.data;
  const auto width = static_cast<int>(WidthOf(t));
  scatters->push_back({SlabOf(t).Rows(width),
                       TransfersOf(context)->upload.Add(absl::MakeConstSpan(loaded.rows)),
                       // The device only reads it.
                       FloatMatrix(const_cast<float*>(packed), loaded.size(), width)});
  for (int32_t i = 0; i < loaded.size(); ++i) {
    SlabOf(t).held().Hold(loaded.rows[i], static_cast<int32_t>(t), loaded.keys[i]);
  }
}

void RowSlabs::AppendUpdatesOf(size_t t, const StepContext& context, Matrix gradients,
                               DeviceSpan<const int32_t> rows,
                               std::vector<RowUpdateGroup>* updates) {
  if (!SlabOf(t).layout().holds_rows) return;  // Its servers make the updates.
  AppendUpdates(ScalarsForStep(options_.tables[t].row_optimizer(), context.learning_rate,
                               context.optimizer_step()),
                gradients, rows, SlabOf(t).CachedRows(), updates);
}

void RowSlabs::NoteUpdates(size_t t, absl::Span<const int32_t> rows,
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
bool RowSlabs::Choose(double share, uint64_t most_bytes) {
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

bool RowSlabs::HasUnwritten() const {
  return std::any_of(slabs_.begin(), slabs_.end(),
                     [](const auto& slab) { return slab->held().num_unwritten() > 0; });
}

bool RowSlabs::ChooseUnwritten(uint64_t most_bytes, std::vector<CachedKeys>* keys) {
  const bool more = Choose(/*share=*/0, most_bytes);
  keys->resize(options_.tables.size());
  for (size_t t = 0; t < keys->size(); ++t) TakeChosen(t, &(*keys)[t]);
  return more;
}

void RowSlabs::TakeChosen(size_t t, CachedKeys* keys) {
  const HeldRows& held = SlabOf(t).held();
  keys->keys.clear();
  keys->rows.clear();
  keys->counts.clear();
  keys->server_begin.assign(1, 0);
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    std::vector<HeldRows::Unwritten>& chosen = chosen_[t * options_.num_servers + server];
    for (const HeldRows::Unwritten& one : chosen) {
      keys->keys.push_back(held.key(one.row));
      keys->rows.push_back(one.row);
      keys->counts.push_back(one.lookups);
    }
    chosen.clear();
    keys->server_begin.push_back(keys->size());
  }
}

// A row written ahead has been neither evicted nor bypassed in this step, so that no key comes
// twice in its push.
void RowSlabs::WriteAhead(StepContext* context, std::vector<RowCopy>* gathers) {
  Choose(max_unwritten_share_, std::numeric_limits<uint64_t>::max());
  int64_t rows = 0;
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    WrittenRows& written = context->table_transfers[t].written_ahead;
    TakeChosen(t, &written.keys);
    written.rows = Gather(t, written.keys, TransfersOf(context), gathers);
    rows += written.keys.size();
  }
  TransfersOf(context)->upload.Send(Stream::kCompute);
  absl::MutexLock lock(&mutex_);
  counts_.written_ahead += rows;
}

void RowSlabs::AddEvicted(const StepContext& context, PushesByServer* wave) const {
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    AddWritten(t, context.table_transfers[t].evicted, wave);
  }
}

void RowSlabs::AddWrittenAhead(const StepContext& context, PushesByServer* wave) const {
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    AddWritten(t, context.table_transfers[t].written_ahead, wave);
  }
}

void RowSlabs::AddWritten(size_t t, const WrittenRows& written, PushesByServer* wave) const {
  AddPush(SharesOf(options_.tables[t].id, written.keys), wire::PushKind::kAssign, written.rows.host,
          wave);
}

CacheCounts RowSlabs::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace thermocline
