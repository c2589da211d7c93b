#include "worker/exchange/all_to_all.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

using exchange_action::Complain;
using exchange_action::OpenStream;
using exchange_action::SendChunk;
using exchange_action::SendReceipt;

}  // namespace

AllToAll::AllToAll(const ExchangeOptions& options, int64_t now_us)
    : options_(options),
      order_(options_),
      to_(options.num_ranks),
      from_(options.num_ranks),
      now_us_(now_us) {
  CHECK_LT(options.rank.value(), options.num_ranks);
  CHECK_GE(options.max_chunk_bytes, 1u);
  counts_.wait_for_rank_us.resize(options.num_ranks);
  for (uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
    outgoing_.emplace_back(options_, WorkerRank(rank));
    incoming_.emplace_back(options_, WorkerRank(rank));
    from_[rank].last_event_us = now_us;
    if (IsPeer(rank)) to_open_.insert({now_us, rank});
  }
  OpenDue(now_us);
}

absl::Status AllToAll::Post(BlockId id, std::vector<Block> to_ranks) {
  CHECK_EQ(to_ranks.size(), options_.num_ranks);
  CHECK(options_.phases.Has(id.phase));
  if (!failure_.ok()) return failure_;
  for (uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
    const uint64_t bytes = to_ranks[rank].bytes->size();
    if (bytes <= options_.max_block_bytes) continue;
    return absl::ResourceExhaustedError(absl::StrCat(Describe(id), " for rank ", rank, " have ",
                                                     bytes, " bytes; at most ",
                                                     options_.max_block_bytes, " are taken"));
  }
  order_.NotePosted(id);
  for (uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (!IsPeer(rank)) {
      incoming_[rank].Put(id, std::move(to_ranks[rank]));
      ++here_[id];
    } else if (!is_finished_) {
      if (outgoing_[rank].is_empty()) ++ranks_owed_;
      outgoing_[rank].Add(id, std::move(to_ranks[rank]));
      SendNext(rank);
    }
  }
  return absl::OkStatus();
}

void AllToAll::CheckOwesNothing() {
  if (const absl::Status status = order_.CheckOwesNothing(); !status.ok()) Fail(status);
}

bool AllToAll::IsComplete(BlockId id) const {
  const auto here = here_.find(id);
  return here != here_.end() && here->second == options_.num_ranks;
}

bool AllToAll::Await(int64_t now_us, BlockId id) {
  now_us_ = now_us;
  if (const absl::Status status = order_.CheckWait(id); !status.ok()) Fail(status);
  if (!failure_.ok()) return false;
  const auto wait = waits_.find(id);
  if (IsComplete(id)) {
    if (wait != waits_.end()) EndWait(now_us, wait);
    return true;
  }
  if (wait != waits_.end()) return false;
  waits_.emplace(id, Wait{now_us, now_us + options_.complain_after_us, options_.rank.value()});
  return false;
}

std::map<BlockId, AllToAll::Wait>::iterator AllToAll::EndWait(
    int64_t now_us, std::map<BlockId, Wait>::iterator wait) {
  const int64_t waited_us = now_us - wait->second.since_us;
  counts_.wait_us[static_cast<size_t>(wait->first.phase)] += waited_us;
  counts_.wait_for_rank_us[wait->second.last] += waited_us;
  return waits_.erase(wait);
}

void AllToAll::NoteCame(int64_t now_us, uint32_t from, BlockId id) {
  ++here_[id];
  OweReceipt(from);
  counts_.bytes_received[static_cast<size_t>(id.phase)] += incoming_[from].Find(id)->bytes->size();
  const auto wait = waits_.find(id);
  if (wait == waits_.end()) return;
  wait->second.last = from;
  if (IsComplete(id)) EndWait(now_us, wait);
}

std::vector<const Block*> AllToAll::BlocksOf(BlockId id) const {
  std::vector<const Block*> blocks;
  for (const IncomingBlocks& from : incoming_) {
    blocks.push_back(from.Find(id));
    CHECK(blocks.back() != nullptr);
  }
  return blocks;
}

void AllToAll::Release(BlockId id) {
  order_.NoteReleased(id);
  here_.erase(id);
  for (uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
    incoming_[rank].Release(id);
    OweReceipt(rank);
  }
}

absl::StatusOr<bool> AllToAll::HasStep(Step step) const {
  const std::vector<const Block*> blocks = BlocksOf({step, Phase::kKeys});
  std::optional<uint32_t> ends, goes_on;
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    const Block& block = *blocks[rank];
    if (block.kind == BlockKind::kFailed) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " can't read its data from step ", step.value(), " on: ",
                       absl::string_view(reinterpret_cast<const char*>(block.bytes->data()),
                                         block.bytes->size())));
    }
    std::optional<uint32_t>& such = block.kind == BlockKind::kEnd ? ends : goes_on;
    if (!such.has_value()) such = rank;
  }
  if (ends.has_value() && goes_on.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the data of rank ", *ends, " end before step ",
                                                   step.value(), ", those of rank ", *goes_on,
                                                   " do not: the workers see different data"));
  }
  return goes_on.has_value();
}

