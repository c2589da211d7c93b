#include "deploy/runner/process_calls.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/base/timing.h"
#include "common/job/resolved_job.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(2);
constexpr absl::Duration kConfigureTimeout = absl::Seconds(15);
constexpr absl::Duration kDigestRetryPeriod = absl::Milliseconds(5);

absl::Status NotThere() { return absl::UnavailableError("the process is not there"); }

}  // namespace

ProcessCalls::ProcessCalls(const Job& job, uint64_t generation, std::string trace_directory)
    : job_(job),
      generation_(generation),
      trace_directory_(std::move(trace_directory)),
      servers_(NumServers(job.cluster())),
      workers_(job.cluster().workers()),
      numbers_(job.name(), generation) {}

absl::Status ProcessCalls::Connect(ProcessRole role, size_t index, const std::string& address) {
  ASSIGN_OR_RETURN(Client client, ControlClient::Create(address, TlsFilesOf(job_.cluster().tls(),
                                                                            Role::kController)));
  absl::MutexLock lock(&mutex_);
  (role == ProcessRole::kServer ? servers_ : workers_)[index] = std::move(client);
  return absl::OkStatus();
}

void ProcessCalls::Disconnect(ProcessRole role, size_t index) {
  absl::MutexLock lock(&mutex_);
  (role == ProcessRole::kServer ? servers_ : workers_)[index] = nullptr;
}

void ProcessCalls::End() {
  absl::MutexLock lock(&mutex_);
  std::fill(servers_.begin(), servers_.end(), nullptr);
  std::fill(workers_.begin(), workers_.end(), nullptr);
}

ProcessCalls::Client ProcessCalls::Server(size_t index) const {
  absl::MutexLock lock(&mutex_);
  return servers_[index];
}

ProcessCalls::Client ProcessCalls::Worker(size_t rank) const {
  absl::MutexLock lock(&mutex_);
  return workers_[rank];
}

absl::Status ProcessCalls::Configure(const action::Configure& configure) const {
  const Client server = Server(configure.id.index);
  if (server == nullptr) return NotThere();
  ConfigureRequest request =
      MakeConfigureRequest(job_, job_.name(), generation_, ServerIndex(configure.id.index));
  request.set_base_checkpoint(configure.base);
  request.set_base_generation(configure.base_generation);
  if (job_.has_trace() && !trace_directory_.empty() && !HasEmbeddedServer(job_.cluster())) {
    *request.mutable_trace() = job_.trace();
    request.set_trace_directory(trace_directory_);
  }
  return server->Configure(request, kConfigureTimeout).status();
}

std::vector<ServerReport> ProcessCalls::ServerStats(absl::Duration timeout) const {
  std::vector<ServerReport> reports(NumServers(job_.cluster()), {"", NotThere()});
  CallAll(reports.size(), [&](size_t i) {
    const Client server = Server(i);
    if (server == nullptr) return;
    const int64_t asked_ns = MonotonicNanos();
    reports[i] = {server->address(), server->GetStats(timeout)};
    reports[i].took = absl::Nanoseconds(MonotonicNanos() - asked_ns);
    reports[i].asked_ns = asked_ns;
  });
  return reports;
}

std::vector<WorkerReport> ProcessCalls::WorkerStats(absl::Duration timeout) const {
  std::vector<Client> clients;
  for (size_t rank = 0; rank < job_.cluster().workers(); ++rank) {
    if (Client worker = Worker(rank)) clients.push_back(std::move(worker));
  }
  std::vector<WorkerReport> reports(clients.size(), {"", NotThere()});
  CallAll(clients.size(), [&](size_t i) {
    const int64_t asked_ns = MonotonicNanos();
    reports[i] = {clients[i]->address(), clients[i]->GetWorkerStats(timeout)};
    reports[i].took = absl::Nanoseconds(MonotonicNanos() - asked_ns);
    reports[i].asked_ns = asked_ns;
  });
  return reports;
}

CheckpointRequest ProcessCalls::Next(CheckpointRequest::Action action, Step step) {
  absl::MutexLock lock(&mutex_);
  return numbers_.Next(action, step);
}

void ProcessCalls::Learn(const CheckpointReply& reply) {
  absl::MutexLock lock(&mutex_);
  numbers_.Learn(reply);
}

