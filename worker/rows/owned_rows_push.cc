// What the rows held add to a push: evicted rows, some that are written ahead, and at a checkpoint
// all that are newer than the servers'.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "worker/rows/owned_rows.h"

namespace thermocline {
namespace {

// Pieces of a write-back that are on the host at a time.
constexpr size_t kPiecesHeld = 4;

}  // namespace

// All rows of the cache that are newer than the servers', for one push, in pieces. If there are few
// pieces, their values stay until the push is acknowledged. Otherwise they are lent to the session:
// a place is reused when every server has its piece, and the training thread waits for the
// acknowledgement, so that rows do not change and can be read again if a restarted server has lost
// pieces.
struct OwnedRows::WrittenBack {
  struct Table {
    CachedKeys keys;
    UninitializedVector<uint32_t> counts;
    size_t first_float = 0;  // of its rows in the piece
  };
  struct Piece {
    std::vector<Table> tables;
    size_t floats = 0;
  };
  std::vector<Piece> pieces;
  size_t first_wave = 0;                           // piece p is wave first_wave + p of its push
  std::vector<UninitializedVector<float>> places;  // piece p is at p modulo their number

  bool is_lent() const { return places.size() < pieces.size(); }
  float* PlaceOf(size_t piece) { return places[piece % places.size()].data(); }

  // Waits until the piece's place is free, and takes it. False: the push is over.
  bool TakePlace(size_t piece) {
    const auto is_free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
      return is_over || PlaceIsFree(piece);
    };
    absl::MutexLock lock(&mutex, absl::Condition(&is_free));
    if (!is_over) is_here[piece] = true;
    return !is_over;
  }
  // Waits until a piece with a free place is wanted again, and takes its place. Empty: the push is
  // over.
  std::optional<size_t> TakeWanted() {
    std::optional<size_t> found;
    const auto has_news = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
      for (const size_t piece : wanted) {
        if (found.has_value()) break;
        if (PlaceIsFree(piece)) found = piece;
      }
      return is_over || found.has_value();
    };
    absl::MutexLock lock(&mutex, absl::Condition(&has_news));
    if (is_over) return std::nullopt;
    wanted.erase(*found);
    is_here[*found] = true;
    return found;
  }
  // The session's callbacks, on any thread.
  void Return(size_t piece) {
    absl::MutexLock lock(&mutex);
    is_here[piece] = false;
  }
  void Want(size_t piece) {
    absl::MutexLock lock(&mutex);
    wanted.insert(piece);
  }
  void End() {
    absl::MutexLock lock(&mutex);
    is_over = true;
  }

  bool PlaceIsFree(size_t piece) const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    for (size_t other = piece % places.size(); other < pieces.size(); other += places.size()) {
      if (is_here[other]) return false;
    }
    return true;
  }

  absl::Mutex mutex;
  std::vector<bool> is_here ABSL_GUARDED_BY(mutex);  // [pieces] released, and not returned
  std::set<size_t> wanted ABSL_GUARDED_BY(mutex);
  bool is_over ABSL_GUARDED_BY(mutex) = false;
};

void OwnedRows::AddEvicted(const OfStep& step,
                           std::vector<std::vector<wire::PushSlice>>* wave) const {
  for (size_t t = 0; t < step.tables.size(); ++t) AddWritten(t, step.tables[t].evicted, wave);
}

void OwnedRows::AddWrittenAhead(const OfStep& step,
                                std::vector<std::vector<wire::PushSlice>>* wave) const {
  for (size_t t = 0; t < step.tables.size(); ++t) AddWritten(t, step.tables[t].written_ahead, wave);
}

void OwnedRows::AddWritten(size_t t, const WrittenRows& written,
                           std::vector<std::vector<wire::PushSlice>>* wave) const {
  AddPushSlices(SharesOf(options_.tables[t].id, written.keys), wire::PushKind::kAssign,
                written.counts, written.rows.host, wave);
}

std::shared_ptr<OwnedRows::WrittenBack> OwnedRows::ChooseWriteBack() {
  const auto written = std::make_shared<WrittenBack>();
  size_t most_floats = 0;
  for (bool more = true; more;) {
    more = ChooseUnwritten(/*share=*/0, options_.write_back_piece_bytes);
    WrittenBack::Piece& piece = written->pieces.emplace_back();
    piece.tables.resize(options_.tables.size());
    for (size_t t = 0; t < options_.tables.size(); ++t) {
      WrittenBack::Table& table = piece.tables[t];
      TakeChosen(t, &table.keys, &table.counts);
      table.first_float = piece.floats;
      piece.floats += table.keys.keys.size() * WidthOf(t);
    }
    most_floats = std::max(most_floats, piece.floats);
  }
  written->places.resize(std::min(written->pieces.size(), kPiecesHeld));
  for (UninitializedVector<float>& place : written->places) place.resize(most_floats);
  absl::MutexLock lock(&written->mutex);
  written->is_here.resize(written->pieces.size());
  return written;
}

