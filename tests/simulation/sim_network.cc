#include "tests/simulation/sim_network.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

// The rows of a reply, one table after the other.
std::vector<float> ReadRows(ServerCore* server, const wire::PullRequest& request) {
  std::vector<float> rows;
  for (const wire::KeyRange& range : request.tables) {
    const absl::StatusOr<int> floats = server->FloatsOf(range.table, request.with_state);
    CHECK(floats.ok());
    const size_t begin = rows.size();
    rows.resize(begin + range.count * *floats);
    const absl::Status read =
        server->ReadRows(range.table, request.KeysOf(range), request.with_state,
                         reinterpret_cast<uint8_t*>(rows.data() + begin));
    CHECK(read.ok());
  }
  return rows;
}

template <typename Answer>
uint64_t OutcomeOf(const absl::StatusOr<Answer>& answer) {
  return answer.ok() ? static_cast<uint64_t>(answer->readiness)
                     : 100 + static_cast<uint64_t>(answer.status().code());
}

}  // namespace

class SimNetwork::Expectation {
 public:
  virtual ~Expectation() = default;
  virtual void Refused(absl::Status why) = 0;
};

template <typename Answer>
struct SimNetwork::Caller : public Expectation {
  using Done = std::function<void(absl::StatusOr<Answer>)>;
  explicit Caller(Done d) : done(std::move(d)) {}

  void Answered(absl::StatusOr<Answer> answer) {
    const Done callback = std::move(done);
    done = nullptr;
    callback(std::move(answer));
  }
  void Refused(absl::Status why) override {
    if (done) Answered(std::move(why));
  }

  Done done;  // Empty once it ran.
};

class SimNetwork::Link : public Transport {
 public:
  explicit Link(SimNetwork* network) : network_(*network) {}
  ~Link() override { Close(); }

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    network_.Pull(server, call, deadline_us, Begin<wire::PullAnswer>(deadline_us, std::move(done)));
  }
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    network_.Push(server, call, Begin<wire::PushAnswer>(deadline_us, std::move(done)));
  }
  void Close() override {
    closed_ = true;
    for (const std::weak_ptr<Expectation>& call : std::exchange(calls_, {})) {
      if (const auto open = call.lock()) open->Refused(absl::CancelledError("simulated: closed"));
    }
  }

 private:
  template <typename Answer>
  std::shared_ptr<Caller<Answer>> Begin(int64_t deadline_us,
                                        std::function<void(absl::StatusOr<Answer>)> done) {
    CHECK(!closed_);
    const auto caller = std::make_shared<Caller<Answer>>(std::move(done));
    calls_.push_back(caller);
    network_.Here()->RunAfter(deadline_us, [caller] {
      caller->Refused(absl::DeadlineExceededError("simulated: too late"));
    });
    return caller;
  }

  SimNetwork& network_;
  bool closed_ = false;
  std::vector<std::weak_ptr<Expectation>> calls_;
};

SimNetwork::SimNetwork(uint64_t seed, const NetworkFaults& faults, std::vector<SimServer*> servers,
                       Scheduler* scheduler, Saboteur* saboteur)
    : random_(seed),
      faults_(faults),
      servers_(std::move(servers)),
      scheduler_(scheduler),
      saboteur_(saboteur) {}

SimNetwork::SimNetwork(uint64_t seed, const NetworkFaults& faults, SimRoutes routes,
                       Scheduler* scheduler, Saboteur* saboteur)
    : random_(seed),
      faults_(faults),
      routes_(std::move(routes)),
      scheduler_(scheduler),
      saboteur_(saboteur) {}

std::unique_ptr<Transport> SimNetwork::Connect() { return std::make_unique<Link>(this); }

SimServer* SimNetwork::Arrive(ServerIndex server) {
  if (routes_.server) return routes_.server(server);
  if (saboteur_->ForgetsNow()) servers_[server.value()]->Forget();
  return servers_[server.value()];
}

void SimNetwork::Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
                      const std::shared_ptr<Caller<wire::PullAnswer>>& caller) {
  const auto request = std::make_shared<const wire::PullRequest>(ToWire(call));
  const bool probes = request->tables.empty() && !request->count_rows;
  if (probes && saboteur_->Has(PlantedFault::kSilentWorkers)) return;
  const Refuse refuse = [caller](absl::Status why) { caller->Refused(std::move(why)); };
  const int64_t gives_up_us = scheduler_->NowMicros() + deadline_us;
  const auto deliver = [=, destination = call.tables](bool reply) {
    Note({1, server.value(), request->header.rank.value(),
          static_cast<uint64_t>(request->step.value()), request->keys.size()});
    SimServer* const at = Arrive(server);
    const auto gone = [=] {
      if (reply) BreakConnection(refuse);
    };
    if (at == nullptr) return gone();
    const auto answered = [=](absl::StatusOr<wire::PullAnswer> answer) {
      answer = saboteur_->TamperAnswer(*request, std::move(answer));
      Note({2, server.value(), request->header.rank.value(), OutcomeOf(answer)});
      const bool ready = answer.ok() && answer->readiness == wire::Readiness::kReady;
      ServerCore* const core = at->core();
      std::vector<float> rows = ready ? ReadRows(core, *request) : std::vector<float>();
      if (!reply) return;
      const auto arrive = [caller, answer, destination, rows = std::move(rows)] {
        if (!caller->done) return;
        const float* next = rows.data();
        for (const PullSlice& slice : destination) {
          if (rows.empty()) break;
          std::copy_n(next, slice.rows.size(), slice.rows.begin());
          next += slice.rows.size();
        }
        caller->Answered(answer);
      };
      SendReply(server, at, arrive, refuse);
    };
    const int64_t time_left_us = gives_up_us - scheduler_->NowMicros();
    at->Pull(saboteur_->Tamper(*request), time_left_us, answered, gone);
  };
  SendRequest(server, deliver, refuse);
}

