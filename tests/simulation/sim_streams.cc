#include "tests/simulation/sim_streams.h"

#include <algorithm>
#include <vector>

#include "common/base/hash.h"

namespace thermocline {
namespace {

constexpr int kMostFrames = 40;  // A stream that breaks carries at most so many.
// Until the opener of a stream whose link is cut takes it for broken, at the most.
constexpr int64_t kSilenceMicros = 2'000'000;

}  // namespace

void SimStreamCounters::Add(const SimStreamCounters& other) {
  opened += other.opened;
  refused += other.refused;
  strangers += other.strangers;
  broken += other.broken;
  cut += other.cut;
  chunks += other.chunks;
  late += other.late;
}

class SimStreams::Transport : public ExchangeTransport {
 public:
  Transport(SimStreams* streams, SimStreamPlace place) : streams_(*streams) {
    end_.place = std::move(place);
  }
  ~Transport() override { Close(); }

  void Start(ExchangeEvents* events) override {
    end_.events = events;
    streams_.ends_[id()] = &end_;
  }
  void Open(WorkerRank to, uint64_t attempt) override {
    if (end_.events != nullptr) streams_.Open(end_, to.value(), attempt);
  }
  void Send(WorkerRank to, uint64_t attempt, const BlockChunk& chunk,
            std::shared_ptr<const BlockBytes> bytes) override {
    if (end_.events != nullptr) streams_.Send(end_, to.value(), attempt, chunk, bytes);
  }
  void SendReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) override {
    if (end_.events != nullptr) streams_.SendReceipt(end_, to.value(), attempt, receipt);
  }
  void Close() override {
    if (std::exchange(end_.events, nullptr) != nullptr) streams_.Leave(id());
  }

 private:
  EndId id() const { return {end_.place.generation, end_.place.rank.value()}; }

  SimStreams& streams_;
  End end_;
};

SimStreams::SimStreams(uint64_t seed, const StreamFaults& faults, IsCut is_cut,
                       Scheduler* scheduler, Saboteur* saboteur)
    : random_(seed),
      faults_(faults),
      is_cut_(std::move(is_cut)),
      scheduler_(*scheduler),
      saboteur_(*saboteur) {}

std::unique_ptr<ExchangeTransport> SimStreams::Connect(SimStreamPlace place) {
  return std::make_unique<Transport>(this, std::move(place));
}

// Null: it is gone. Planted: its successor takes what was for it.
SimStreams::End* SimStreams::Find(EndId id) {
  const auto found = ends_.find(id);
  if (found != ends_.end()) return found->second;
  if (!saboteur_.Has(PlantedFault::kOldBlocks)) return nullptr;
  End* successor = nullptr;
  for (const auto& [other, end] : ends_) {
    if (other.second == id.second && other.first > id.first) successor = end;
  }
  return successor;
}

SimStreams::StreamPtr SimStreams::FindStream(const StreamId& id) const {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second;
}

void SimStreams::Deliver(EndId to, const Frame& frame) {
  End* const end = Find(to);
  if (end == nullptr) return;
  end->place.scheduler->RunAfter(0, [this, to, frame] {
    End* const found = Find(to);
    if (found == nullptr) return;
    trace_ = Mix64(trace_ ^ static_cast<uint64_t>(scheduler_.NowMicros()) ^ to.second);
    const std::function<void()> after_event = found->place.after_event;
    frame(found->events);
    after_event();
  });
}

void SimStreams::Carry(const StreamPtr& stream, bool forth, const Frame& frame) {
  if (--stream->frames_left == 0) {
    ++counters_.broken;
    Break(stream, Delay());
  }
  const auto& [generation, opener, receiver, attempt] = stream->id;
  const EndId from = {generation, forth ? opener : receiver};
  const EndId to = {generation, forth ? receiver : opener};
  int64_t& last_us = forth ? stream->forth_us : stream->back_us;
  last_us = std::max(scheduler_.NowMicros() + Delay(), last_us);
  scheduler_.RunAfter(last_us - scheduler_.NowMicros(), [this, stream, from, to, frame] {
    const auto sender = ends_.find(from), taker = ends_.find(to);
    const bool is_cut = is_cut_ && sender != ends_.end() && taker != ends_.end() &&
                        is_cut_(sender->second->place.host, taker->second->place.host);
    if (is_cut && stream->is_whole) {
      ++counters_.cut;
      Break(stream, random_.Between(1, kSilenceMicros));
    }
    if (stream->is_whole) return Deliver(to, frame);
    if (is_cut) stream->late_us = -1;  // Nothing comes behind a frame that is lost.
    if (stream->late_us < 0) return;
    ++counters_.late;
    scheduler_.RunAfter(stream->late_us, [this, to, frame] { Deliver(to, frame); });
  });
}

// Who opened it learns of it.
void SimStreams::Break(const StreamPtr& stream, int64_t noticed_us) {
  if (!std::exchange(stream->is_whole, false)) return;
  if (random_.Chance(faults_.late)) stream->late_us = random_.Between(0, faults_.late_us);
  streams_.erase(stream->id);
  Close(stream->id, noticed_us, absl::UnavailableError("simulated: the stream broke"));
}

void SimStreams::Close(const StreamId& id, int64_t delay_us, const absl::Status& why) {
  const auto [generation, from, to, attempt] = id;
  const EndId opener = {generation, from};
  scheduler_.RunAfter(delay_us, [this, opener, to = to, attempt = attempt, why] {
    if (ends_.count(opener) == 0) return;
    Deliver(opener, [to, attempt, why](ExchangeEvents* events) {
      events->OnClosed(WorkerRank(to), attempt, why);
    });
  });
}

