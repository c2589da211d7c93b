#include "deploy/controller/server_group.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/byte_size.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/base/stopwatch.h"
#include "common/job/configure_request.h"
#include "common/job/job_tables.h"
#include "deploy/controller/fan_out.h"
#include "deploy/controller/stall_watch.h"
#include "deploy/controller/startup.h"

namespace thermocline {
namespace {

constexpr absl::Duration kPollPeriod = absl::Milliseconds(5);
constexpr absl::Duration kConfigureTimeout = absl::Seconds(15);
constexpr absl::Duration kConfigureRetryPeriod = absl::Milliseconds(20);
constexpr absl::Duration kStatsTimeout = absl::Seconds(10);

// The host with port 0: a free one. An IPv6 address needs brackets.
std::string ListenAddress(const std::string& host) {
  const bool bare_ipv6 = host.find(':') != std::string::npos && host[0] != '[';
  return bare_ipv6 ? absl::StrCat("[", host, "]:0") : absl::StrCat(host, ":0");
}

std::vector<std::string> ServerCommand(const std::string& program, const Job& job,
                                       const std::string& listen, const std::string& port_file) {
  const Cluster& cluster = job.cluster();
  std::vector<std::string> command = {
      program,
      absl::StrCat("--listen=", listen),
      absl::StrCat("--port_file=", port_file),
      absl::StrCat("--job_id=", job.name()),
      absl::StrCat("--apply_threads=", cluster.server_threads()),
      absl::StrCat("--handler_threads=", cluster.handler_threads()),
      absl::StrCat("--max_pending_bytes=", ParseByteSize(cluster.max_pending_size()).value_or(0)),
      absl::StrCat("--max_held_pulls=", cluster.max_held_pulls()),
      absl::StrCat("--max_message_bytes=", cluster.max_message_bytes()),
  };
  if (!cluster.tls().ca().empty()) {
    command.push_back(absl::StrCat("--tls_certificate=", cluster.tls().certificate()));
    command.push_back(absl::StrCat("--tls_private_key=", cluster.tls().private_key()));
    command.push_back(absl::StrCat("--tls_ca=", cluster.tls().ca()));
  }
  if (cluster.insecure()) command.push_back("--insecure");
  return command;
}

// Whether the processes of a job, which inherit our limit, can be connected as they will be.
absl::Status CheckOpenFilesOf(const Cluster& cluster) {
  const uint64_t servers = cluster.servers(), workers = cluster.workers();
  RETURN_IF_ERROR(CheckOpenFiles("the launcher", servers + workers));
  RETURN_IF_ERROR(CheckOpenFiles("a server", 1 + workers * cluster.channels_per_server()));
  return CheckOpenFiles("a worker", 1 + servers * cluster.channels_per_server());
}

// The server may be computing another's digest, or have done so just before.
absl::StatusOr<GetDigestReply> AwaitDigest(ControlClient& server, const std::string& job_id,
                                           uint64_t epoch, absl::Duration timeout) {
  const Stopwatch watch;
  while (true) {
    auto reply = server.GetDigest(job_id, epoch, timeout - watch.Elapsed());
    if (!absl::IsResourceExhausted(reply.status()) || watch.Elapsed() >= timeout) return reply;
    absl::SleepFor(kPollPeriod);
  }
}

// Whether a table may have more rows than fit in memory.
bool SpillsRows(const Job& job) {
  const std::vector<TableLayout> layouts = ResolveTables(job).AllLayouts();
  return std::any_of(layouts.begin(), layouts.end(),
                     [](const TableLayout& table) { return table.memory_budget_bytes > 0; });
}

}  // namespace

ServerGroup::~ServerGroup() {
  Disconnect();
  for (std::thread& restart : restarts_) restart.join();
}

void ServerGroup::Disconnect() {
  absl::MutexLock lock(&mutex_);
  for (std::shared_ptr<ControlClient>& client : clients_) client = nullptr;
  ending_ = true;
}

std::shared_ptr<ControlClient> ServerGroup::client(size_t index) const {
  absl::MutexLock lock(&mutex_);
  return clients_[index];
}

absl::StatusOr<std::shared_ptr<ControlClient>> ServerGroup::Connect(size_t index) const {
  const Tls& tls = job_.cluster().tls();
  ASSIGN_OR_RETURN(
      auto client,
      ControlClient::Create(addresses_[index], {tls.certificate(), tls.private_key(), tls.ca()}));
  return std::shared_ptr<ControlClient>(std::move(client));
}

ConfigureRequest ServerGroup::RequestFor(size_t index, const std::string& base) const {
  ConfigureRequest request =
      MakeConfigureRequest(job_, job_.name(), epoch_, ServerIndex(static_cast<uint32_t>(index)));
  request.set_base_checkpoint(base);
  return request;
}

ChildProcessOptions ServerGroup::ProcessOf(size_t index, const std::string& listen) {
  ChildProcessOptions options;
  options.name = NameOf(index);
  options.command =
      ServerCommand(program_, job_, listen, ProcessFile(directory_, options.name, "port"));
  options.command.push_back(absl::StrCat("--incarnation=", ++starts_[index]));
  if (job_.cluster().durability() != NONE || SpillsRows(job_)) {
    options.command.push_back(
        absl::StrCat("--data_dir=", ProcessFile(directory_, options.name, "data")));
  }
  options.log_path = ProcessFile(directory_, options.name, "log");
  return options;
}

absl::Status ServerGroup::Start(const std::string& program) {
  RETURN_IF_ERROR(CheckOpenFilesOf(job_.cluster()));
  program_ = program;
  starts_.assign(job_.cluster().servers(), 0);
  std::vector<std::string> names;
  for (uint32_t i = 0; i < job_.cluster().servers(); ++i) {
    // That of an earlier epoch would be taken for this one's.
    RETURN_IF_ERROR(RemoveProcessFile(directory_, NameOf(i), "port"));
    RETURN_IF_ERROR(supervisor_.Start(ProcessRole::kServer,
                                      ProcessOf(i, ListenAddress(job_.cluster().listen_host()))));
    names.push_back(NameOf(i));
  }
  ASSIGN_OR_RETURN(addresses_, WaitForAddresses(names, directory_,
                                                absl::Seconds(job_.cluster().startup_timeout_s()),
                                                &supervisor_));
  for (size_t i = 0; i < addresses_.size(); ++i) {
    ASSIGN_OR_RETURN(std::shared_ptr<ControlClient> client, Connect(i));
    absl::MutexLock lock(&mutex_);
    clients_.push_back(std::move(client));
  }
  return absl::OkStatus();
}

std::string ServerGroup::LogFile(size_t index) const {
  return ProcessFile(directory_, NameOf(index), "log");
}

bool ServerGroup::CameUp(size_t index) const {
  return access(ProcessFile(directory_, NameOf(index), "port").c_str(), F_OK) == 0;
}

absl::Status ServerGroup::Restart(size_t index, const std::string& base, absl::Duration delay) {
  RETURN_IF_ERROR(RemoveProcessFile(directory_, NameOf(index), "port"));
  supervisor_.StartLater(ProcessRole::kServer, ProcessOf(index, addresses_[index]), delay);
  {
    absl::MutexLock lock(&mutex_);
    ++recovering_;
  }
  restarts_.emplace_back([this, index, request = RequestFor(index, base)] {
    const absl::Status status = ConfigureRestarted(index, request);
    absl::MutexLock lock(&mutex_);
    --recovering_;
    if (status.ok() || !restart_error_.ok()) return;
    restart_error_ = absl::Status(
        status.code(), absl::StrCat(NameOf(index), " can't recover: ", status.message()));
  });
  return absl::OkStatus();
}

// Over a new connection, made once the server serves: one that has failed, or is tried too early,
// waits for seconds before it is tried again.
absl::Status ServerGroup::ConfigureRestarted(size_t index, const ConfigureRequest& request) {
  const std::string port_file = ProcessFile(directory_, NameOf(index), "port");
  while (access(port_file.c_str(), F_OK) != 0) {
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&ending_), kConfigureRetryPeriod)) {
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<ControlClient> client, Connect(index));
  {
    absl::MutexLock lock(&mutex_);
    if (ending_) return absl::OkStatus();
    clients_[index] = client;
  }
  return ConfigureUntilTaken(client, request, absl::InfiniteDuration());
}

