#include "server/core/push_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

PushState::PushState(uint32_t num_workers, uint64_t max_pending_bytes, Step base)
    : max_pending_bytes_(max_pending_bytes),
      ledger_(num_workers, base),
      assemblies_(num_workers),
      next_step_(base + 1),
      accepted_(num_workers),
      complete_through_(base) {}

absl::Status PushState::CheckAcknowledged(const wire::Header& header) const {
  return ledger_.CheckAcknowledged(header.rank, header.acked_through);
}

absl::StatusOr<PushState::BegunChunk> PushState::BeginChunk(wire::PushChunk&& chunk) {
  BegunChunk begun;
  begun.rank = chunk.header.rank;
  begun.chunk = chunk.chunk;
  RETURN_IF_ERROR(CheckAcknowledged(chunk.header));
  const PushLedger::Order order = ledger_.OrderOf(begun.rank, chunk.step);
  const Step accepted_through = ledger_.accepted_through(begun.rank);
  if (order == PushLedger::Order::kEarly) {
    ++counters_.not_ready;
    begun.answer = {wire::Readiness::kNotReady, accepted_through};
    return begun;
  }
  if (order == PushLedger::Order::kDuplicate) {
    ++counters_.duplicates;
    begun.answer = {wire::Readiness::kReady, accepted_through};
    return begun;
  }
  RETURN_IF_ERROR(CheckLearningRate(chunk));
  const absl::Status room = CheckRoom(chunk);
  if (!room.ok()) {
    ++counters_.refused;
    return room;
  }
  PushAssembly& assembly = assemblies_[begun.rank.value()];
  ASSIGN_OR_RETURN(const PushAssembly::Added added, assembly.Add(std::move(chunk)));
  if (added == PushAssembly::Added::kDuplicate) {
    ++counters_.duplicates;
    begun.answer = {wire::Readiness::kReady, accepted_through};
    return begun;
  }
  begun.chunks = &assembly.chunks();
  begun.completes = added == PushAssembly::Added::kComplete;
  return begun;
}

absl::StatusOr<wire::PushAnswer> PushState::EndChunk(const BegunChunk& begun,
                                                     absl::Status recorded) {
  PushAssembly& assembly = assemblies_[begun.rank.value()];
  if (!recorded.ok()) {
    if (absl::IsResourceExhausted(recorded)) ++counters_.refused;
    assembly.Drop(begun.chunk);
    return recorded;
  }
  const wire::PushChunk& chunk = assembly.chunks().at(begun.chunk);
  pending_bytes_ += BytesOf(chunk);
  learning_rates_.emplace(chunk.step, chunk.learning_rate);
  if (begun.completes) Accept(begun.rank);
  return wire::PushAnswer{wire::Readiness::kReady, ledger_.accepted_through(begun.rank)};
}

absl::StatusOr<wire::PushAnswer> PushState::TakeChunk(wire::PushChunk&& chunk) {
  ASSIGN_OR_RETURN(const BegunChunk begun, BeginChunk(std::move(chunk)));
  if (begun.answer.has_value()) return *begun.answer;
  return EndChunk(begun, PushRecorder().Record(begun));
}

absl::Status PushState::ReplayChunk(wire::PushChunk&& chunk) {
  const uint64_t duplicates = counters_.duplicates;
  ASSIGN_OR_RETURN(const wire::PushAnswer answer, TakeChunk(std::move(chunk)));
  if (answer.readiness == wire::Readiness::kReady && counters_.duplicates == duplicates) {
    return absl::OkStatus();
  }
  return absl::DataLossError("a chunk of a push that doesn't follow those before it");
}

