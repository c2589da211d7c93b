#include "deploy/runner/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/base/stopwatch.h"
#include "deploy/runner/log_tail.h"

namespace thermocline {
namespace {

// After the first failure: time for others to end as well, so that the report names the cause (a
// server) beside the consequence (the worker that lost it).
constexpr absl::Duration kFollowUp = absl::Milliseconds(300);
constexpr int kTailLines = 15;
constexpr size_t kReadBytes = 64 << 10;

constexpr size_t kMostLastWords = 300;

}  // namespace

std::string HowItEnded(const ChildProcess& ended) {
  if (ended.exit_code().value_or(0) == 0) return ended.DescribeEnd();
  const std::vector<std::string> tail = LogTail(ended.log_path(), 1, ended.log_begin());
  if (tail.empty()) return ended.DescribeEnd();
  // Lines begin with the time (common/net/log.h).
  absl::string_view words = tail[0];
  absl::Time time;
  const size_t space = words.find(' ');
  if (space != words.npos &&
      absl::ParseTime(absl::RFC3339_full, words.substr(0, space), &time, nullptr)) {
    words.remove_prefix(space + 1);
  }
  return absl::StrCat(ended.DescribeEnd(), " (", words.substr(0, kMostLastWords), ")");
}

absl::Status Supervisor::Start(ProcessRole role, const ChildProcessOptions& options) {
  ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(options));
  members_.push_back({role, std::move(process)});
  return absl::OkStatus();
}

void Supervisor::StartLater(ProcessRole role, const ChildProcessOptions& options,
                            absl::Duration delay) {
  later_.push_back({role, options, watch_.Elapsed() + delay});
}

absl::Status Supervisor::StartWhatIsDue() {
  const absl::Duration now = watch_.Elapsed();
  const auto middle = std::stable_partition(later_.begin(), later_.end(),
                                            [now](const Later& later) { return later.due > now; });
  const std::vector<Later> due(middle, later_.end());
  later_.erase(middle, later_.end());
  for (const Later& each : due) {
    const absl::Status started = Start(each.role, each.options);
    if (started.ok()) continue;
    // Then nothing has taken the place of the one that ended.
    const auto ended = std::find_if(
        members_.rbegin(), members_.rend(),
        [&each](const Member& member) { return member.process.name() == each.options.name; });
    if (ended != members_.rend()) ended->replaced = false;
    return started;
  }
  return absl::OkStatus();
}

void Supervisor::ReadFrom(int fd, std::function<void(absl::string_view)> reader) {
  readers_.push_back({fd, std::move(reader)});
}

absl::Status Supervisor::WaitUntil(const std::function<bool()>& done, absl::Duration timeout,
                                   absl::Duration period, absl::string_view what) {
  const Stopwatch watch;
  while (true) {
    if (signals_.stop_requests() > 0) {
      return absl::CancelledError(absl::StrCat("stopped by signal ", signals_.last_stop_signal(),
                                               " (", strsignal(signals_.last_stop_signal()), ")"));
    }
    Observe();
    ReplaceEndedServers();
    if (std::any_of(members_.begin(), members_.end(), IsFailure)) {
      const Stopwatch since_failure;
      while (since_failure.Elapsed() < kFollowUp) Poll(kFollowUp - since_failure.Elapsed());
      Observe();
      return FailureReport();
    }
    RETURN_IF_ERROR(StartWhatIsDue());
    if (done()) return absl::OkStatus();
    const absl::Duration left = timeout - watch.Elapsed();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("timed out: ", what));
    }
    Poll(std::min(period, left));
  }
}

std::vector<ProcessFailure> Supervisor::Failures() const {
  std::vector<ProcessFailure> failures;
  for (const ProcessRole role : {ProcessRole::kServer, ProcessRole::kWorker}) {
    for (const Member& member : members_) {
      if (member.role != role || member.stopped || !IsFailure(member)) continue;
      failures.push_back(
          {role, member.process.name(), HowItEnded(member.process), member.process.exit_code()});
    }
  }
  return failures;
}

bool Supervisor::AllWorkersEnded() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.role != ProcessRole::kWorker || member.process.ended();
  });
}