void SimNetwork::Push(ServerIndex server, const PushCall& call,
                      const std::shared_ptr<Caller<wire::PushAnswer>>& caller) {
  const auto chunk = std::make_shared<const wire::PushChunk>(ToWire(call));
  const Refuse refuse = [caller](absl::Status why) { caller->Refused(std::move(why)); };
  const auto deliver = [=](bool reply) {
    Note({3, server.value(), chunk->header.rank.value(), static_cast<uint64_t>(chunk->step.value()),
          chunk->chunk, chunk->keys.size()});
    if (chunk->num_chunks > 1) ++chunks_of_many_;
    wire::PushChunk arrived = saboteur_->Tamper(server, *chunk);
    SimServer* const at = Arrive(server);
    const auto gone = [=] {
      if (reply) BreakConnection(refuse);
    };
    if (at == nullptr) return gone();
    const auto answered = [=](absl::StatusOr<wire::PushAnswer> answer) {
      answer = saboteur_->TamperAnswer(*chunk, std::move(answer));
      if (absl::IsResourceExhausted(answer.status()) && !at->overloaded()) ++chunks_refused_;
      Note({4, server.value(), chunk->header.rank.value(), OutcomeOf(answer)});
      if (!reply) return;
      const auto arrive = [caller, answer] {
        if (caller->done) caller->Answered(answer);
      };
      SendReply(server, at, arrive, refuse);
    };
    at->Push(std::move(arrived), answered, gone);
  };
  SendRequest(server, deliver, refuse);
}

void SimNetwork::SendRequest(ServerIndex server, const std::function<void(bool reply)>& deliver,
                             const Refuse& refuse) {
  if (random_.Chance(faults_.refuse)) {
    ++messages_lost_;
    return Here()->RunAfter(Delay(),
                            [refuse] { refuse(absl::UnavailableError("simulated: refused")); });
  }
  if (random_.Chance(faults_.drop)) {
    ++messages_lost_;
  } else {
    Travel(server, /*to_server=*/true, [deliver] { deliver(true); });
  }
  if (random_.Chance(faults_.duplicate)) {
    Travel(server, /*to_server=*/true, [deliver] { deliver(false); });
  }
}

void SimNetwork::Travel(ServerIndex server, bool to_server, const std::function<void()>& arrive) {
  if (!routes_.is_cut) return scheduler_->RunAfter(Delay(), arrive);
  scheduler_->RunAfter(Delay(), [=] {
    if (routes_.is_cut(server, to_server)) {
      ++messages_lost_;
      return;
    }
    Scheduler* const arrival = to_server ? routes_.arrival(server) : routes_.worker;
    arrival->RunAfter(0, arrive);
  });
}

// An answer may arrive after its process has died, or be lost with the connection.
void SimNetwork::SendReply(ServerIndex server, SimServer* from, const std::function<void()>& arrive,
                           const Refuse& refuse) {
  if (random_.Chance(faults_.drop)) {
    ++messages_lost_;
    return;
  }
  const uint64_t deaths = from->deaths();
  Travel(server, /*to_server=*/false, [=] {
    if (from->deaths() == deaths) return arrive();
    ++answers_of_the_dead_;
    random_.Chance(0.5) ? arrive() : BreakConnection(refuse);
  });
}

void SimNetwork::BreakConnection(const Refuse& refuse) {
  ++messages_lost_;
  if (random_.Chance(0.5)) return;  // Until the caller's deadline.
  Here()->RunAfter(Delay(),
                   [refuse] { refuse(absl::UnavailableError("simulated: connection broke")); });
}

int64_t SimNetwork::Delay() {
  if (random_.Chance(faults_.straggle)) return random_.Between(0, faults_.straggle_us);
  return random_.Between(1, faults_.delay_us);
}

void SimNetwork::Note(std::initializer_list<uint64_t> what) {
  trace_ = Mix64(trace_ ^ static_cast<uint64_t>(scheduler_->NowMicros()));
  for (const uint64_t number : what) trace_ = Mix64(trace_ ^ number);
}

}  // namespace thermocline
