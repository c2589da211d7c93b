// A network that loses, doubles, delays and so reorders messages, as a seed says. A worker sees it
// as a Transport; at its other end it calls servers, as the gRPC service would. It may hide the
// death of a server from its callers, and delivers a worker's messages after that worker has died.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_NETWORK_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_NETWORK_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/wire/messages.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_setup.h"
#include "worker/session/transport.h"

namespace thermocline {

// Where the messages of one worker go, in a job over several hosts.
struct SimRoutes {
  Scheduler* worker = nullptr;                     // The worker's process runs on it.
  std::function<SimServer*(ServerIndex)> server;   // The server at the address now; null: none.
  std::function<Scheduler*(ServerIndex)> arrival;  // The process there runs on it.
  std::function<bool(ServerIndex, bool to_server)> is_cut;
};

class SimNetwork {
 public:
  // Borrows all; one network serves all workers.
  SimNetwork(uint64_t seed, const NetworkFaults& faults, std::vector<SimServer*> servers,
             Scheduler* scheduler, Saboteur* saboteur);
  // The network of one worker. What is under way goes on while a process is paused, and arrives
  // when that goes on.
  SimNetwork(uint64_t seed, const NetworkFaults& faults, SimRoutes routes, Scheduler* scheduler,
             Saboteur* saboteur);

  // A worker's end of it; the network outlives it. Closed, it answers every call that is under way
  // with kCancelled.
  std::unique_ptr<Transport> Connect();

  // Hash of all messages, in order.
  uint64_t trace() const { return trace_; }
  uint64_t messages_lost() const { return messages_lost_; }
  // Chunks of pushes that have several; every copy counts.
  uint64_t chunks_of_many() const { return chunks_of_many_; }
  // Chunks for which a server had no room.
  uint64_t chunks_refused() const { return chunks_refused_; }
  // Answers of processes that were dead when these arrived, or would have.
  uint64_t answers_of_the_dead() const { return answers_of_the_dead_; }

 private:
  class Link;
  class Expectation;  // The end of a call where the answer is expected.
  template <typename Answer>
  struct Caller;  // An expectation, with what the answer is.

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            const std::shared_ptr<Caller<wire::PullAnswer>>& caller);
  void Push(ServerIndex server, const PushCall& call,
            const std::shared_ptr<Caller<wire::PushAnswer>>& caller);
  // The server at which a message arrives now; null: none.
  SimServer* Arrive(ServerIndex server);
  // Calls `deliver` once for every copy of the request that arrives, telling if its reply may
  // arrive. Or calls `refuse` with the reason why none does.
  using Refuse = std::function<void(absl::Status)>;
  void SendRequest(ServerIndex server, const std::function<void(bool reply)>& deliver,
                   const Refuse& refuse);
  // `from` has just answered.
  void SendReply(ServerIndex server, SimServer* from, const std::function<void()>& arrive,
                 const Refuse& refuse);
  void Travel(ServerIndex server, bool to_server, const std::function<void()>& arrive);
  Scheduler* Here() const { return routes_.worker != nullptr ? routes_.worker : scheduler_; }
  // No process is at the other end; the caller may get an error.
  void BreakConnection(const Refuse& refuse);
  int64_t Delay();
  void Note(std::initializer_list<uint64_t> what);

  SimRandom random_;
  const NetworkFaults faults_;
  const std::vector<SimServer*> servers_;
  const SimRoutes routes_;  // Without a worker, all messages go to servers_.
  Scheduler* const scheduler_;
  Saboteur* const saboteur_;
  uint64_t trace_ = 0;
  uint64_t messages_lost_ = 0;
  uint64_t chunks_of_many_ = 0;
  uint64_t chunks_refused_ = 0;
  uint64_t answers_of_the_dead_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_NETWORK_H_