absl::StatusOr<CheckpointReply> ProcessCalls::CallOne(const CheckpointCall& call) {
  const Client client = call.to_worker ? Worker(call.index) : Server(call.index);
  if (client == nullptr) {
    // A worker that has ended is not asked again.
    return call.to_worker ? absl::FailedPreconditionError("the worker has ended") : NotThere();
  }
  const CheckpointRequest request = Next(call.action, call.step);
  if (!call.to_worker) {
    const auto reply = client->Checkpoint(request, kCallTimeout);
    if (reply.ok()) Learn(*reply);
    return reply;
  }
  const auto reply = client->CheckpointWorker(request, kCallTimeout);
  if (!absl::IsFailedPrecondition(reply.status())) return reply;
  // The worker may have seen a higher number of another launcher, which its status shows. (Servers
  // are asked for their status in every round.)
  const auto status =
      client->CheckpointWorker(Next(CheckpointRequest::STATUS, call.step), kCallTimeout);
  if (status.ok()) Learn(*status);
  return reply;
}

CheckpointAnswers ProcessCalls::Call(const std::vector<CheckpointCall>& calls) {
  std::map<std::pair<bool, size_t>, std::vector<size_t>> of_process;  // Positions in `calls`.
  for (size_t i = 0; i < calls.size(); ++i) {
    of_process[{calls[i].to_worker, calls[i].index}].push_back(i);
  }
  std::vector<std::vector<size_t>> chains;
  for (auto& [process, chain] : of_process) chains.push_back(std::move(chain));
  CheckpointAnswers answers(calls.size(), absl::UnavailableError("not called"));
  CallAll(chains.size(), [&](size_t chain) {
    for (const size_t i : chains[chain]) {
      answers[i] = CallOne(calls[i]);
      if (IsUnanswered(answers[i].status())) return;
    }
  });
  return answers;
}

std::vector<bool> ProcessCalls::Decide(const action::Decide& decide) const {
  EvaluationDecision decision;
  decision.set_job_id(job_.name());
  decision.set_generation(generation_);
  decision.set_step(decide.step.value());
  decision.set_stop(decide.stop);
  decision.set_data_place(decide.data_place);
  std::vector<char> answered(decide.ranks.size(), 0);  // Not bool: written by several threads.
  CallAll(decide.ranks.size(), [&](size_t i) {
    const Client worker = Worker(decide.ranks[i]);
    answered[i] = worker == nullptr || !IsUnanswered(worker->Decide(decision, kCallTimeout));
  });
  return {answered.begin(), answered.end()};
}

std::vector<absl::Status> ProcessCalls::Introduce(const action::Introduce& introduce) const {
  WorkerPeers peers;
  peers.set_job_id(job_.name());
  peers.set_generation(generation_);
  for (const std::string& address : introduce.addresses) peers.add_addresses(address);
  std::vector<absl::Status> answers(introduce.ranks.size(), NotThere());
  CallAll(introduce.ranks.size(), [&](size_t i) {
    const Client worker = Worker(introduce.ranks[i]);
    if (worker != nullptr) answers[i] = worker->Introduce(peers, kCallTimeout);
  });
  return answers;
}

// The server may be computing a digest for another client, or just have done so.
absl::StatusOr<GetDigestReply> ProcessCalls::AwaitDigest(const action::AskDigest& ask,
                                                         size_t index) const {
  const Stopwatch watch;
  while (true) {
    const Client server = Server(index);
    if (server == nullptr) return NotThere();
    auto reply = server->GetDigest(job_.name(), generation_, ask.timeout - watch.Elapsed());
    if (!absl::IsResourceExhausted(reply.status()) || watch.Elapsed() >= ask.timeout) return reply;
    absl::SleepFor(kDigestRetryPeriod);
  }
}

absl::StatusOr<Digest> ProcessCalls::GetDigest(const action::AskDigest& ask) const {
  std::vector<absl::StatusOr<Digest>> digests(NumServers(job_.cluster()), NotThere());
  CallAll(digests.size(), [&](size_t i) {
    const absl::StatusOr<GetDigestReply> reply = AwaitDigest(ask, i);
    if (!reply.ok()) {
      digests[i] = reply.status();
    } else if (reply->complete_through() != ask.last.value()) {
      digests[i] = absl::DataLossError(
          absl::StrCat("it has lost pushes that it had acknowledged: its rows are those of step ",
                       reply->complete_through(), ", and step ", ask.last.value(), " was trained"));
    } else {
      digests[i] = Digest{reply->low(), reply->high()};
    }
  });
  Digest sum;
  for (const absl::StatusOr<Digest>& digest : digests) {
    RETURN_IF_ERROR(digest.status());
    sum.Add(*digest);
  }
  return sum;
}

}  // namespace thermocline
