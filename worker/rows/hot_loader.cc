#include "worker/rows/hot_loader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/completion.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "worker/rows/embedding_source.h"
#include "worker/rows/step_context.h"

namespace thermocline {
namespace {

// One is pulled while the device takes the other.
constexpr size_t kPiecesUnderWay = 2;

}  // namespace

// Some of the hot rows, on their way from the servers to the device.
struct HotLoader::Piece {
  explicit Piece(Device* device) : transfers(device) {}

  CachePlan plan;  // of its rows: `loaded`
  StepTransfers transfers;
  OwnedRows::OfStep held;
  Completion fetched;
  Step complete_through;  // once `fetched`
  bool is_under_way = false;
};

HotLoader::HotLoader(const HotRows* hot_rows, uint64_t piece_bytes, OwnedRows* rows,
                     PsSession* session, Device* device)
    : hot_rows_(hot_rows),
      piece_bytes_(piece_bytes),
      rows_(rows),
      session_(session),
      device_(device) {}

HotLoader::~HotLoader() = default;

absl::Status HotLoader::Load(Step step) {
  while (pieces_.size() < kPiecesUnderWay) pieces_.push_back(std::make_unique<Piece>(device_));
  absl::Status status = LoadPieces(step);
  if (status.ok()) return device_->Synchronize();
  // Pulls write into the pieces until they are over.
  session_->Fail(status);
  for (const std::unique_ptr<Piece>& piece : pieces_) {
    if (piece->is_under_way) status.Update(piece->fetched.Wait());
  }
  status.Update(device_->Synchronize());
  return status;
}

absl::Status HotLoader::LoadPieces(Step step) {
  next_table_ = 0;
  next_of_table_ = 0;
  size_t begun = 0, placed = 0;
  for (bool more = true; more || placed < begun;) {
    Piece* const next = pieces_[begun % kPiecesUnderWay].get();
    if (!more || begun == placed + kPiecesUnderWay) {
      RETURN_IF_ERROR(PlacePiece(pieces_[placed++ % kPiecesUnderWay].get()));
      continue;
    }
    if (begun >= kPiecesUnderWay) RETURN_IF_ERROR(next->transfers.finished->Wait());
    more = FillPiece(next);
    if (!more) continue;
    PullPiece(step, next);
    ++begun;
  }
  return absl::OkStatus();
}

// The hot rows that follow those of the pieces so far. False: there are no more.
bool HotLoader::FillPiece(Piece* piece) {
  const std::vector<int32_t> no_keys(options().num_servers + 1, 0);
  piece->plan.tables.resize(options().tables.size());
  piece->plan.counts = CacheCounts();
  for (TableCachePlan& table : piece->plan.tables) {
    table.loaded.keys.clear();
    table.loaded.rows.clear();
    table.loaded.server_begin = table.evicted.server_begin = no_keys;
  }
  int64_t& rows = piece->plan.counts.loaded;
  uint64_t left_bytes = piece_bytes_;
  while (next_table_ < options().tables.size()) {
    const size_t t = next_table_;
    const auto rows_of_table = static_cast<int32_t>(hot_rows_->keys(t).size());
    const auto row_bytes = static_cast<uint64_t>(rows_->SlabOf(t).layout().row_bytes());
    const uint64_t fit = std::max<uint64_t>(left_bytes / row_bytes, rows == 0 ? 1 : 0);
    const auto take = static_cast<int32_t>(std::min<uint64_t>(fit, rows_of_table - next_of_table_));
    AddToPiece(t, next_of_table_ + take, &piece->plan.tables[t].loaded);
    rows += take;
    left_bytes -= std::min(left_bytes, take * row_bytes);
    if (next_of_table_ < rows_of_table) break;
    ++next_table_;
    next_of_table_ = 0;
  }
  piece->plan.counts.rows_held = hot_rows_->layout().capacity_rows();
  return rows > 0;
}

// Adds the table's hot rows up to `end`, server by server.
void HotLoader::AddToPiece(size_t t, int32_t end, CachedKeys* keys) {
  const std::vector<Key>& hot = hot_rows_->keys(t);
  const ClusterMap servers(options().num_servers);
  const uint64_t salt = TableSalt(options().tables[t].id);
  const auto server_of = [&](int32_t i) {
    return servers.ServerOfHash(KeyHash(salt, hot[i])).value();
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
    keys->keys[place] = hot[next_of_table_];
    keys->rows[place] = hot_rows_->first_row(t) + next_of_table_;
  }
}

void HotLoader::PullPiece(Step step, Piece* piece) {
  piece->transfers.upload.Clear();
  piece->transfers.download.Clear();
  PullWork pull = rows_->Begin(&piece->plan, &piece->transfers, &piece->held);
  pull.step = step;
  pull.after_step = step - 1;
  piece->fetched.Reset();
  piece->is_under_way = true;
  session_->Pull(std::move(pull), [piece](absl::Status status, Step through) {
    piece->complete_through = through;
    piece->fetched.Deliver(std::move(status));
  });
}

absl::Status HotLoader::PlacePiece(Piece* piece) {
  RETURN_IF_ERROR(piece->fetched.Wait());
  piece->is_under_way = false;
  std::vector<RowCopy> gathers, scatters;
  rows_->Place(piece->complete_through, &piece->held, &gathers, &scatters);
  CHECK(gathers.empty());
  piece->transfers.upload.Send(Stream::kCompute);
  device_->ScatterRows(scatters);
  device_->Record(Stream::kCompute, piece->transfers.finished.get());
  return absl::OkStatus();
}

}  // namespace thermocline
