#include "worker/exchange/peer_blocks.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

Phase PhaseAt(size_t index) { return static_cast<Phase>(index); }

}  // namespace

OutgoingBlocks::OutgoingBlocks(const ExchangeOptions& options, WorkerRank to)
    : options_(options), to_(to) {
  for (PhaseQueue& phase : phases_) {
    phase.first = phase.next = options.start_step;
    phase.sent = options.start_step - 1;
  }
}

void OutgoingBlocks::Add(BlockId id, Block block) {
  PhaseQueue& phase = phases_[IndexOf(id.phase)];
  CHECK(id.step == phase.first + static_cast<int64_t>(phase.blocks.size()));
  bytes_ += block.bytes->size();
  phase.checksums.push_back(Crc32c(block.bytes->data(), block.bytes->size()));
  phase.blocks.push_back(std::move(block));
}

absl::Status OutgoingBlocks::OnReceipt(const Receipt& receipt, bool begins_stream) {
  for (size_t p = 0; p < kNumPhases; ++p) {
    PhaseQueue& phase = phases_[p];
    const Step received = receipt.received[p];
    const auto error = [&](absl::string_view what) {
      return absl::InternalError(absl::StrCat("rank ", to_.value(), " acknowledges ",
                                              Describe({received, PhaseAt(p)}), what));
    };
    if (received >= phase.first && received > phase.sent) return error(", which was not sent");
    if (begins_stream && received < phase.first - 1) {
      return error(absl::StrCat(", and did so of step ", (phase.first - 1).value(),
                                " before: it has lost blocks"));
    }
    Acknowledge(&phase, received);
    phase.taken = std::max(phase.taken, receipt.taken[p]);
    if (!begins_stream) continue;
    phase.next = phase.first;
    phase.offset = 0;
  }
  is_open_ = is_open_ || begins_stream;
  return absl::OkStatus();
}

void OutgoingBlocks::Acknowledge(PhaseQueue* phase, Step received) {
  for (; phase->first <= received; phase->first = phase->first + 1) {
    bytes_ -= phase->blocks.front().bytes->size();
    phase->blocks.pop_front();
    phase->checksums.pop_front();
  }
  if (phase->next >= phase->first) return;
  phase->next = phase->first;
  phase->offset = 0;
}

bool OutgoingBlocks::NextChunk(BlockChunk* chunk, std::shared_ptr<const BlockBytes>* bytes) {
  if (!is_open_) return false;
  size_t best = kNumPhases;
  for (size_t p = 0; p < kNumPhases; ++p) {
    const PhaseQueue& phase = phases_[p];
    const bool is_there = phase.next < phase.first + static_cast<int64_t>(phase.blocks.size());
    if (!is_there || phase.next > phase.taken) continue;
    if (best == kNumPhases || phase.next < phases_[best].next) best = p;
  }
  if (best == kNumPhases) return false;
  PhaseQueue& phase = phases_[best];
  const Block& block = phase.blocks[phase.next - phase.first];
  chunk->id = {phase.next, PhaseAt(best)};
  chunk->kind = block.kind;
  chunk->checksum = phase.checksums[phase.next - phase.first];
  chunk->block_bytes = block.bytes->size();
  chunk->offset = phase.offset;
  const uint64_t size =
      std::min<uint64_t>(options_.max_chunk_bytes, chunk->block_bytes - phase.offset);
  chunk->data = absl::MakeConstSpan(*block.bytes).subspan(phase.offset, size);
  *bytes = block.bytes;
  CountSent(&phase, size);
  phase.offset += size;
  if (phase.offset < chunk->block_bytes) return true;
  if (phase.next > phase.sent) {
    phase.sent = phase.next;
    phase.sent_of_next = 0;
  }
  phase.next = phase.next + 1;
  phase.offset = 0;
  return true;
}

// Counts the next `size` bytes of block phase->next as sent.
void OutgoingBlocks::CountSent(PhaseQueue* phase, uint64_t size) {
  phase->bytes_sent += size;
  const uint64_t end = phase->offset + size;
  if (phase->next <= phase->sent) {
    bytes_sent_again_ += size;
    return;
  }
  bytes_sent_again_ += std::min(std::max(phase->sent_of_next, phase->offset), end) - phase->offset;
  phase->sent_of_next = std::max(phase->sent_of_next, end);
}

