#include "deploy/inspect/inspection.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "deploy/runner/child_process.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// Closes a file descriptor with its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

std::vector<std::string> CommandOf(const std::string& program, const InspectionRequest& request) {
  std::vector<std::string> command = {program, "--report_fd=3",
                                      absl::StrCat("--rows=", request.max_rows)};
  if (!request.separator.empty()) command.push_back("--separator=" + request.separator);
  if (!request.columns.empty()) command.push_back("--columns=" + request.columns);
  command.push_back("--");
  command.insert(command.end(), request.paths.begin(), request.paths.end());
  return command;
}

// What the program says, line by line.
class Report {
 public:
  using OnProgress = std::function<void(uint64_t rows, double share)>;
  explicit Report(const OnProgress& on_progress) : on_progress_(on_progress) {}

  void Add(absl::string_view text) {
    rest_.append(text.data(), text.size());
    for (size_t end; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1)) {
      TakeLine(Json::parse(rest_.substr(0, end), nullptr, false));
    }
  }
  const Json& figures() const { return figures_; }
  const std::string& error() const { return error_; }

 private:
  void TakeLine(const Json& line) {
    if (!line.is_object()) return;
    if (line.contains("figures")) figures_ = line["figures"];
    if (line.contains("error")) error_ = line["error"].get<std::string>();
    if (line.contains("share")) {
      on_progress_(line["rows"].get<uint64_t>(), line["share"].get<double>());
    }
  }

  const OnProgress& on_progress_;
  std::string rest_;
  Json figures_;
  std::string error_;
};

// Reads all that the program writes, up to its end. Errors: kCancelled
absl::Status ReadReport(int fd, SignalWatch* signals, Report* report) {
  const int requests = signals->stop_requests();
  std::vector<char> buffer(64 << 10);
  while (true) {
    pollfd fds[] = {{fd, POLLIN, 0}, {signals->fd(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("poll: ", std::strerror(errno)));
    }
    if (fds[1].revents != 0) signals->Drain();
    if (signals->stop_requests() > requests) return absl::CancelledError(signals->stop_reason());
    if (fds[0].revents == 0) continue;
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n == 0) return absl::OkStatus();
    if (n > 0) report->Add({buffer.data(), static_cast<size_t>(n)});
  }
}

}  // namespace

absl::StatusOr<Json> InspectLog(
    const std::string& program, const InspectionRequest& request, SignalWatch* signals,
    const std::function<void(uint64_t rows, double share)>& on_progress) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("can't make a pipe: ", std::strerror(errno)));
  }
  const Descriptor from(ends[0]);
  Descriptor to(ends[1]);
  ChildProcessOptions options;
  options.name = "the inspection";
  options.command = CommandOf(program, request);
  options.log_path = "/dev/null";
  options.inherited_fd = to.get();
  ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(options));
  to.Close();
  Report report(on_progress);
  RETURN_IF_ERROR(ReadReport(from.get(), signals, &report));
  // It has closed its end, and so is about to end.
  while (!child.HasEnded()) absl::SleepFor(absl::Milliseconds(1));
  if (report.figures().is_object()) return report.figures();
  if (report.error().empty()) {
    return absl::UnavailableError(absl::StrCat("the inspection ", child.DescribeEnd()));
  }
  return child.exit_code() == kExitUsage ? absl::InvalidArgumentError(report.error())
                                         : absl::UnavailableError(report.error());
}

}  // namespace thermocline
