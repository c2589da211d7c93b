// What a cached step sends back: gradients of rows that aren't held, rows that leave, and at a cut
// all that the servers don't know.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cluster_map.h"
#include "common/finite.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "worker/sparse/cached_source.h"
#include "worker/sparse/key_shares.h"

namespace thermocline {
namespace {

// Rows that come to the host at a time when everything is written back.
constexpr size_t kChunkBytes = size_t{64} << 20;

}  // namespace

// Everything that the cache alone holds, for one push.
struct CachedSource::WrittenBack {
  struct Table {
    CachedKeys keys;
    UninitializedVector<uint32_t> counts;
    UninitializedVector<float> rows;  // [keys, row_floats]
  };
  std::vector<Table> tables;
};

void CachedSource::AddGradients(const StepWork& work, PushWork* push) const {
  for (size_t t = 0; t < work.tables.size(); ++t) {
    const TablePlan& plan = work.plan.tables[t];
    if (!owns_rows()) {
      AddPushSlices(SharesOf(plan.id, plan), wire::PushKind::kGradient, plan.counts,
                    work.pushed[t].host, &push->waves[0]);
      continue;
    }
    const CachedTableWork& table = work.cached[t];
    AddPushSlices(SharesOf(plan.id, work.cache_plan.tables[t].bypassed), wire::PushKind::kGradient,
                  table.bypassed_counts, table.bypassed_gradients.host, &push->waves[0]);
    for (const WrittenRows* written : {&table.evicted, &table.written_ahead}) {
      AddPushSlices(SharesOf(plan.id, written->keys), wire::PushKind::kAssign, written->counts,
                    written->rows.host, &push->waves[0]);
    }
  }
}

// Of the rows held nothing is pushed, so that nothing else would find it.
absl::Status CachedSource::CheckGradients(StepWork* work) const {
  if (!owns_rows()) return absl::OkStatus();
  int64_t at = work->outcome()->bad_row_gradient;
  for (size_t t = 0; t < work->tables.size(); ++t) {
    const int64_t dim = options_.tables[t].dim;
    const int64_t floats = int64_t{work->tables[t].gradients.rows} * dim;
    if (at < floats) {
      return absl::InvalidArgumentError(absl::StrCat(
          "step ", work->step().value(), ": the gradient of table '", options_.tables[t].name,
          "', key ", work->plan.tables[t].keys[at / dim], " is not finite", kRateHint));
    }
    at -= floats;
  }
  return absl::OkStatus();
}

absl::Status CachedSource::ReadRows(size_t t, absl::Span<const int32_t> rows,
                                    absl::Span<float> values) {
  const DeviceSlab& slab = SlabOf(t);
  const size_t width = WidthOf(t);
  const size_t chunk_rows = std::max<size_t>(1, kChunkBytes / (sizeof(float) * width));
  UploadArena upload(device_);
  DownloadArena download(device_);
  for (size_t begin = 0; begin < rows.size(); begin += chunk_rows) {
    const absl::Span<const int32_t> chunk = rows.subspan(begin, chunk_rows);
    upload.Clear();
    download.Clear();
    const DownloadArena::Array<float> packed = download.Add<float>(chunk.size() * width);
    const RowCopy copy = {slab.Rows(static_cast<int>(width)), upload.Add(chunk),
                          FloatMatrix(packed.device.data, static_cast<int32_t>(chunk.size()),
                                      static_cast<int32_t>(width))};
    upload.Send(Stream::kCompute);
    device_->GatherRows({copy});
    download.Send(Stream::kCompute);
    RETURN_IF_ERROR(device_->Synchronize());
    std::memcpy(&values[begin * width], packed.host.data(), sizeof(float) * packed.host.size());
  }
  return absl::OkStatus();
}

// Takes rows that the servers don't know until these are no more than `share` of each slab.
void CachedSource::ChooseUnwritten(double share) {
  const ClusterMap cluster(options_.num_servers);
  for (const auto& slab : slabs_) {
    HeldRows& held = slab->held();
    const auto most = static_cast<int32_t>(share * slab->layout().capacity);
    while (held.num_unwritten() > most) {
      const HeldRows::Unwritten chosen = held.TakeOldest();
      const int32_t t = held.table(chosen.row);
      const uint64_t hash = KeyHash(TableSalt(options_.tables[t].id), held.key(chosen.row));
      chosen_[t * options_.num_servers + cluster.ServerOfHash(hash).value()].push_back(chosen);
    }
  }
}

void CachedSource::TakeChosen(size_t t, CachedKeys* keys, UninitializedVector<uint32_t>* counts) {
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

// Bounds what a cut will have to push. A row written ahead is held on and has been neither evicted
// nor bypassed in this step, so that no key comes twice in its push.
int64_t CachedSource::WriteAhead(StepWork* work, std::vector<RowCopy>* gathers) {
  ChooseUnwritten(max_unwritten_share_);
  int64_t rows = 0;
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    WrittenRows& written = work->cached[t].written_ahead;
    GatherChosen(work, t, &written, gathers);
    rows += written.keys.size();
  }
  work->upload().Send(Stream::kCompute);
  return rows;
}

absl::StatusOr<std::shared_ptr<CachedSource::WrittenBack>> CachedSource::WriteBack() {
  const auto written = std::make_shared<WrittenBack>();
  written->tables.resize(options_.tables.size());
  ChooseUnwritten(/*share=*/0);
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    WrittenBack::Table& table = written->tables[t];
    TakeChosen(t, &table.keys, &table.counts);
    table.rows.resize(table.keys.keys.size() * WidthOf(t));
    RETURN_IF_ERROR(ReadRows(t, table.keys.rows, absl::MakeSpan(table.rows)));
  }
  return written;
}

absl::Status CachedSource::PushEmbeddings(const std::shared_ptr<StepWork>& work,
                                          float learning_rate, bool write_back) {
  RETURN_IF_ERROR(CheckGradients(work.get()));
  PushWork push;
  push.first_step = push.last_step = work->step();
  push.learning_rate = learning_rate;
  push.waves.emplace_back(options_.num_servers);
  AddGradients(*work, &push);
  std::shared_ptr<WrittenBack> written;
  if (write_back && owns_rows()) {
    ASSIGN_OR_RETURN(written, WriteBack());
    for (size_t t = 0; t < written->tables.size(); ++t) {
      const WrittenBack::Table& table = written->tables[t];
      AddPushSlices(SharesOf(options_.tables[t].id, table.keys), wire::PushKind::kAssign,
                    table.counts, table.rows, &push.waves[0]);
    }
  }
  dense_.AddToPush(work.get(), write_back, &push);
  under_way_.Begin();
  session_->StartPush(std::move(push), [this, work = work, written](absl::Status status) mutable {
    work.reset();
    written.reset();
    under_way_.End(status);
  });
  return session_->ReleaseWave(work->step(), 0);
}

}  // namespace thermocline