uint64_t OutgoingBlocks::bytes_sent(Phase phase) const {
  return phases_[IndexOf(phase)].bytes_sent;
}

void OutgoingBlocks::Clear() {
  for (PhaseQueue& phase : phases_) {
    phase.first = phase.first + static_cast<int64_t>(phase.blocks.size());
    phase.next = phase.first;
    phase.sent = phase.first - 1;
    phase.offset = 0;
    phase.blocks.clear();
    phase.checksums.clear();
  }
  bytes_ = 0;
}

bool OutgoingBlocks::is_empty() const {
  return std::all_of(phases_.begin(), phases_.end(),
                     [](const PhaseQueue& phase) { return phase.blocks.empty(); });
}

IncomingBlocks::IncomingBlocks(const ExchangeOptions& options, WorkerRank from)
    : options_(options), from_(from) {
  for (PhaseQueue& phase : phases_) {
    phase.first = options.start_step;
    phase.received = options.start_step - 1;
  }
  for (const int credit : options.credit_steps) CHECK_GE(credit, 1);
}

void IncomingBlocks::BeginStream() {
  for (PhaseQueue& phase : phases_) {
    if (phase.partial != nullptr) phase.idle.push_back(std::move(phase.partial));
    phase.partial = nullptr;
  }
}

absl::Status IncomingBlocks::Error(absl::StatusCode code, BlockId id,
                                   absl::string_view what) const {
  return absl::Status(code, absl::StrCat("rank ", from_.value(), " sends ", Describe(id), what));
}

Step IncomingBlocks::TakenThrough(size_t phase) const {
  return phases_[phase].first + options_.credit_steps[phase] - 1;
}

// Checks that the chunk is of the block that comes next, and goes on where the chunks before end.
absl::Status IncomingBlocks::CheckPlace(const PhaseQueue& phase, const BlockChunk& chunk) const {
  const uint64_t size = chunk.data.size();
  if (!options_.phases.Has(chunk.id.phase)) {
    return Error(absl::StatusCode::kInternal, chunk.id, ", which the job's steps do not have");
  }
  if (phase.has_ended) {
    return Error(absl::StatusCode::kInternal, chunk.id, " behind the end of its data");
  }
  if (chunk.kind != BlockKind::kData && chunk.id.phase != Phase::kKeys) {
    return Error(absl::StatusCode::kInternal, chunk.id, " as the end of its data");
  }
  if (chunk.id.step != phase.received + 1) {
    return Error(absl::StatusCode::kInternal, chunk.id,
                 absl::StrCat("; that of step ", (phase.received + 1).value(), " comes next"));
  }
  if (chunk.id.step > TakenThrough(IndexOf(chunk.id.phase))) {
    return Error(absl::StatusCode::kInternal, chunk.id,
                 absl::StrCat(", but they are taken through step ",
                              TakenThrough(IndexOf(chunk.id.phase)).value()));
  }
  if (chunk.block_bytes > options_.max_block_bytes) {
    return Error(absl::StatusCode::kResourceExhausted, chunk.id,
                 absl::StrCat(": ", chunk.block_bytes, " bytes; at most ", options_.max_block_bytes,
                              " are taken"));
  }
  const bool has_data = size > 0 || chunk.block_bytes == 0;
  if (!has_data || chunk.offset > chunk.block_bytes || size > chunk.block_bytes - chunk.offset) {
    return Error(absl::StatusCode::kInternal, chunk.id,
                 absl::StrCat(": ", size, " bytes at ", chunk.offset, " of ", chunk.block_bytes));
  }
  const uint64_t here = phase.partial == nullptr ? 0 : phase.partial->size();
  if (chunk.offset > here) {
    return Error(absl::StatusCode::kInternal, chunk.id,
                 absl::StrCat(" from byte ", chunk.offset, "; those from ", here, " are missing"));
  }
  return absl::OkStatus();
}