void OwnedRows::AddPieces(WrittenBack* written, PushWork* push) const {
  written->first_wave = push->waves.size();
  for (size_t p = 0; p < written->pieces.size(); ++p) {
    push->waves.emplace_back(options_.num_servers);
    const WrittenBack::Piece& piece = written->pieces[p];
    for (size_t t = 0; t < piece.tables.size(); ++t) {
      const WrittenBack::Table& table = piece.tables[t];
      const size_t floats = table.keys.keys.size() * WidthOf(t);
      AddPushSlices(SharesOf(options_.tables[t].id, table.keys), wire::PushKind::kAssign,
                    table.counts,
                    absl::MakeConstSpan(written->PlaceOf(p) + table.first_float, floats),
                    &push->waves.back());
    }
  }
}

// Queues the copies of the rows to the host, after all operations queued so far.
absl::Status OwnedRows::FillPiece(size_t p, WrittenBack* written) {
  const WrittenBack::Piece& piece = written->pieces[p];
  if (of_pieces_ == nullptr) of_pieces_ = std::make_unique<StepTransfers>(device_);
  StepTransfers* const transfers = of_pieces_.get();
  transfers->upload.Clear();
  transfers->download.Clear();
  std::vector<RowCopy> gathers;
  std::vector<DownloadArena::Array<float>> packed(piece.tables.size());
  for (size_t t = 0; t < piece.tables.size(); ++t) {
    const CachedKeys& keys = piece.tables[t].keys;
    const int width = WidthOf(t);
    packed[t] = transfers->download.Add<float>(keys.keys.size() * width);
    if (keys.size() == 0) continue;
    gathers.push_back({SlabOf(t).Rows(width), transfers->upload.Add(absl::MakeConstSpan(keys.rows)),
                       FloatMatrix(packed[t].device.data, keys.size(), width)});
  }
  transfers->upload.Send(Stream::kCompute);
  device_->GatherRows(gathers);
  transfers->download.Send(Stream::kCompute);
  RETURN_IF_ERROR(device_->Synchronize());
  for (size_t t = 0; t < piece.tables.size(); ++t) {
    std::copy(packed[t].host.begin(), packed[t].host.end(),
              written->PlaceOf(p) + piece.tables[t].first_float);
  }
  return absl::OkStatus();
}

void OwnedRows::StartPush(const std::shared_ptr<StepContext>& context, PushWork push,
                          std::vector<std::vector<wire::PushSlice>> dense, OfStep* step) {
  std::shared_ptr<WrittenBack> written;
  if (options_.updates_rows() && context->writes_back) {
    written = ChooseWriteBack();
    AddPieces(written.get(), &push);
  }
  if (!dense.empty()) push.waves.push_back(std::move(dense));
  if (written != nullptr && written->is_lent()) {
    const size_t first = written->first_wave;
    push.lent.resize(push.waves.size());
    std::fill_n(push.lent.begin() + first, written->pieces.size(), true);
    push.on_returned = [written, first](size_t wave) { written->Return(wave - first); };
    push.on_wanted = [written, first](size_t wave) { written->Want(wave - first); };
  }
  step->written_back = written;
  session_->StartPush(std::move(push), [context, written](const absl::Status&) {
    if (written != nullptr) written->End();
  });
}

absl::Status OwnedRows::SendPieces(Step at, OfStep* step) {
  WrittenBack* const written = step->written_back.get();
  if (written == nullptr) return absl::OkStatus();
  for (size_t p = 0; p < written->pieces.size(); ++p) {
    if (!written->TakePlace(p)) return session_->status();
    RETURN_IF_ERROR(FillPiece(p, written));
    RETURN_IF_ERROR(session_->ReleaseWave(at, written->first_wave + p));
  }
  return absl::OkStatus();
}

absl::Status OwnedRows::FinishPush(Step at, OfStep* step) {
  const std::shared_ptr<WrittenBack> written = std::exchange(step->written_back, nullptr);
  if (written == nullptr || !written->is_lent()) return absl::OkStatus();
  while (const std::optional<size_t> piece = written->TakeWanted()) {
    RETURN_IF_ERROR(FillPiece(*piece, written.get()));
    RETURN_IF_ERROR(session_->ReleaseWaveAgain(at, written->first_wave + *piece));
  }
  return session_->status();
}

}  // namespace thermocline