void SimStreams::Leave(EndId id) {
  ends_.erase(id);
  std::vector<StreamPtr> broken;
  for (const auto& [of, stream] : streams_) {
    const auto& [generation, from, to, attempt] = of;
    if (generation == id.first && (from == id.second || to == id.second)) broken.push_back(stream);
  }
  for (const StreamPtr& stream : broken) Break(stream, Delay());
}

void SimStreams::Open(const End& from, uint32_t to, uint64_t attempt) {
  const uint64_t generation = from.place.generation;
  const StreamId id{generation, from.place.rank.value(), to, attempt};
  if (Find({generation, to}) == nullptr) {
    // A process of another generation may have its address by now, and refuses it.
    const bool is_taken = std::any_of(ends_.begin(), ends_.end(), [&](const auto& end) {
      return end.first.second == to && end.first.first > generation;
    });
    const bool is_refused = is_taken && random_.Chance(0.9);
    ++(is_refused ? counters_.strangers : counters_.refused);
    return Close(id, Delay(),
                 is_refused ? absl::FailedPreconditionError("simulated: of another generation")
                            : absl::UnavailableError("simulated: the rank is not there"));
  }
  ++counters_.opened;
  const auto stream = std::make_shared<Stream>();
  stream->id = id;
  if (random_.Chance(faults_.breaks)) {
    stream->frames_left = static_cast<int>(random_.Between(1, kMostFrames));
  }
  streams_[id] = stream;
  Carry(stream, /*forth=*/true, [rank = from.place.rank, attempt](ExchangeEvents* events) {
    events->OnOpened(rank, attempt);
  });
}

void SimStreams::Send(const End& from, uint32_t to, uint64_t attempt, const BlockChunk& chunk,
                      const std::shared_ptr<const BlockBytes>& bytes) {
  const EndId sender = {from.place.generation, from.place.rank.value()};
  const StreamPtr stream = FindStream({sender.first, sender.second, to, attempt});
  if (stream == nullptr) return;
  ++counters_.chunks;
  if (chunk.offset + chunk.data.size() == chunk.block_bytes) {
    std::array<Step, kNumPhases> none;
    none.fill(kNoStep);
    const auto sent = sent_.try_emplace({sender.first, sender.second, to}, none).first;
    Step& last = sent->second[IndexOf(chunk.id.phase)];
    last = std::max(last, chunk.id.step);
  }
  const int copies = random_.Chance(faults_.repeat) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    Carry(stream, /*forth=*/true,
          [rank = from.place.rank, attempt, chunk, bytes](ExchangeEvents* events) {
            events->OnChunk(rank, attempt, chunk);
          });
  }
  scheduler_.RunAfter(random_.Between(0, 50), [this, sender, to, attempt] {
    if (ends_.count(sender) == 0) return;
    Deliver(sender,
            [to, attempt](ExchangeEvents* events) { events->OnSent(WorkerRank(to), attempt); });
  });
}

void SimStreams::SendReceipt(const End& from, uint32_t to, uint64_t attempt, Receipt receipt) {
  const StreamPtr stream =
      FindStream({from.place.generation, to, from.place.rank.value(), attempt});
  if (stream == nullptr) return;
  Tamper(from, stream, &receipt);
  ++stream->receipts;
  const auto hand_over = [this, stream, receipt] {
    std::optional<Receipt>& unsent = stream->unsent;
    if (unsent.has_value() && !saboteur_.Has(PlantedFault::kReceiptsOverwrite)) {
      unsent->Merge(receipt);
    } else {
      unsent = receipt;
    }
    if (!stream->is_writing) WriteReceipt(stream);
  };
  // Several threads hand them over.
  if (faults_.repeat == 0) return hand_over();
  scheduler_.RunAfter(random_.Between(0, faults_.hand_over_us), hand_over);
}

void SimStreams::WriteReceipt(const StreamPtr& stream) {
  const auto& [generation, opener, receiver, attempt] = stream->id;
  const Receipt receipt = *std::exchange(stream->unsent, std::nullopt);
  stream->is_writing = true;
  scheduler_.RunAfter(random_.Between(0, faults_.hand_over_us), [this, stream] {
    stream->is_writing = false;
    if (stream->unsent.has_value()) WriteReceipt(stream);
  });
  if (!stream->is_whole) return;
  Carry(stream, /*forth=*/false,
        [rank = WorkerRank(receiver), attempt = attempt, receipt](ExchangeEvents* events) {
          events->OnReceipt(rank, attempt, receipt);
        });
}

void SimStreams::Tamper(const End& from, const StreamPtr& stream, Receipt* receipt) {
  const auto& [generation, opener, receiver, attempt] = stream->id;
  const auto sent = sent_.find({generation, opener, receiver});
  const bool begins_again = attempt > 1 && stream->receipts == 0 && sent != sent_.end();
  if (saboteur_.Has(PlantedFault::kNeverSentAgain) && begins_again) {
    for (size_t p = 0; p < kNumPhases; ++p) {
      receipt->received[p] = std::max(receipt->received[p], sent->second[p]);
      receipt->taken[p] = std::max(receipt->taken[p], receipt->received[p]);
    }
  }
  if (!saboteur_.Has(PlantedFault::kSharedCredit)) return;
  // New room only while nothing of the sender is held, whatever the phase.
  auto& granted =
      granted_.try_emplace({generation, opener, receiver}, receipt->taken).first->second;
  bool holds_any = false;
  for (size_t p = 0; p < kNumPhases; ++p) {
    const Step released = receipt->taken[p] - from.place.credit_steps[p];
    holds_any = holds_any || receipt->received[p] > released;
  }
  if (!holds_any) granted = receipt->taken;
  receipt->taken = granted;
}

}  // namespace thermocline
