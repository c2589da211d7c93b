// The streams between the workers of a job (worker/exchange): a network that breaks them, delays
// and repeats what they carry, and is handed receipts in another order than they were made, as a
// seed says. What was under way when a stream broke is lost or comes late, also once its generation
// is over.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_STREAMS_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_STREAMS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_setup.h"
#include "worker/exchange/exchange_transport.h"

namespace thermocline {

// Where a worker is.
struct SimStreamPlace {
  uint64_t generation = 0;
  WorkerRank rank;
  Scheduler* scheduler = nullptr;  // Its process runs on it; outlives the network.
  const void* host = nullptr;
  std::array<int, kNumPhases> credit_steps{};  // For kSharedCredit.
  std::function<void()> after_event;           // Runs after each event.
};

struct SimStreamCounters {
  uint64_t opened = 0, refused = 0, strangers = 0;  // `strangers`: refused by another generation.
  uint64_t broken = 0, cut = 0;                     // `cut`: because a host was cut off.
  uint64_t chunks = 0, late = 0;  // `late`: frames that came after their stream had broken.

  void Add(const SimStreamCounters& other);
};

class SimStreams {
 public:
  // Whether nothing passes from one host to another; null: all does.
  using IsCut = std::function<bool(const void* from, const void* to)>;

  // Borrows `scheduler` and `saboteur`.
  SimStreams(uint64_t seed, const StreamFaults& faults, IsCut is_cut, Scheduler* scheduler,
             Saboteur* saboteur);

  // A worker's end, from Start to Close. This outlives it.
  std::unique_ptr<ExchangeTransport> Connect(SimStreamPlace place);

  const SimStreamCounters& counters() const { return counters_; }
  uint64_t trace() const { return trace_; }  // Hash of all frames that arrived, in order.

 private:
  class Transport;
  using EndId = std::pair<uint64_t, uint32_t>;                          // Generation, rank.
  using StreamId = std::tuple<uint64_t, uint32_t, uint32_t, uint64_t>;  // from, to, attempt
  using Frame = std::function<void(ExchangeEvents*)>;
  struct End {
    SimStreamPlace place;
    ExchangeEvents* events = nullptr;
  };
  struct Stream {
    StreamId id;
    bool is_whole = true;
    int64_t late_us = -1;               // Once broken: what is under way comes so late; -1: never.
    int64_t forth_us = 0, back_us = 0;  // When the last frame arrives.
    int frames_left = 0;
    int receipts = 0;
    std::optional<Receipt> unsent;  // Behind the one that is being written.
    bool is_writing = false;        // A receipt.
  };
  using StreamPtr = std::shared_ptr<Stream>;

  void Open(const End& from, uint32_t to, uint64_t attempt);
  void Send(const End& from, uint32_t to, uint64_t attempt, const BlockChunk& chunk,
            const std::shared_ptr<const BlockBytes>& bytes);
  void SendReceipt(const End& from, uint32_t to, uint64_t attempt, Receipt receipt);
  void WriteReceipt(const StreamPtr& stream);
  void Leave(EndId id);

  End* Find(EndId id);
  StreamPtr FindStream(const StreamId& id) const;
  // To the process, unless it is gone by then.
  void Deliver(EndId to, const Frame& frame);
  void Carry(const StreamPtr& stream, bool forth, const Frame& frame);
  void Break(const StreamPtr& stream, int64_t noticed_us);
  void Close(const StreamId& id, int64_t delay_us, const absl::Status& why);
  int64_t Delay() { return random_.Between(1, faults_.delay_us); }
  void Tamper(const End& from, const StreamPtr& stream, Receipt* receipt);

  SimRandom random_;
  const StreamFaults faults_;
  const IsCut is_cut_;
  Scheduler& scheduler_;
  Saboteur& saboteur_;
  std::map<EndId, End*> ends_;
  std::map<StreamId, StreamPtr> streams_;  // Whole ones.
  SimStreamCounters counters_;
  uint64_t trace_ = 0;
  // For planted faults, by generation, sender and receiver: the last steps sent whole, and those
  // that a receiver has said it takes.
  std::map<std::tuple<uint64_t, uint32_t, uint32_t>, std::array<Step, kNumPhases>> sent_, granted_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_STREAMS_H_
