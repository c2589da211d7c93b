// What a cached step pushes: gradients of rows that are not held, evicted rows, and at a checkpoint
// all rows that are newer than the servers'.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"
#include "worker/source/cached_source.h"
#include "worker/source/cached_source_step.h"

namespace thermocline {
namespace {

// Pieces of a write-back that are on the host at a time.
constexpr size_t kPiecesHeld = 4;
// In a push that writes back, piece p is wave p + 1.
constexpr size_t kFirstPieceWave = 1;

}  // namespace

void CachedSource::AddGradients(const StepContext& context, const OfStep& step,
                                PushWork* push) const {
  for (size_t t = 0; t < context.tables.size(); ++t) {
    const TablePlan& plan = context.plan.tables[t];
    if (!owns_rows()) {
      AddPushSlices(SharesOf(plan.id, plan), wire::PushKind::kGradient, plan.counts,
                    step.tables[t].gradients.host, &push->waves[0]);
      continue;
    }
    const TableOfStep& table = step.tables[t];
    AddPushSlices(SharesOf(plan.id, context.cache_plan.tables[t].bypassed),
                  wire::PushKind::kGradient, table.bypassed_counts, table.bypassed_gradients.host,
                  &push->waves[0]);
    for (const WrittenRows* written : {&table.evicted, &table.written_ahead}) {
      AddPushSlices(SharesOf(plan.id, written->keys), wire::PushKind::kAssign, written->counts,
                    written->rows.host, &push->waves[0]);
    }
  }
}

// Gradients of held rows are not pushed, so no other check would find a bad one.
absl::Status CachedSource::CheckGradients(StepContext* context) const {
  if (!owns_rows()) return absl::OkStatus();
  int64_t at = context->outcome()->bad_row_gradient;
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const int64_t dim = options_.tables[t].dim;
    const int64_t floats = int64_t{context->tables[t].gradients.rows} * dim;
    if (at < floats) {
      return absl::InvalidArgumentError(absl::StrCat(
          "step ", context->step().value(), ": the gradient of table '", options_.tables[t].name,
          "', key ", context->plan.tables[t].keys[at / dim], " is not finite", kRateHint));
    }
    at -= floats;
  }
  return absl::OkStatus();
}

// Chooses rows that are newer than the servers', until at most `share` of each slab is newer or
// about `most_bytes` are chosen. Returns whether there are more.
bool CachedSource::ChooseUnwritten(double share, uint64_t most_bytes) {
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

// Bounds the push of a checkpoint. A row written ahead stays in the cache and has been neither
// evicted nor bypassed in this step, so that no key comes twice in its push.
int64_t CachedSource::WriteAhead(StepContext* context, std::vector<RowCopy>* gathers) {
  OfStep& step = context->of_source.Get<OfStep>();
  ChooseUnwritten(max_unwritten_share_, std::numeric_limits<uint64_t>::max());
  int64_t rows = 0;
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    WrittenRows& written = step.tables[t].written_ahead;
    GatherChosen(context, t, &written, gathers);
    rows += written.keys.size();
  }
  context->upload().Send(Stream::kCompute);
  return rows;
}

std::shared_ptr<CachedSource::WrittenBack> CachedSource::ChooseWriteBack() {
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

void CachedSource::AddPieces(const std::shared_ptr<WrittenBack>& written, PushWork* push) const {
  CHECK_EQ(push->waves.size(), kFirstPieceWave);
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
absl::Status CachedSource::FillPiece(size_t p, StepTransfers* transfers, WrittenBack* written) {
  const WrittenBack::Piece& piece = written->pieces[p];
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

absl::Status CachedSource::SendPieces(Step step, WrittenBack* written) {
  StepTransfers transfers(device_);
  for (size_t p = 0; p < written->pieces.size(); ++p) {
    if (!written->TakePlace(p)) return session_->status();
    RETURN_IF_ERROR(FillPiece(p, &transfers, written));
    RETURN_IF_ERROR(session_->ReleaseWave(step, kFirstPieceWave + p));
  }
  return absl::OkStatus();
}

absl::Status CachedSource::Push(const std::shared_ptr<StepContext>& context,
                                std::vector<std::vector<wire::PushSlice>> dense) {
  RETURN_IF_ERROR(CheckGradients(context.get()));
  OfStep& step = context->of_source.Get<OfStep>();
  PushWork push;
  push.step = context->step();
  push.learning_rate = context->learning_rate;
  push.waves.emplace_back(options_.num_servers);
  AddGradients(*context, step, &push);
  std::shared_ptr<WrittenBack> written;
  if (context->writes_back && owns_rows()) {
    written = ChooseWriteBack();
    AddPieces(written, &push);
  }
  if (!dense.empty()) push.waves.push_back(std::move(dense));
  if (written != nullptr && written->is_lent()) {
    push.lent.resize(push.waves.size());
    std::fill_n(push.lent.begin() + kFirstPieceWave, written->pieces.size(), true);
    push.on_returned = [written](size_t wave) { written->Return(wave - kFirstPieceWave); };
    push.on_wanted = [written](size_t wave) { written->Want(wave - kFirstPieceWave); };
    step.lending = written;
  }
  // Holds the context until the push is acknowledged.
  session_->StartPush(std::move(push), [context, written](const absl::Status&) {
    if (written != nullptr) written->End();
  });
  RETURN_IF_ERROR(session_->ReleaseWave(context->step(), 0));
  return written == nullptr ? absl::OkStatus() : SendPieces(context->step(), written.get());
}

// Waits until the push is acknowledged, and changes no row meanwhile: a lent piece that a restarted
// server has lost is read again from the device.
absl::Status CachedSource::FinishPush(StepContext* context) {
  OfStep& step = context->of_source.Get<OfStep>();
  const std::shared_ptr<WrittenBack> written = std::exchange(step.lending, nullptr);
  if (written == nullptr) return absl::OkStatus();
  StepTransfers transfers(device_);
  while (const std::optional<size_t> piece = written->TakeWanted()) {
    RETURN_IF_ERROR(FillPiece(*piece, &transfers, written.get()));
    RETURN_IF_ERROR(session_->ReleaseWaveAgain(context->step(), kFirstPieceWave + *piece));
  }
  return session_->status();
}

}  // namespace thermocline
