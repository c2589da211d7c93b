#include "tests/exchange/shared_rows.h"

#include <algorithm>
#include <utility>

namespace thermocline::shared_rows {

// Job
// ------------------------------------------------------------------------------------------------

Job::Job(const Case& of)
    : case_(of),
      random_(Mix64(of.seed)),
      model_(case_),
      servers_(case_, &scheduler_, &random_),
      breaks_left_(of.breaks),
      pauses_left_(of.pauses),
      deaths_left_(of.deaths),
      absences_left_(of.server_absences) {}

void Job::Begin(int64_t first_step) {
  ++generation_;
  ranks_.clear();
  for (uint32_t rank = 0; rank < case_.num_ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(this, rank, generation_, first_step));
  }
  for (uint32_t rank = 0; rank < case_.num_ranks; ++rank) {
    scheduler_.RunAfter(Delay(), [this, rank, generation = generation_] {
      if (Rank* const found = Find(generation, rank)) found->Work();
    });
  }
}

std::string Job::Run() {
  Begin(0);
  scheduler_.RunAfter(Delay(), [this] { Trouble(); });
  const auto is_done = [this] {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank != nullptr && rank->has_left(); });
  };
  while (wrong_.empty() && !is_done()) {
    if (scheduler_.NowMicros() > kPatience || !scheduler_.RunNext()) {
      Wrong("the job is stuck");
    }
  }
  if (!wrong_.empty()) return wrong_;
  if (servers_.applied() != case_.num_steps - 1) return "the servers lack steps";
  return servers_.rows() == model_.RowsAfter(case_.num_steps - 1) ? "" : "another model";
}

void Job::Trouble() {
  const auto spend = [this](int* left) {
    if (*left == 0 || !random_.Chance(0.3)) return false;
    --*left;
    return true;
  };
  const auto victim = static_cast<uint32_t>(random_.Below(case_.num_ranks));
  if (ranks_[victim] != nullptr && !ranks_[victim]->has_left()) {
    if (spend(&pauses_left_)) {
      ranks_[victim]->Pause(random_.Between(0, 100 * kMillisecond));
    } else if (spend(&deaths_left_)) {
      BreakStreamsOf(ranks_[victim].get());
      ranks_[victim].reset();
      // The launcher collects for a while, ends all, and goes back.
      scheduler_.RunAfter(random_.Between(1, 30 * kMillisecond), [this] {
        for (const auto& rank : ranks_) {
          if (rank != nullptr) BreakStreamsOf(rank.get());
        }
        Begin(servers_.GoBack());
      });
    }
  }
  if (spend(&absences_left_)) servers_.GoAway(random_.Between(0, 300 * kMillisecond));
  if (pauses_left_ + deaths_left_ + absences_left_ == 0) return;
  scheduler_.RunAfter(random_.Between(1, 10 * kMillisecond), [this] { Trouble(); });
}

void Job::Deliver(const std::shared_ptr<Stream>& stream, int64_t* direction_us, bool in_order,
                  uint32_t to, std::function<void(Rank*)> frame) {
  // What was on its way when its stream broke may come much later.
  int64_t at_us = scheduler_.NowMicros() + Delay();
  if (in_order) at_us = *direction_us = std::max(at_us, *direction_us);
  scheduler_.RunAfter(at_us - scheduler_.NowMicros(), [this, stream, to, frame] {
    if (!stream->is_whole && !stream->delivers_late) return;
    // Planted: nobody looks at the generation.
    const bool any = case_.planted == Planted::kOldGeneration;
    const auto arrive = [this, stream, to, frame, any] {
      Rank* const rank = Find(any ? generation_ : stream->generation, to);
      if (rank == nullptr || rank->has_left()) return;
      rank->Deliver([rank, frame] {
        frame(rank);
        rank->Work();
      });
    };
    if (stream->is_whole) return arrive();
    scheduler_.RunAfter(stream->late_us, arrive);
  });
}