// Checks a chunk of a block that is here already.
absl::Status IncomingBlocks::CheckRepeated(const PhaseQueue& phase, const BlockChunk& chunk) const {
  const auto steps_back = static_cast<size_t>(phase.received - chunk.id.step);
  if (steps_back >= phase.known.size()) return absl::OkStatus();
  const Known& known = phase.known[phase.known.size() - 1 - steps_back];
  if (known == Known{chunk.kind, chunk.checksum, chunk.block_bytes}) return absl::OkStatus();
  return Error(absl::StatusCode::kDataLoss, chunk.id, " again, and they differ");
}

absl::Status IncomingBlocks::OnChunk(const BlockChunk& chunk, bool* completes) {
  *completes = false;
  PhaseQueue& phase = phases_[IndexOf(chunk.id.phase)];
  if (chunk.id.step <= phase.received) return CheckRepeated(phase, chunk);
  RETURN_IF_ERROR(CheckPlace(phase, chunk));
  const Known is{chunk.kind, chunk.checksum, chunk.block_bytes};
  if (phase.partial == nullptr) {
    phase.partial_is = is;
    if (phase.idle.empty()) phase.idle.push_back(std::make_shared<BlockBytes>());
    phase.partial = std::move(phase.idle.back());
    phase.idle.pop_back();
    phase.partial->clear();
    phase.partial->reserve(chunk.block_bytes);
  } else if (!(phase.partial_is == is)) {
    return Error(absl::StatusCode::kDataLoss, chunk.id, " again, and they differ");
  }
  BlockBytes& bytes = *phase.partial;
  if (chunk.offset < bytes.size()) return absl::OkStatus();  // The chunk is here already.
  bytes.insert(bytes.end(), chunk.data.begin(), chunk.data.end());
  if (bytes.size() < chunk.block_bytes) return absl::OkStatus();
  if (Crc32c(bytes.data(), bytes.size()) != chunk.checksum) {
    return Error(absl::StatusCode::kDataLoss, chunk.id, " with a wrong checksum");
  }
  *completes = true;
  std::shared_ptr<BlockBytes> memory = std::move(phase.partial);
  phase.partial = nullptr;
  Keep(&phase, is, {{chunk.kind, memory}, memory});
  return absl::OkStatus();
}

void IncomingBlocks::Put(BlockId id, Block block) {
  PhaseQueue& phase = phases_[IndexOf(id.phase)];
  CHECK(id.step == phase.received + 1);
  CHECK(!phase.has_ended);
  const Known known{block.kind, 0, block.bytes->size()};
  Keep(&phase, known, {std::move(block), nullptr});
}

void IncomingBlocks::Keep(PhaseQueue* phase, const Known& known, Held held) {
  const size_t most_known = options_.credit_steps[phase - phases_.data()];
  phase->received = phase->received + 1;
  phase->has_ended = known.kind != BlockKind::kData;
  phase->known.push_back(known);
  if (phase->known.size() > most_known) phase->known.pop_front();
  bytes_ += held.block.bytes->size();
  phase->blocks.push_back(std::move(held));
}

const Block* IncomingBlocks::Find(BlockId id) const {
  const PhaseQueue& phase = phases_[IndexOf(id.phase)];
  if (id.step < phase.first || id.step > phase.received) return nullptr;
  return &phase.blocks[id.step - phase.first].block;
}

void IncomingBlocks::Release(BlockId id) {
  PhaseQueue& phase = phases_[IndexOf(id.phase)];
  CHECK(id.step == phase.first);
  CHECK(!phase.blocks.empty());
  Held& held = phase.blocks.front();
  bytes_ -= held.block.bytes->size();
  if (held.memory != nullptr) phase.idle.push_back(std::move(held.memory));
  phase.blocks.pop_front();
  phase.first = phase.first + 1;
}

Receipt IncomingBlocks::receipt() const {
  Receipt receipt;
  for (size_t p = 0; p < kNumPhases; ++p) {
    receipt.received[p] = phases_[p].received;
    receipt.taken[p] = TakenThrough(p);
  }
  return receipt;
}

int IncomingBlocks::held(Phase phase) const {
  return static_cast<int>(phases_[IndexOf(phase)].blocks.size());
}

}  // namespace thermocline
