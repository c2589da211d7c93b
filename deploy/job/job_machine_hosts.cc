// The hosts of a job over several hosts: who comes, who is lost, who runs what.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "deploy/job/job_machine_state.h"

namespace thermocline {

void JobMachine::State::On(const event::HostUp& up) {
  const Host& host = up.host;
  if (hosts_.Knows(host.name, host.nonce)) return;
  // What ran under the agent before is gone, or ends without a lease.
  if (const Host* const before = hosts_.Find(host.name)) {
    On(event::HostLost{host.name, before->nonce, "its agent was started again"});
  }
  if (hosts_.Add(host) && stage_ > Stage::kWaitingForHosts) {
    Tell(absl::StrCat("host ", host.name, " came; it is used from the next generation on"));
  }
}

void JobMachine::State::On(const event::HostLost& lost) {
  if (!hosts_.Lose(lost.name, lost.nonce, lost.why)) return;
  Tell(absl::StrCat("host ", lost.name, " is lost: ", lost.why));
  // What ends while the others are stopped shows nothing.
  if (!IsRunning() && stage_ != Stage::kSettling) return;
  GenerationState& g = generation_;
  const std::string how = absl::StrCat("was lost with host ", lost.name);
  const ProcessEnd end = {std::nullopt, how, absl::StrCat(how, ": ", lost.why)};
  bool any = false;
  for (const ProcessRole role : {ProcessRole::kServer, ProcessRole::kWorker}) {
    const bool is_server = role == ProcessRole::kServer;
    std::vector<ProcessState>& processes = is_server ? g.processes.servers : g.processes.workers;
    for (size_t i = 0; i < processes.size(); ++i) {
      ProcessState& process = processes[i];
      if (g.placement.HostOf(role, i) != lost.name) continue;
      // A server's log is gone even where its process had ended before, and what was not started
      // yet has no place any more.
      const bool is_to_start = process.incarnation == 0 || (is_server && process.start_at);
      if (!process.is_running && !is_to_start) continue;
      process.is_running = process.is_configured = false;
      process.start_at.reset();
      process.configure_at.reset();
      process.end = end;
      g.is_server_lost |= is_server;
      any = true;
    }
  }
  if (any) Settle();
}

void JobMachine::State::WaitForHosts() {
  if (options_.num_hosts == 0) return StartServers();
  stage_ = Stage::kWaitingForHosts;
  generation_.hosts_deadline = now_ + absl::Seconds(options_.job.cluster().host_wait_s());
  LookAtHosts();
  if (stage_ != Stage::kWaitingForHosts) return;
  Tell(absl::StrCat("waiting for hosts; there so far: ", hosts_.Describe()));
}

// The first time all hosts that the user asked for take part. Later those that are left do, unless
// they can't run everything. Where none is left, as many as before are waited for: they come back
// one by one, and the first would get all that ran on all of them.
size_t JobMachine::State::HostsToWaitFor() const {
  for (const Host& placed : placed_) {
    const Host* const host = hosts_.Find(placed.name);
    if (host != nullptr && host->nonce == placed.nonce) return 1;
  }
  return num_trained_hosts_ > 0 ? num_trained_hosts_ : options_.num_hosts;
}

void JobMachine::State::LookAtHosts() {
  const Cluster& cluster = options_.job.cluster();
  const std::vector<Host> usable = hosts_.Usable();
  absl::StatusOr<Placement> placement =
      Place(usable, cluster.servers(), cluster.workers(), options_.job.device());
  const bool is_first = placed_.empty();
  const size_t wanted = HostsToWaitFor();
  const std::string waited =
      absl::StrCat(" after ", absl::FormatDuration(absl::Seconds(cluster.host_wait_s())),
                   " (cluster.host_wait_s)");
  const bool is_over = now_ >= generation_.hosts_deadline;
  if (placement.ok() && (usable.size() >= wanted || (!is_first && is_over))) {
    if (usable.size() < wanted) {
      Tell(absl::StrCat(usable.size(), " of ", wanted, " hosts are there", waited,
                        "; going on without the others"));
    }
    placed_.clear();
    for (const Host& host : usable) {
      if (placement->Uses(host.name)) placed_.push_back(host);
    }
    generation_.hosts_deadline = absl::InfiniteDuration();
    generation_.placement = *std::move(placement);
    Tell(generation_.placement.Describe());
    for (const std::string& notice : generation_.placement.notices) Tell(notice);
    return StartServers();
  }
  const bool are_few = is_first && usable.size() < options_.num_hosts;
  const std::string why =
      are_few ? absl::StrCat(usable.size(), " of ", options_.num_hosts, " hosts can be used")
              : std::string(placement.status().message());
  const std::string there = absl::StrCat("hosts that are there: ", hosts_.Describe());
  if (is_first && hosts_.size() >= options_.num_hosts) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(why, "; ", there)));
  }
  if (!is_over) return;
  generation_.lacks_hosts = true;
  Fail(absl::DeadlineExceededError(absl::StrCat(
      why, waited, "; ", there, is_first ? "" : "; the job can be resumed once there are hosts")));
}

// Where to look: "server-0.log", "server-0.log (on h1)".
std::string JobMachine::State::LogOf(ProcessRole role, size_t index) const {
  const std::string host = generation_.placement.HostOf(role, index);
  const std::string& log =
      (role == ProcessRole::kServer ? options_.server_logs : options_.worker_logs)[index];
  return host.empty() ? log : absl::StrCat(log, " (on ", host, ")");
}

}  // namespace thermocline
