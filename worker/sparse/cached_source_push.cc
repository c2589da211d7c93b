// What a cached step sends back: gradients of rows that aren't held, rows that leave, and at a cut
// all that the servers don't know.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/cluster_map.h"
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
    AddPushSlices(SharesOf(plan.id, table.written_back), wire::PushKind::kAssign,
                  table.written_back_counts, table.written_back_rows.host, &push->waves[0]);
  }
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

absl::StatusOr<std::shared_ptr<CachedSource::WrittenBack>> CachedSource::WriteBack() {
  const auto written = std::make_shared<WrittenBack>();
  const ClusterMap cluster(options_.num_servers);
  const size_t num_tables = options_.tables.size();
  written->tables.resize(num_tables);
  // Rows by table and server.
  std::vector<std::vector<int32_t>> rows(num_tables * options_.num_servers);
  for (const auto& slab : slabs_) {
    for (int32_t row = 0; row < slab->layout().capacity; ++row) {
      const DeviceSlab::Held& held = slab->held(row);
      if (held.unwritten_lookups == 0) continue;
      const TableId table = options_.tables[held.table].id;
      const ServerIndex server = cluster.ServerOfHash(KeyHash(TableSalt(table), held.key));
      rows[held.table * options_.num_servers + server.value()].push_back(row);
    }
  }
  for (size_t t = 0; t < num_tables; ++t) {
    WrittenBack::Table& table = written->tables[t];
    table.keys.server_begin.push_back(0);
    for (uint32_t server = 0; server < options_.num_servers; ++server) {
      for (const int32_t row : rows[t * options_.num_servers + server]) {
        DeviceSlab::Held& held = SlabOf(t).held(row);
        table.keys.keys.push_back(held.key);
        table.keys.rows.push_back(row);
        table.counts.push_back(std::exchange(held.unwritten_lookups, 0));
      }
      table.keys.server_begin.push_back(table.keys.size());
    }
    table.rows.resize(table.keys.keys.size() * WidthOf(t));
    RETURN_IF_ERROR(ReadRows(t, table.keys.rows, absl::MakeSpan(table.rows)));
  }
  return written;
}

absl::Status CachedSource::PushEmbeddings(const std::shared_ptr<StepWork>& work,
                                          float learning_rate, bool write_back) {
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