void AllToAll::OpenDue(int64_t now_us) {
  if (is_finished_ || !failure_.ok()) return;
  while (!to_open_.empty() && to_open_.begin()->first <= now_us) {
    const uint32_t rank = to_open_.begin()->second;
    to_open_.erase(to_open_.begin());
    ToPeer& to = to_[rank];
    to.is_opening = true;
    actions_.push_back(OpenStream{WorkerRank(rank), ++to.attempt});
  }
}

void AllToAll::SendNext(uint32_t rank) {
  ToPeer& to = to_[rank];
  if (to.is_sending || !failure_.ok()) return;
  SendChunk send;
  send.to = WorkerRank(rank);
  send.attempt = to.attempt;
  to.is_sending = outgoing_[rank].NextChunk(&send.chunk, &send.bytes);
  if (to.is_sending) actions_.push_back(std::move(send));
}

void AllToAll::OnReceipt(int64_t now_us, WorkerRank rank, uint64_t attempt,
                         const Receipt& receipt) {
  from_[rank.value()].last_event_us = now_us;
  ToPeer& to = to_[rank.value()];
  if (attempt != to.attempt || !to.is_opening || is_finished_ || !failure_.ok()) return;
  OutgoingBlocks& blocks = outgoing_[rank.value()];
  const bool begins_stream = !blocks.is_open();
  const bool was_owed = !blocks.is_empty();
  const absl::Status status = blocks.OnReceipt(receipt, begins_stream);
  if (!status.ok()) return Fail(status);
  if (was_owed && blocks.is_empty()) --ranks_owed_;
  counts_.streams_opened += begins_stream ? 1 : 0;
  to.failures = 0;
  to.error = absl::OkStatus();
  SendNext(rank.value());
}

void AllToAll::OnSent(WorkerRank rank, uint64_t attempt) {
  ToPeer& to = to_[rank.value()];
  if (attempt != to.attempt || !to.is_sending) return;
  to.is_sending = false;
  SendNext(rank.value());
}

void AllToAll::OnClosed(int64_t now_us, WorkerRank rank, uint64_t attempt,
                        const absl::Status& why) {
  ToPeer& to = to_[rank.value()];
  if (attempt != to.attempt || !to.is_opening) return;
  to.is_opening = to.is_sending = false;
  to.error = why;
  outgoing_[rank.value()].OnBroken();
  // A process of another generation listens there; the one of this generation does not come back.
  if (absl::IsFailedPrecondition(why)) return Fail(why);
  const int doublings = std::min(to.failures++, 30);
  const int64_t backoff_us =
      std::min(options_.min_backoff_us << doublings, options_.max_backoff_us);
  to_open_.insert({now_us + backoff_us, rank.value()});
}

void AllToAll::OnOpened(int64_t now_us, WorkerRank rank, uint64_t attempt) {
  now_us_ = now_us;
  FromPeer& from = from_[rank.value()];
  from.last_event_us = now_us;
  if (attempt <= from.attempt) return;
  from.attempt = attempt;
  OweReceipt(rank.value(), now_us);
  incoming_[rank.value()].BeginStream();
}

void AllToAll::OnChunk(int64_t now_us, WorkerRank rank, uint64_t attempt, const BlockChunk& chunk) {
  now_us_ = now_us;
  FromPeer& from = from_[rank.value()];
  from.last_event_us = now_us;
  if (attempt != from.attempt || !failure_.ok()) return;
  bool completes = false;
  const absl::Status status = incoming_[rank.value()].OnChunk(chunk, &completes);
  if (!status.ok()) return Fail(status);
  if (completes) NoteCame(now_us, rank.value(), chunk.id);
}

void AllToAll::OnTick(int64_t now_us) {
  now_us_ = now_us;
  OpenDue(now_us);
  for (auto it = waits_.begin(); it != waits_.end();) {
    auto& [id, wait] = *it;
    if (IsComplete(id)) {
      it = EndWait(now_us, it);
      continue;
    }
    if (wait.complain_at_us <= now_us && failure_.ok()) {
      for (ExchangeWait& missing : Missing(now_us, id, wait)) {
        actions_.push_back(Complain{std::move(missing)});
      }
      wait.complain_at_us = now_us + (now_us - wait.since_us);
    }
    ++it;
  }
}

