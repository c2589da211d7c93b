#include "deploy/cli/console.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/process_limits.h"
#include "common/base/timing.h"
#include "common/job/resolved_job.h"
#include "deploy/http/http_feed.h"
#include "deploy/report/progress_bar.h"

namespace thermocline {
namespace {

// At most what a pipe takes at once, with its end.
std::string Line(std::string text) {
  text.resize(std::min<size_t>(text.size(), PIPE_BUF - 1));
  return text + "\n";
}

std::string Plural(uint32_t count, const char* noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// What train.staleness_steps means for a single worker; "" with several workers or without
// staleness.
std::string StalenessOfOneWorker(const Job& job) {
  const uint32_t steps = job.train().staleness_steps();
  if (job.cluster().workers() > 1 || steps == 0) return "";
  if (job.has_cache()) {
    return "train.staleness_steps changes nothing: with a cache the one worker updates the rows "
           "that "
           "it reads itself";
  }
  return absl::StrCat("train.staleness_steps is ", steps,
                      ": rows may miss the one worker's own last ", Plural(steps, "step"),
                      "; 0 trains in sync");
}

// A console that is no terminal may be a file that others read: it gets no token.
std::string PageLine(const HttpFeed& http, bool is_terminal) {
  if (is_terminal) return absl::StrCat("page: ", http.UrlWithToken());
  return absl::StrCat("page: ", http.url(), " (token: ", http.token_file(), ")");
}

// Where a scan of checkpoints is shown.
struct ScanDisplay {
  ScanDisplay(int fd, SignalWatch* signals)
      : out(fd, signals),
        bar([this](absl::string_view text) { return out.TryWrite(text); }, out.is_terminal()) {}

  void Show(uint64_t done, uint64_t total) {
    const absl::Duration now = watch.Elapsed();
    if (done <= last_done) began = now;  // another checkpoint's files
    last_done = done;
    Progress progress;
    progress.phase = PhaseProgress{"reading the checkpoint", done, total, "bytes",
                                   absl::ToDoubleSeconds(now - began)};
    bar.Update(progress, now);
  }

  Console out;
  ProgressBar bar;
  const Stopwatch watch;
  absl::Duration began = absl::ZeroDuration();
  uint64_t last_done = 0;
};

}  // namespace

bool Console::is_terminal() const { return isatty(fd_) != 0; }

bool Console::Write(absl::string_view text) {
  const int requests = signals_.stop_requests();
  while (!text.empty()) {
    pollfd fds[] = {{fd_, POLLOUT, 0}, {signals_.fd(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return false;
    if (fds[1].revents != 0) signals_.Drain();
    if (signals_.stop_requests() > requests) return false;
    if (fds[0].revents == 0) continue;
    const ssize_t written = write(fd_, text.data(), text.substr(0, PIPE_BUF).size());
    if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool Console::TryWrite(absl::string_view text) {
  CHECK_LE(text.size(), size_t{PIPE_BUF});
  pollfd ready = {fd_, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
  return write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

ByteScan ScanOnConsole(int fd, SignalWatch* signals) {
  ByteScan scan;
  const auto display = std::make_shared<ScanDisplay>(fd, signals);
  scan.on_progress = [display, signals](uint64_t done, uint64_t total) {
    display->Show(done, total);
    signals->Drain();
    return signals->stop_requests() == 0 ? absl::OkStatus()
                                         : absl::CancelledError(signals->stop_reason());
  };
  return scan;
}

absl::StatusOr<nlohmann::ordered_json> RunProgramOnConsole(const ProgramCommand& command,
                                                           SignalWatch* signals, int fd) {
  Console out(fd, signals);
  ProgressBar bar([&out](absl::string_view text) { return out.TryWrite(text); }, out.is_terminal());
  const Stopwatch watch;
  ReportingProgram::Observer observer;
  observer.on_progress = [&](const PhaseProgress& phase) {
    Progress progress;
    progress.phase = phase;
    bar.Update(progress, watch.Elapsed());
  };
  observer.on_warning = [&](absl::string_view text) {
    bar.Clear();
    out.TryWrite(Line(absl::StrCat("WARNING: ", text)));
  };
  return ReportingProgram(signals, observer).Run(command);
}

absl::StatusOr<JobResult> RunJobOnConsole(const Job& job, const JobOptions& options,
                                          const RunDirectory& directory, SignalWatch* signals,
                                          int fd) {
  // Lines that a slow reader has no room for are dropped: the job never waits for the reader.
  Console out(fd, signals);
  const bool is_embedded = HasEmbeddedServer(job.cluster());
  // thermocline.local() finds the run directory in this line.
  out.TryWrite(
      Line(absl::StrCat("job ", job.name(), ": ",
                        is_embedded ? "1 worker, which holds the rows itself"
                                    : absl::StrCat(Plural(job.cluster().servers(), "server"), ", ",
                                                   Plural(job.cluster().workers(), "worker")),
                        ", run directory ", directory.path())));
  if (options.http != nullptr) {
    out.TryWrite(Line(PageLine(*options.http, out.is_terminal())));
  }
  if (const std::string staleness = StalenessOfOneWorker(job); !staleness.empty()) {
    out.TryWrite(Line(staleness));
  }
  ProgressBar bar([&out](absl::string_view text) { return out.TryWrite(text); }, out.is_terminal());
  const Stopwatch watch;
  JobObserver observer;
  bool were_up = false;
  observer.on_servers_up = [&](const std::vector<std::string>& addresses) {
    const std::string when =
        were_up ? " again" : absl::StrFormat(" in %.1f s", absl::ToDoubleSeconds(watch.Elapsed()));
    were_up = true;
    out.TryWrite(Line(absl::StrCat(is_embedded ? "embedded server up" : "servers up", when, ": ",
                                   absl::StrJoin(addresses, ", "))));
  };
  observer.on_progress = [&](const Progress& progress) { bar.Update(progress, watch.Elapsed()); };
  observer.on_notice = [&](const std::string& text) {
    bar.Clear();
    out.TryWrite(Line(text));
  };
  observer.on_training_done = [&] { bar.Clear(); };
  return RunJob(job, options, directory, observer, signals);
}

int Complain(absl::string_view message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "thermocline: %.*s\n", static_cast<int>(message.size()), message.data());
  return exit_code;
}

void ReportFailure(absl::string_view message, SignalWatch* signals) {
  Console(STDERR_FILENO, signals).Write(absl::StrCat("thermocline: ", message, "\n"));
}

int ReportFailure(const absl::Status& why, SignalWatch* signals) {
  ReportFailure(why.message(), signals);
  return absl::IsUnavailable(why) || absl::IsCancelled(why) ? kExitFailed : kExitUsage;
}

}  // namespace thermocline
