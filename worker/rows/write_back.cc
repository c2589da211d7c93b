#include "worker/rows/write_back.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// Pieces of a write-back that are on the host at a time.
constexpr size_t kPiecesHeld = 4;

}  // namespace

std::shared_ptr<WriteBack> WriteBack::Begin(RowSlabs* slabs, StepTransfers* transfers,
                                            PsSession* session, Device* device, PushWork* push) {
  const std::shared_ptr<WriteBack> made(new WriteBack(slabs, transfers, session, device));
  made->ChoosePieces();
  made->AddWaves(push);
  return made;
}

void WriteBack::ChoosePieces() {
  size_t most_floats = 0;
  for (bool more = true; more;) {
    Piece& piece = pieces_.emplace_back();
    more = slabs_.ChooseUnwritten(slabs_.options().piece_bytes, &piece.keys);
    for (size_t t = 0; t < piece.keys.size(); ++t) {
      piece.first_floats.push_back(piece.floats);
      piece.floats += piece.keys[t].keys.size() * slabs_.WidthOf(t);
    }
    most_floats = std::max(most_floats, piece.floats);
  }
  places_.resize(std::min(pieces_.size(), kPiecesHeld));
  for (UninitializedVector<float>& place : places_) place.resize(most_floats);
  absl::MutexLock lock(&mutex_);
  is_here_.resize(pieces_.size());
}

void WriteBack::AddWaves(PushWork* push) {
  first_wave_ = push->waves.size();
  for (size_t p = 0; p < pieces_.size(); ++p) {
    PushesByServer& wave = push->waves.emplace_back(slabs_.options().num_servers);
    const Piece& piece = pieces_[p];
    for (size_t t = 0; t < piece.keys.size(); ++t) {
      const size_t floats = piece.keys[t].keys.size() * slabs_.WidthOf(t);
      AddPush(SharesOf(slabs_.options().tables[t].id, piece.keys[t]), wire::PushKind::kAssign,
              absl::MakeConstSpan(PlaceOf(p) + piece.first_floats[t], floats), &wave);
    }
  }
  if (!is_lent()) return;
  push->lent.resize(first_wave_);
  push->lent.resize(push->waves.size(), true);
  push->on_returned = [self = shared_from_this()](size_t wave) {
    absl::MutexLock lock(&self->mutex_);
    self->is_here_[wave - self->first_wave_] = false;
  };
  push->on_wanted = [self = shared_from_this()](size_t wave) {
    absl::MutexLock lock(&self->mutex_);
    self->wanted_.insert(wave - self->first_wave_);
  };
}

void WriteBack::AddTasks(Step step, StepTasks* tasks) {
  {
    absl::MutexLock lock(&mutex_);
    if (next_ == pieces_.size() && !is_lent()) return;
  }
  tasks->After(StepWait::For(this),
               [self = shared_from_this(), step, tasks] { return self->SendNext(step, tasks); });
}

// Queues the copies of the rows to the host, after all operations queued so far.
absl::Status WriteBack::SendNext(Step step, StepTasks* tasks) {
  std::optional<size_t> p;
  bool again = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!is_over_) p = NextPiece();
    if (p.has_value()) {
      again = next_ == pieces_.size();
      again ? static_cast<void>(wanted_.erase(*p)) : static_cast<void>(++next_);
      is_here_[*p] = true;
    }
  }
  if (!p.has_value()) return session_.status();  // The push is over.
  transfers_.upload.Clear();
  transfers_.download.Clear();
  packed_.clear();
  std::vector<RowCopy> gathers;
  for (size_t t = 0; t < pieces_[*p].keys.size(); ++t) {
    packed_.push_back(slabs_.Gather(t, pieces_[*p].keys[t], &transfers_, &gathers));
  }
  transfers_.upload.Send(Stream::kCompute);
  device_.GatherRows(gathers);
  transfers_.download.Send(Stream::kCompute);
  device_.Record(Stream::kCompute, transfers_.finished.get());
  tasks->After(StepWait::For(transfers_.finished.get()),
               [self = shared_from_this(), step, tasks, piece = *p, again] {
                 RETURN_IF_ERROR(self->Release(step, piece, again));
                 self->AddTasks(step, tasks);
                 return absl::OkStatus();
               });
  return absl::OkStatus();
}

absl::Status WriteBack::Release(Step step, size_t p, bool again) {
  for (size_t t = 0; t < packed_.size(); ++t) {
    std::copy(packed_[t].host.begin(), packed_[t].host.end(),
              PlaceOf(p) + pieces_[p].first_floats[t]);
  }
  return again ? session_.ReleaseWaveAgain(step, first_wave_ + p)
               : session_.ReleaseWave(step, first_wave_ + p);
}

void WriteBack::End() {
  absl::MutexLock lock(&mutex_);
  is_over_ = true;
}

bool WriteBack::PlaceIsFree(size_t piece) const {
  for (size_t other = piece % places_.size(); other < pieces_.size(); other += places_.size()) {
    if (is_here_[other]) return false;
  }
  return true;
}

// The piece that can be sent now, if there is one: pieces in their order, then those that are
// wanted again.
std::optional<size_t> WriteBack::NextPiece() const {
  if (next_ < pieces_.size()) {
    return PlaceIsFree(next_) ? std::optional<size_t>(next_) : std::nullopt;
  }
  for (const size_t piece : wanted_) {
    if (PlaceIsFree(piece)) return piece;
  }
  return std::nullopt;
}

bool WriteBack::IsOver() const {
  absl::MutexLock lock(&mutex_);
  return is_over_ || NextPiece().has_value();
}

void WriteBack::Wait() const {
  const auto can_go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return is_over_ || NextPiece().has_value();
  };
  absl::MutexLock lock(&mutex_, absl::Condition(&can_go_on));
}

}  // namespace thermocline