std::vector<ExchangeWait> AllToAll::Missing(int64_t now_us, BlockId id, const Wait& wait) const {
  BlockId needed_for = id;
  if (id.phase == Phase::kKeys) needed_for.step = id.step - options_.window_steps;
  std::vector<ExchangeWait> missing;
  for (uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (!IsPeer(rank) || incoming_[rank].Find(id) != nullptr) continue;
    missing.push_back({WorkerRank(rank), id, needed_for, now_us - wait.since_us,
                       now_us - from_[rank].last_event_us, to_[rank].error});
  }
  return missing;
}

std::vector<ExchangeWait> AllToAll::waits(int64_t now_us) const {
  std::vector<ExchangeWait> all;
  for (const auto& [id, wait] : waits_) {
    const std::vector<ExchangeWait> missing = Missing(now_us, id, wait);
    all.insert(all.end(), missing.begin(), missing.end());
  }
  std::stable_sort(all.begin(), all.end(), [](const ExchangeWait& a, const ExchangeWait& b) {
    return a.needed_for < b.needed_for;
  });
  return all;
}

int64_t AllToAll::next_tick_us() const {
  int64_t next_us = std::numeric_limits<int64_t>::max();
  if (!failure_.ok()) return next_us;
  if (!to_open_.empty() && !is_finished_) next_us = to_open_.begin()->first;
  if (!receipts_.empty()) next_us = std::min(next_us, receipts_.begin()->first);
  for (const auto& [id, wait] : waits_) {
    if (!IsComplete(id)) next_us = std::min(next_us, wait.complain_at_us);
  }
  return next_us;
}

// A rank without a stream is owed none: a stream begins with a receipt, which says all.
void AllToAll::OweReceipt(uint32_t from) {
  if (from_[from].attempt == 0) return;
  changed_.push_back(from);
  if (!from_[from].receipt_by_us.has_value()) OweReceipt(from, now_us_ + options_.receipt_delay_us);
}

void AllToAll::OweReceipt(uint32_t from, int64_t by_us) {
  std::optional<int64_t>& is_by_us = from_[from].receipt_by_us;
  if (is_by_us.has_value()) receipts_.erase({*is_by_us, from});
  is_by_us = by_us;
  receipts_.insert({by_us, from});
}

// Whether the sender would soon lack credit without this receipt.
bool AllToAll::NeedsReceipt(const FromPeer& from, const Receipt& receipt) const {
  for (size_t p = 0; p < kNumPhases; ++p) {
    const int64_t credit = from.last_receipt.taken[p] - receipt.received[p];
    if (receipt.taken[p] > from.last_receipt.taken[p] && 2 * credit < options_.credit_steps[p])
      return true;
  }
  return false;
}

void AllToAll::QueueReceipt(uint32_t rank, const Receipt& receipt) {
  FromPeer& from = from_[rank];
  receipts_.erase({*from.receipt_by_us, rank});
  from.receipt_by_us.reset();
  from.last_receipt = receipt;
  actions_.push_back(SendReceipt{WorkerRank(rank), from.attempt, receipt});
}

// Looks only at ranks whose receipt has changed or is due, since an event is about few ranks.
std::vector<ExchangeAction> AllToAll::TakeActions() {
  const std::vector<uint32_t> changed = std::exchange(changed_, {});
  if (!failure_.ok()) return std::exchange(actions_, {});
  for (const uint32_t rank : changed) {
    if (!from_[rank].receipt_by_us.has_value()) continue;  // It was sent already.
    const Receipt receipt = incoming_[rank].receipt();
    if (NeedsReceipt(from_[rank], receipt)) QueueReceipt(rank, receipt);
  }
  while (!receipts_.empty() && receipts_.begin()->first <= now_us_) {
    const uint32_t rank = receipts_.begin()->second;
    QueueReceipt(rank, incoming_[rank].receipt());
  }
  return std::exchange(actions_, {});
}

void AllToAll::Finish() {
  is_finished_ = true;
  waits_.clear();
  for (OutgoingBlocks& blocks : outgoing_) blocks.Clear();
  ranks_owed_ = 0;
  for (uint32_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (from_[rank].receipt_by_us.has_value()) OweReceipt(rank, now_us_);
  }
}

bool AllToAll::MayLeave() const { return ranks_owed_ == 0; }

void AllToAll::Fail(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  actions_.clear();
}

ExchangeCounts AllToAll::counts() const {
  ExchangeCounts counts = counts_;
  for (const OutgoingBlocks& blocks : outgoing_) {
    for (size_t phase = 0; phase < kNumPhases; ++phase) {
      counts.bytes_sent[phase] += blocks.bytes_sent(static_cast<Phase>(phase));
    }
    counts.bytes_sent_again += blocks.bytes_sent_again();
    counts.bytes_owed += blocks.bytes();
  }
  for (const IncomingBlocks& blocks : incoming_) counts.bytes_held += blocks.bytes();
  return counts;
}

}  // namespace thermocline