absl::Status ServerGroup::ConfigureUntilTaken(const std::shared_ptr<ControlClient>& client,
                                              const ConfigureRequest& request,
                                              absl::Duration stall_timeout) {
  const Stopwatch watch;
  absl::Duration looked_at;
  ServerWork seen = {};
  while (true) {
    const absl::Status status = client->Configure(request, kConfigureTimeout).status();
    // It isn't up yet, or recovers still. Should it die, this goes on with the next in its place.
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    if (watch.Elapsed() - looked_at >= stall_timeout) {
      const auto stats = client->GetStats(kStatsTimeout);
      if (!stats.ok() || WorkOf(*stats) == seen) {
        return absl::DeadlineExceededError(status.message());
      }
      seen = WorkOf(*stats);
      looked_at = watch.Elapsed();
    }
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&ending_), kConfigureRetryPeriod)) {
      return absl::OkStatus();
    }
  }
}

bool ServerGroup::AllRecovered() const {
  absl::MutexLock lock(&mutex_);
  return recovering_ == 0;
}

absl::Status ServerGroup::restart_error() const {
  absl::MutexLock lock(&mutex_);
  return restart_error_;
}

absl::Status ServerGroup::Configure(uint64_t epoch, const std::string& base,
                                    absl::Duration stall_timeout) {
  epoch_ = epoch;
  // Without rows to load a server takes it at once.
  const bool loads = !base.empty();
  return ForEach(
      [&](size_t i) {
        if (!loads) return client(i)->Configure(RequestFor(i, base), kConfigureTimeout).status();
        return ConfigureUntilTaken(client(i), RequestFor(i, base), stall_timeout);
      },
      loads ? absl::InfiniteDuration() : kConfigureTimeout, "servers to take their configuration");
}

