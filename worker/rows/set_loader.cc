#include "worker/rows/set_loader.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// One is pulled while the device takes the other.
constexpr size_t kPiecesUnderWay = 2;

}  // namespace

SetLoader::SetLoader(RowSlabs* slabs, PsSession* session, Device* device)
    : slabs_(*slabs), session_(*session), device_(*device) {}

void SetLoader::AddTasks(Step step, StepTasks* tasks) {
  while (pieces_.size() < kPiecesUnderWay) {
    StepContext& piece = *pieces_.emplace_back(std::make_unique<StepContext>());
    piece.transfers = std::make_unique<StepTransfers>(&device_);
    device_.Record(Stream::kCompute, piece.transfers->finished.get());
  }
  has_more_ = true;
  begun_ = placed_ = 0;
  next_table_ = 0;
  next_of_table_ = 0;
  tasks->Then([this, step, tasks] { return GoOn(step, tasks); });
}

// Begins the next piece where there is room for it, else places the one that was begun first.
absl::Status SetLoader::GoOn(Step step, StepTasks* tasks) {
  if (has_more_ && begun_ < placed_ + kPiecesUnderWay) {
    StepContext* const next = pieces_[begun_ % kPiecesUnderWay].get();
    tasks->After(StepWait::For(next->transfers->finished.get()), [this, step, tasks, next] {
      has_more_ = FillPiece(next);
      if (has_more_) PullPiece(step, next);
      return GoOn(step, tasks);
    });
  } else if (placed_ < begun_) {
    StepContext* const first = pieces_[placed_ % kPiecesUnderWay].get();
    tasks->After(StepWait::For(&first->pulls), [this, step, tasks, first] {
      RETURN_IF_ERROR(PlacePiece(first));
      return GoOn(step, tasks);
    });
  }
  return absl::OkStatus();
}

// Takes the rows that follow those of the pieces so far. False: there are no more.
bool SetLoader::FillPiece(StepContext* piece) {
  CachePlan& plan = piece->row_plan.cache;
  const std::vector<int32_t> no_keys(slabs_.options().num_servers + 1, 0);
  plan.tables.resize(slabs_.options().tables.size());
  plan.counts = CacheCounts();
  for (TableCachePlan& table : plan.tables) {
    table.loaded.keys.clear();
    table.loaded.rows.clear();
    table.loaded.server_begin = table.evicted.server_begin = no_keys;
  }
  int64_t& loaded = plan.counts.loaded;
  uint64_t left_bytes = slabs_.options().piece_bytes;
  while (next_table_ < slabs_.options().tables.size()) {
    const size_t t = next_table_;
    const auto rows_of_table = static_cast<int32_t>(rows().keys(t).size());
    const auto row_bytes = static_cast<uint64_t>(slabs_.SlabOf(t).layout().row_bytes());
    const uint64_t fit = std::max<uint64_t>(left_bytes / row_bytes, loaded == 0 ? 1 : 0);
    const auto take = static_cast<int32_t>(std::min<uint64_t>(fit, rows_of_table - next_of_table_));
    AddToPiece(t, next_of_table_ + take, &plan.tables[t].loaded);
    loaded += take;
    left_bytes -= std::min(left_bytes, take * row_bytes);
    if (next_of_table_ < rows_of_table) break;
    ++next_table_;
    next_of_table_ = 0;
  }
  plan.counts.rows_held = rows().layout().capacity_rows();
  return loaded > 0;
}

// Adds the table's rows up to `end`, server by server.
void SetLoader::AddToPiece(size_t t, int32_t end, CachedKeys* keys) {
  const std::vector<Key>& fixed = rows().keys(t);
  const ClusterMap servers(slabs_.options().num_servers);
  const uint64_t salt = TableSalt(slabs_.options().tables[t].id);
  const auto server_of = [&](int32_t i) {
    return servers.ServerOfHash(KeyHash(salt, fixed[i])).value();
  };
  for (int32_t i = next_of_table_; i < end; ++i) ++keys->server_begin[server_of(i) + 1];
  for (size_t s = 1; s < keys->server_begin.size(); ++s) {
    keys->server_begin[s] += keys->server_begin[s - 1];
  }
  std::vector<int32_t> next(keys->server_begin.begin(), keys->server_begin.end() - 1);
  keys->keys.resize(end - next_of_table_);
  keys->rows.resize(end - next_of_table_);
  for (; next_of_table_ < end; ++next_of_table_) {
    const int32_t place = next[server_of(next_of_table_)]++;
    keys->keys[place] = fixed[next_of_table_];
    keys->rows[place] = rows().first_row(t) + next_of_table_;
  }
}

void SetLoader::PullPiece(Step step, StepContext* piece) {
  piece->transfers->upload.Clear();
  piece->transfers->download.Clear();
  piece->pulls.Begin(slabs_.options().num_servers);
  slabs_.AddPulls(piece);
  PullWork& pull = piece->pulls.work(StepPulls::kWithState);
  pull.step = step;
  pull.after_step = step - 1;
  piece->pulls.Start(&session_, step - 1, nullptr);
  ++begun_;
}

absl::Status SetLoader::PlacePiece(StepContext* piece) {
  RETURN_IF_ERROR(piece->pulls.status());
  std::vector<RowCopy> gathers, scatters;
  slabs_.Place(piece, &gathers, &scatters);
  CHECK(gathers.empty());
  slabs_.Count(piece->row_plan.cache.counts);
  piece->transfers->upload.Send(Stream::kCompute);
  device_.ScatterRows(scatters);
  device_.Record(Stream::kCompute, piece->transfers->finished.get());
  ++placed_;
  return absl::OkStatus();
}

}  // namespace thermocline