bool Supervisor::IsRunning(absl::string_view name) const {
  return std::any_of(members_.begin(), members_.end(), [name](const Member& member) {
    return member.process.name() == name && !member.process.ended();
  });
}

void Supervisor::Stop(ProcessRole role, absl::Duration grace) {
  const auto all_ended = [&] {
    Observe();
    return std::all_of(members_.begin(), members_.end(), [role](const Member& member) {
      return member.role != role || member.process.ended();
    });
  };
  const auto signal_all = [&](int number) {
    Observe();
    for (Member& member : members_) {
      if (member.role != role || member.process.ended()) continue;
      member.stopped = true;
      member.process.Signal(number);
    }
  };
  later_.erase(std::remove_if(later_.begin(), later_.end(),
                              [role](const Later& later) { return later.role == role; }),
               later_.end());
  const int requests = signals_.stop_requests();
  const Stopwatch watch;
  signal_all(SIGTERM);
  while (!all_ended() && watch.Elapsed() < grace && signals_.stop_requests() == requests) {
    Poll(std::min(absl::Milliseconds(50), grace - watch.Elapsed()));
  }
  signal_all(SIGKILL);
  while (!all_ended()) Poll(absl::Milliseconds(10));  // SIGKILL can't be refused
}

void Supervisor::Poll(absl::Duration timeout) {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const Reader& reader : readers_) fds.push_back({reader.fd, POLLIN, 0});
  for (const Later& later : later_) timeout = std::min(timeout, later.due - watch_.Elapsed());
  const int64_t timeout_ms = std::max<int64_t>(absl::ToInt64Milliseconds(timeout), 1);
  if (poll(fds.data(), fds.size(), static_cast<int>(std::min<int64_t>(timeout_ms, 60000))) <= 0) {
    return;
  }
  signals_.Drain();
  for (size_t i = 1; i < fds.size(); ++i) {
    if (fds[i].revents != 0) Consume(&readers_[i - 1]);
  }
  readers_.erase(std::remove_if(readers_.begin(), readers_.end(),
                                [](const Reader& reader) { return reader.fd < 0; }),
                 readers_.end());
}

void Supervisor::Consume(Reader* reader) {
  std::string data(kReadBytes, '\0');
  const ssize_t got = read(reader->fd, data.data(), data.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got > 0) {
    reader->callback(absl::string_view(data.data(), static_cast<size_t>(got)));
    return;
  }
  close(reader->fd);
  reader->fd = -1;
  reader->callback("");
}

void Supervisor::Observe() {
  for (Member& member : members_) member.process.HasEnded();
}

void Supervisor::ReplaceEndedServers() {
  if (!replacer_) return;
  const size_t count = members_.size();  // The replacer adds more.
  for (size_t i = 0; i < count; ++i) {
    Member& member = members_[i];
    if (member.role != ProcessRole::kServer || member.replaced) continue;
    if (member.process.ended()) member.replaced = replacer_(member.process);
  }
}

bool Supervisor::IsFailure(const Member& member) {
  if (!member.process.ended() || member.replaced) return false;
  return member.role == ProcessRole::kServer || !member.process.Succeeded();
}

absl::Status Supervisor::FailureReport() const {
  std::vector<std::string> reports;
  for (const ProcessRole role : {ProcessRole::kServer, ProcessRole::kWorker}) {
    for (const Member& member : members_) {
      if (member.role != role || !IsFailure(member)) continue;
      const ChildProcess& process = member.process;
      std::string report = absl::StrCat(process.name(), " ", process.DescribeEnd());
      const std::vector<std::string> tail =
          LogTail(process.log_path(), kTailLines, process.log_begin());
      if (tail.empty()) {
        absl::StrAppend(&report, "; it wrote nothing to its log ", process.log_path());
      } else {
        absl::StrAppend(&report, "; last lines of ", process.log_path(), ":");
        for (const std::string& line : tail) absl::StrAppend(&report, "\n  | ", line);
      }
      reports.push_back(std::move(report));
    }
  }
  std::string all;
  for (const std::string& report : reports) {
    absl::StrAppend(&all, all.empty() ? "" : "\n", report);
  }
  return absl::AbortedError(all);
}

}  // namespace thermocline
