#include "deploy/processes/reporting_program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/base/write_all.h"
#include "common/process/child_process.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);

// A file in memory, which children inherit by its number.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view text)
      : fd_(MakeMemoryFile("thermocline")), is_whole_(fd_ >= 0 && WriteAll(fd_, text)) {}
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  bool is_whole() const { return is_whole_; }
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  const int fd_;
  const bool is_whole_;
};

// How a program ended that said nothing of it, with the end of its log.
std::string DescribeEnd(const std::string& program, const ProcessEnd& end, const MemoryFile& log) {
  const std::string text = absl::StrCat(program, " ", end.how);
  // `how` of an exit has the last line.
  return end.exit_code.has_value() ? text : text + QuoteLogTail(log.path());
}

}  // namespace

absl::StatusOr<Json> ReportingProgram::Run(const ProgramCommand& command) {
  const MemoryFile job(command.job), log("");
  int pipe_fds[2];
  if (!job.is_whole() || !log.is_whole() || pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return absl::UnavailableError(
        absl::StrCat("can't start ", command.path, ": ", std::strerror(errno)));
  }
  activity_ = command.activity;
  supervisor_.ReadFrom(pipe_fds[0], [this](absl::string_view data) { Take(data); });
  ChildProcessOptions child;
  child.name = std::filesystem::path(command.path).filename().string();
  child.command = {command.path, "--progress_fd=3"};
  if (!command.job.empty()) child.command.push_back(absl::StrCat("--job=", job.path()));
  child.command.insert(child.command.end(), command.arguments.begin(), command.arguments.end());
  child.log_path = log.path();
  child.inherited_fd = pipe_fds[1];
  const absl::Status started = supervisor_.Start({ProcessRole::kWorker}, child);
  close(pipe_fds[1]);
  RETURN_IF_ERROR(started);
  ASSIGN_OR_RETURN(const ProcessEnd end, AwaitEnd());
  if (end.exit_code == kExitDone && !done_.is_null()) return std::move(done_);
  if (failure_.empty()) return absl::UnavailableError(DescribeEnd(child.name, end, log));
  return end.exit_code == kExitUsage ? absl::InvalidArgumentError(failure_)
                                     : absl::UnavailableError(failure_);
}

// Errors: kCancelled
absl::StatusOr<ProcessEnd> ReportingProgram::AwaitEnd() {
  for (;;) {
    supervisor_.Poll(kPollPeriod);
    if (signals_.stop_requests() > 0) {
      supervisor_.Stop(ProcessRole::kWorker, absl::ZeroDuration());
      return absl::CancelledError(signals_.stop_reason());
    }
    if (!is_read_) continue;  // It ends with its last words.
    std::vector<Supervisor::Ended> ended = supervisor_.TakeEnded();
    if (!ended.empty()) return std::move(ended[0].end);
  }
}

void ReportingProgram::Take(absl::string_view data) {
  is_read_ = data.empty();
  text_.append(data.data(), data.size());
  size_t begin = 0;
  for (size_t end; (end = text_.find('\n', begin)) != text_.npos; begin = end + 1) {
    TakeLine(Json::parse(text_.begin() + static_cast<ptrdiff_t>(begin),
                         text_.begin() + static_cast<ptrdiff_t>(end), nullptr,
                         /*allow_exceptions=*/false));
  }
  text_.erase(0, begin);
}

void ReportingProgram::TakeLine(const Json& line) {
  if (!line.is_object()) return;
  const std::string event = TextAt(line, "event");
  if (event == "done") done_ = line;
  if (event == "failed") failure_ = TextAt(line, "message");
  if (event == "warning") observer_.on_warning(TextAt(line, "text"));
  if (event != "progress") return;
  const double rows = NumberAt(line, "rows").value_or(0);
  const double fraction = NumberAt(line, "fraction").value_or(0);
  const std::string activity = TextAt(line, "activity");
  observer_.on_progress({activity.empty() ? activity_ : activity, static_cast<uint64_t>(rows),
                         fraction > 0 ? static_cast<uint64_t>(rows / fraction) : 0, "rows",
                         NumberAt(line, "seconds").value_or(0),
                         /*is_total_estimated=*/fraction < 1});
}

}  // namespace thermocline