absl::StatusOr<Digest> ServerGroup::GetDigest(uint64_t epoch, Step last, absl::Duration timeout) {
  std::vector<Digest> digests(addresses_.size());
  RETURN_IF_ERROR(ForEach(
      [&](size_t i) -> absl::Status {
        ASSIGN_OR_RETURN(const GetDigestReply reply,
                         AwaitDigest(*client(i), job_.name(), epoch, timeout));
        digests[i] = {reply.low(), reply.high()};
        if (reply.complete_through() == last.value()) return absl::OkStatus();
        return absl::DataLossError(
            absl::StrCat("it has lost pushes that it had acknowledged: its rows are those of step ",
                         reply.complete_through(), ", and step ", last.value(), " was trained"));
      },
      timeout, "the servers' digests"));
  Digest sum;
  for (const Digest& digest : digests) sum.Add(digest);
  return sum;
}

absl::StatusOr<std::vector<ServerReport>> ServerGroup::GetStats(absl::Duration timeout) {
  std::vector<ServerReport> reports;
  for (const std::string& address : addresses_) {
    reports.push_back({address, absl::UnknownError("not asked")});
  }
  RETURN_IF_ERROR(ForEach(
      [&](size_t i) {
        reports[i].stats = client(i)->GetStats(timeout);
        return absl::OkStatus();
      },
      timeout, "the servers' stats"));
  return reports;
}

absl::Status ServerGroup::ForEach(const std::function<absl::Status(size_t)>& call,
                                  absl::Duration timeout, absl::string_view what) {
  std::vector<absl::Status> results(addresses_.size());
  {
    const FanOut calls(results.size(), [&](size_t i) { results[i] = call(i); });
    // A little beyond the calls' own deadlines, which say more.
    const absl::Status waited = supervisor_.WaitUntil(
        [&] { return calls.AllReturned(); }, timeout + absl::Seconds(2), kPollPeriod, what);
    if (!waited.ok()) {  // The calls end with their servers.
      {
        absl::MutexLock lock(&mutex_);
        ending_ = true;
      }
      supervisor_.Stop(ProcessRole::kServer, absl::ZeroDuration());
      return waited;
    }
  }
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace thermocline