// The pushes that the next apply waits for are let in beyond the limit, up to twice of it: refusing
// them would keep the memory from ever being freed. What waits for later steps is within the limit,
// so they find room as long as they are, too; beyond it they might wait for ever.
absl::Status PushState::CheckRoom(const wire::PushChunk& chunk) const {
  const bool next = chunk.step == next_step_;
  const uint64_t bytes = pending_bytes_ + BytesOf(chunk);
  if (bytes <= max_pending_bytes_) return absl::OkStatus();
  // One that comes again takes no room.
  if (assemblies_[chunk.header.rank.value()].chunks().count(chunk.chunk) > 0)
    return absl::OkStatus();
  if (next) {
    const uint64_t step_bytes = BytesOfNextStep() + BytesOf(chunk);
    if (step_bytes > max_pending_bytes_) {
      return absl::OutOfRangeError(
          absl::StrCat("the pushes of step ", next_step_.value(), " have ", step_bytes,
                       " bytes and more; this server holds at most ", max_pending_bytes_,
                       " until they are applied (cluster.max_pending_size)"));
    }
    if (bytes <= 2 * max_pending_bytes_) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "rank ", chunk.header.rank.value(), ", step ", chunk.step.value(), ": ", pending_bytes_,
      " bytes of pushes wait to be applied; the limit is ", max_pending_bytes_));
}

// The bytes of all workers' pushes of the next step that have come so far.
uint64_t PushState::BytesOfNextStep() const {
  uint64_t bytes = 0;
  for (const std::deque<AssembledPush>& queue : accepted_) {
    if (!queue.empty()) bytes += queue.front().bytes;
  }
  for (const PushAssembly& assembly : assemblies_) {
    if (!assembly.empty() && assembly.step() == next_step_) {
      bytes += assembly.bytes();
    }
  }
  return bytes;
}

absl::Status PushState::CheckLearningRate(const wire::PushChunk& chunk) const {
  const auto known = learning_rates_.find(chunk.step);
  if (known == learning_rates_.end() || known->second == chunk.learning_rate) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", chunk.header.rank.value(), ", step ", chunk.step.value(), ": learning rate ",
      chunk.learning_rate, ", but that step was pushed with ", known->second));
}

// From here on the push counts, exactly once.
void PushState::Accept(WorkerRank rank) {
  AssembledPush push = assemblies_[rank.value()].Take();
  ledger_.Accept(rank, push.step);
  std::deque<AssembledPush>& queue = accepted_[rank.value()];
  CHECK_EQ(push.step, next_step_ + static_cast<int64_t>(queue.size()));
  num_waiting_ += queue.empty() ? 1 : 0;
  queue.push_back(std::move(push));
  ++counters_.accepted;
}

PushState::CompleteStep PushState::TakeNext() {
  CHECK(NextIsComplete());
  CompleteStep next;
  next.step = next_step_;
  next.pushes.reserve(accepted_.size());
  for (std::deque<AssembledPush>& queue : accepted_) {
    next.pushes.push_back(std::move(queue.front()));
    queue.pop_front();
    num_waiting_ -= queue.empty() ? 1 : 0;
  }
  next_step_ = next_step_ + 1;
  return next;
}

void PushState::MarkApplied(const CompleteStep& applied) {
  CHECK_EQ(applied.step, complete_through_ + 1);
  complete_through_ = applied.step;
  learning_rates_.erase(learning_rates_.begin(), learning_rates_.upper_bound(applied.step));
  for (const AssembledPush& push : applied.pushes) {
    CHECK_GE(pending_bytes_, push.bytes);
    pending_bytes_ -= push.bytes;
  }
}

Step PushState::accepted_through() const {
  Step least = ledger_.accepted_through(WorkerRank(0));
  for (uint32_t rank = 1; rank < ledger_.num_workers(); ++rank) {
    least = std::min(least, ledger_.accepted_through(WorkerRank(rank)));
  }
  return least;
}

void PushState::FillStats(ServerStats* stats) const {
  stats->set_complete_through(complete_through_.value());
  for (uint32_t rank = 0; rank < ledger_.num_workers(); ++rank) {
    stats->add_accepted_through(ledger_.accepted_through(WorkerRank(rank)).value());
  }
  stats->set_pushes_accepted(counters_.accepted);
  stats->set_push_duplicates(counters_.duplicates);
  stats->set_pushes_not_ready(counters_.not_ready);
  stats->set_pending_push_bytes(pending_bytes_);
  stats->set_requests_refused(stats->requests_refused() + counters_.refused);
}

absl::Status PushRecorder::Record(const PushState::BegunChunk& begun) {
  if (begun.completes) RETURN_IF_ERROR(distinct_keys_.Check(*begun.chunks));
  return journal_ != nullptr ? journal_->Append(begun.chunks->at(begun.chunk)) : absl::OkStatus();
}

}  // namespace thermocline
