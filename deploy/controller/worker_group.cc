#include "deploy/controller/worker_group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "deploy/controller/fan_out.h"
#include "deploy/controller/startup.h"
#include "deploy/controller/summary.h"

namespace thermocline {
namespace {

// Beyond the file descriptors that a child gets by number.
constexpr int kLowestFd = 10;

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got = pread(fd, buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}
constexpr absl::Duration kStatsPollPeriod = absl::Milliseconds(5);

}  // namespace

std::string WorkerGroup::LogFile(uint32_t rank) const {
  return ProcessFile(directory_, NameOf(rank), "log");
}

WorkerGroup::~WorkerGroup() {
  for (const int fd : result_fds_) close(fd);
}

// The next rank's. The worker opens it by its number, which it inherits: not closed by exec.
absl::Status WorkerGroup::MakeResultFile() {
  const int low_fd = memfd_create("worker result", MFD_CLOEXEC);
  const int fd = low_fd < 0 ? -1 : fcntl(low_fd, F_DUPFD, kLowestFd);
  const int error = errno;
  if (low_fd >= 0) close(low_fd);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("no memory for a worker's result: ", std::strerror(error)));
  }
  result_fds_.push_back(fd);
  return absl::OkStatus();
}

std::vector<std::string> WorkerGroup::Command(const WorkerGroupOptions& options,
                                              uint32_t rank) const {
  std::vector<std::string> command = {
      options.program,
      absl::StrCat("--job=", directory_.File("job.textproto")),
      absl::StrCat("--rank=", rank),
      absl::StrCat("--local_rank=", rank),  // They are all on this host.
      absl::StrCat("--epoch=", options.epoch),
      absl::StrCat("--servers=", absl::StrJoin(options.servers, ",")),
      absl::StrCat("--port_file=", ProcessFile(directory_, NameOf(rank), "port")),
      absl::StrCat("--result_file=/dev/fd/", result_fds_[rank]),
  };
  if (options.first_step > Step(0)) {
    command.push_back(absl::StrCat("--start_step=", options.first_step.value()));
  }
  if (options.eval_only) command.push_back("--eval_only");
  if (rank == 0) command.push_back("--progress_fd=3");
  return command;
}

absl::Status WorkerGroup::StartWorker(const WorkerGroupOptions& options, uint32_t rank,
                                      int progress_fd) {
  // That of an earlier epoch would be taken for this one's.
  RETURN_IF_ERROR(RemoveProcessFile(directory_, NameOf(rank), "port"));
  ChildProcessOptions process;
  process.name = NameOf(rank);
  process.command = Command(options, rank);
  process.log_path = LogFile(rank);
  process.inherited_fd = progress_fd;
  return supervisor_.Start(ProcessRole::kWorker, process);
}

absl::Status WorkerGroup::Start(const WorkerGroupOptions& options,
                                std::function<void(absl::string_view data)> on_metrics) {
  for (uint32_t rank = 0; rank < job_.cluster().workers(); ++rank) {
    RETURN_IF_ERROR(MakeResultFile());
  }
  int progress_pipe[2];
  if (pipe2(progress_pipe, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("can't make a pipe: ", std::strerror(errno)));
  }
  supervisor_.ReadFrom(progress_pipe[0],
                       [this, take = std::move(on_metrics)](absl::string_view data) {
                         if (data.empty()) {
                           metrics_ended_ = true;
                         } else {
                           take(data);
                         }
                       });
  absl::Status started = StartWorker(options, 0, progress_pipe[1]);
  close(progress_pipe[1]);
  for (uint32_t rank = 1; started.ok() && rank < job_.cluster().workers(); ++rank) {
    started = StartWorker(options, rank, -1);
  }
  return started;
}

absl::Status WorkerGroup::WaitUntilUp() {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < job_.cluster().workers(); ++rank) names.push_back(NameOf(rank));
  ASSIGN_OR_RETURN(addresses_, WaitForAddresses(names, directory_,
                                                absl::Seconds(job_.cluster().startup_timeout_s()),
                                                &supervisor_));
  return absl::OkStatus();
}

bool WorkerGroup::AllEnded() { return supervisor_.AllWorkersEnded() && metrics_ended_; }

std::vector<uint32_t> WorkerGroup::RunningRanks() {
  std::vector<uint32_t> running;
  for (uint32_t rank = 0; rank < job_.cluster().workers(); ++rank) {
    if (supervisor_.IsRunning(NameOf(rank))) running.push_back(rank);
  }
  return running;
}

absl::StatusOr<std::vector<WorkerReport>> WorkerGroup::GetStats(absl::Duration timeout) {
  const Tls& tls = job_.cluster().tls();
  std::vector<WorkerReport> reports;
  std::vector<ControlClient*> asked;
  clients_.resize(addresses_.size());
  for (const uint32_t rank : RunningRanks()) {
    if (rank >= clients_.size() || addresses_[rank].empty()) continue;
    if (clients_[rank] == nullptr) {
      ASSIGN_OR_RETURN(clients_[rank],
                       ControlClient::Create(addresses_[rank],
                                             {tls.certificate(), tls.private_key(), tls.ca()}));
    }
    asked.push_back(clients_[rank].get());
    reports.push_back({addresses_[rank], absl::UnknownError("not asked")});
  }
  {
    const FanOut calls(asked.size(),
                       [&](size_t i) { reports[i].stats = asked[i]->GetWorkerStats(timeout); });
    // A little beyond the calls' own deadlines.
    RETURN_IF_ERROR(supervisor_.WaitUntil([&] { return calls.AllReturned(); },
                                          timeout + absl::Seconds(2), kStatsPollPeriod,
                                          "the workers' stats"));
  }
  return reports;
}

absl::StatusOr<std::vector<nlohmann::ordered_json>> WorkerGroup::ReadResults() const {
  std::vector<nlohmann::ordered_json> results;
  for (uint32_t rank = 0; rank < job_.cluster().workers(); ++rank) {
    ASSIGN_OR_RETURN(
        nlohmann::ordered_json result,
        ParseWorkerResult(ReadAll(result_fds_[rank]), directory_.File(ResultName(rank))));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace thermocline