void Job::CountFrame(const StreamId& id) {
  if (--streams_.at(id)->frames_left <= 0) Break(id);
}

// Who opened it learns of it; what is on its way is lost or comes late.
void Job::Break(const StreamId& id) {
  const std::shared_ptr<Stream> stream = streams_.at(id);
  if (!stream->is_whole) return;
  stream->is_whole = false;
  stream->delivers_late = random_.Chance(0.5);
  stream->late_us = random_.Between(0, 60 * kMillisecond);
  scheduler_.RunAfter(Delay(), [this, id] {
    const auto [generation, from, to, attempt] = id;
    Rank* const rank = Find(generation, from);
    if (rank == nullptr || rank->has_left()) return;
    rank->Deliver([this, rank, to = to, attempt = attempt] {
      rank->machine().OnClosed(scheduler_.NowMicros(), WorkerRank(to), attempt,
                               absl::UnavailableError("the stream broke"));
      rank->Work();
    });
  });
}

void Job::BreakStreamsOf(const Rank* rank) {
  for (const auto& [id, stream] : streams_) {
    if (std::get<0>(id) != rank->generation()) continue;
    if (std::get<1>(id) == rank->rank() || std::get<2>(id) == rank->rank()) Break(id);
  }
}

void Job::Carry(Rank* from, const exchange_action::OpenStream& open) {
  const uint32_t to = open.to.value();
  const StreamId id{from->generation(), from->rank(), to, open.attempt};
  const auto stream = std::make_shared<Stream>();
  stream->generation = from->generation();
  streams_[id] = stream;
  const Rank* const peer = Find(from->generation(), to);
  const bool is_refused = peer == nullptr || peer->has_left();
  if (is_refused || breaks_left_ > 0) {
    --breaks_left_;
    stream->frames_left = is_refused ? 1 : static_cast<int>(random_.Between(1, 40));
  }
  CountFrame(id);
  Deliver(stream, &stream->forth_us, true, to,
          [this, from = WorkerRank(from->rank()), attempt = open.attempt](Rank* rank) {
            rank->machine().OnOpened(scheduler_.NowMicros(), from, attempt);
          });
}

void Job::Carry(Rank* from, const exchange_action::SendChunk& send) {
  const StreamId id{from->generation(), from->rank(), send.to.value(), send.attempt};
  const std::shared_ptr<Stream> stream = streams_.at(id);
  CountFrame(id);
  const int copies = case_.repeats && random_.Chance(0.1) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    Deliver(stream, &stream->forth_us, true, send.to.value(),
            [this, from = WorkerRank(from->rank()), send](Rank* rank) {
              rank->machine().OnChunk(scheduler_.NowMicros(), from, send.attempt, send.chunk);
            });
  }
  scheduler_.RunAfter(random_.Between(0, 50), [this, id] {
    const auto [generation, rank, to, attempt] = id;
    Rank* const sender = Find(generation, rank);
    if (sender == nullptr || sender->has_left()) return;
    sender->Deliver([sender, to = to, attempt = attempt] {
      sender->machine().OnSent(WorkerRank(to), attempt);
      sender->Work();
    });
  });
}

void Job::Carry(Rank* from, const exchange_action::SendReceipt& send) {
  const auto found =
      streams_.find({from->generation(), send.to.value(), from->rank(), send.attempt});
  if (found == streams_.end()) return;  // Of another generation: a planted fault.
  const std::shared_ptr<Stream> stream = found->second;
  CountFrame(found->first);
  // All but the first may pass each other.
  const bool in_order = stream->receipts++ == 0 || !case_.repeats;
  Deliver(stream, &stream->back_us, in_order, send.to.value(),
          [this, from = WorkerRank(from->rank()), send](Rank* rank) {
            rank->machine().OnReceipt(scheduler_.NowMicros(), from, send.attempt, send.receipt);
          });
}

}  // namespace thermocline::shared_rows
