#include "tests/simulation/sim_launcher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

void SimLauncherCounters::Add(const SimLauncherCounters& other) {
  committed += other.committed;
  increments += other.increments;
  called_off += other.called_off;
  not_removed += other.not_removed;
  answered += other.answered;
  late_calls += other.late_calls;
}

// Calls that take a while, in which everybody else goes on. Of those that the launcher gave up some
// arrive later, as long as the process is there that they were sent to.
class SimLauncher::Calls : public CutParticipants {
 public:
  Calls(const SimLauncherOptions* options, VirtualScheduler* scheduler, Saboteur* saboteur,
        SimLauncherCounters* counters)
      : options_(*options),
        scheduler_(*scheduler),
        saboteur_(*saboteur),
        counters_(*counters),
        requests_(options->job_id, options->keeper.manifest.epoch()),
        random_(Mix64(options->seed)) {}

  size_t num_servers() const override { return options_.servers.size(); }
  size_t num_workers() const override { return options_.num_workers; }

  absl::StatusOr<CheckpointReply> AskServer(size_t index, CheckpointRequest::Action action,
                                            Step cut) override {
    SimServer* const server = options_.servers[index];
    const CheckpointRequest request = RequestFor(action, cut);
    const auto reply = Call(action, [server, request, deaths = server->deaths()] {
      return server->deaths() == deaths ? server->Checkpoint(request) : Gone();
    });
    if (reply.ok() && saboteur_.Has(PlantedFault::kEarlyCommits)) CommitEarly(server, *reply);
    return reply;
  }

  absl::StatusOr<CheckpointReply> AskWorker(size_t rank, CheckpointRequest::Action action,
                                            Step cut) override {
    return Call(action, [this, rank, request = RequestFor(action, cut), ended = options_.ended] {
      if (*ended) return Gone();  // And with it every worker.
      SimWorker* const worker = options_.worker(rank);
      return worker == nullptr ? Gone() : worker->Checkpoint(request);
    });
  }

  absl::StatusOr<uint64_t> LogBytes(size_t index) override {
    if (*options_.ended || random_.Chance(options_.faults.lose_call)) return Gone().status();
    return options_.servers[index]->LogBytes();
  }

 private:
  using Deliver = std::function<absl::StatusOr<CheckpointReply>()>;

  static absl::StatusOr<CheckpointReply> Gone() {
    return absl::UnavailableError("simulated: nobody there");
  }

  absl::StatusOr<CheckpointReply> Call(CheckpointRequest::Action action, const Deliver& deliver) {
    const LauncherFaults& faults = options_.faults;
    if (*options_.ended || random_.Chance(faults.lose_call)) return Gone();
    if (action != CheckpointRequest::STATUS && random_.Chance(faults.late_call)) {
      ++counters_.late_calls;
      scheduler_.RunAfter(random_.Between(0, faults.late_us),
                          [alive = std::weak_ptr<bool>(alive_), deliver] {
                            if (!alive.expired()) deliver().IgnoreError();
                          });
      return absl::DeadlineExceededError("simulated: too late");
    }
    scheduler_.Advance(random_.Between(0, faults.call_us / 2));
    const absl::StatusOr<CheckpointReply> reply = deliver();
    scheduler_.Advance(random_.Between(0, faults.call_us / 2));
    if (*options_.ended) return Gone();
    if (random_.Chance(faults.lose_call)) {
      return absl::DeadlineExceededError("simulated: the answer was lost");
    }
    if (reply.ok()) requests_.Learn(*reply);
    return reply;
  }

  void CommitEarly(SimServer* server, const CheckpointReply& reply) {
    for (const CutStatus& cut : reply.cuts()) {
      if (cut.state() != CutStatus::WRITTEN) continue;
      server->Checkpoint(RequestFor(CheckpointRequest::COMMITTED, Step(cut.step()))).IgnoreError();
    }
  }

  CheckpointRequest RequestFor(CheckpointRequest::Action action, Step cut) {
    CheckpointRequest request = requests_.Next(action, cut);
    if (saboteur_.Has(PlantedFault::kNoRequestOrder)) request.clear_sequence();
    return request;
  }

  const SimLauncherOptions& options_;
  VirtualScheduler& scheduler_;
  Saboteur& saboteur_;
  SimLauncherCounters& counters_;
  CutRequests requests_;
  SimRandom random_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

SimLauncher::SimLauncher(SimLauncherOptions options, CheckpointStore* store,
                         VirtualScheduler* scheduler, Saboteur* saboteur,
                         std::vector<std::string>* failures)
    : options_(std::move(options)),
      store_(store),
      failures_(failures),
      random_(options_.seed),
      calls_(std::make_unique<Calls>(&options_, scheduler, saboteur, &counters_)),
      keeper_(options_.keeper, calls_.get(), store) {}

SimLauncher::~SimLauncher() = default;

void SimLauncher::Poll() {
  if (random_.Chance(options_.faults.request)) {
    keeper_.Request([this](const absl::StatusOr<std::string>& name) {
      if (!name.ok() || *options_.ended) return;
      ++counters_.answered;
      if (store_->Load(*name).ok()) return;
      failures_->push_back(
          absl::StrCat("who asked for a checkpoint got ", *name, ", which is none"));
    });
  }
  keeper_.Poll();
  if (!*options_.ended) TakeEvents();
}

void SimLauncher::TakeEvents() {
  for (const CheckpointEvent& event : keeper_.TakeEvents()) {
    if (event.kind == CheckpointEvent::kCalledOff) ++counters_.called_off;
    if (event.kind == CheckpointEvent::kNotRemoved) ++counters_.not_removed;
    if (event.kind != CheckpointEvent::kCommitted) continue;
    ++counters_.committed;
    if (!event.is_full) ++counters_.increments;
    new_.push_back(event.name);
  }
}

}  // namespace thermocline
