// thermocline inspect: what is in a log, and a first job file for it.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "common/job/job_loader.h"
#include "deploy/cli/command_line.h"
#include "deploy/cli/console.h"
#include "deploy/inspect/inspection.h"
#include "deploy/inspect/job_draft.h"
#include "deploy/inspect/suggestions.h"
#include "deploy/processes/child_process.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<InspectionRequest> RequestOf(const InspectFlags& flags) {
  InspectionRequest request;
  request.paths = flags.paths;
  request.max_rows = flags.max_rows;
  request.columns = flags.columns;
  request.counted = flags.positive;
  request.separator = flags.separator == "\\t" ? "\t" : flags.separator;
  if (request.separator.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--separator '", flags.separator, "' is not one character"));
  }
  if (!flags.positive.empty() && flags.label.empty()) {
    return absl::InvalidArgumentError("--positive needs --label, the column that it is about");
  }
  return request;
}

absl::Status AlreadyExists(const std::string& path) {
  return absl::AlreadyExistsError(
      absl::StrCat("--job '", path, "' exists; inspect overwrites no file"));
}

// Writes a file that must not exist.
absl::Status WriteNew(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0 && errno == EEXIST) return AlreadyExists(path);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("can't write '", path, "': ", std::strerror(errno)));
  }
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  const bool is_whole = close(fd) == 0 && done == text.size();
  if (is_whole) return absl::OkStatus();
  const std::string why = std::strerror(errno);
  unlink(path.c_str());
  return absl::UnavailableError(absl::StrCat("can't write '", path, "': ", why));
}

// Reads the log, with a progress bar on `fd`.
absl::StatusOr<Json> Inspect(const InspectFlags& flags, int fd, SignalWatch* signals) {
  ASSIGN_OR_RETURN(const InspectionRequest request, RequestOf(flags));
  ASSIGN_OR_RETURN(const std::string program, FindProgram("thermocline-inspect", flags.bin_dir));
  ASSIGN_OR_RETURN(Json found,
                   RunProgramOnConsole(InspectionCommand(program, request), signals, fd));
  Json figures = std::move(found["figures"]);
  LabelChoice choice;
  choice.column = flags.label;
  if (!flags.positive.empty()) choice.positive = absl::StrSplit(flags.positive, ',');
  RETURN_IF_ERROR(AddSuggestions(choice, &figures));
  for (const std::string& path : flags.paths) figures["paths"].push_back(AbsolutePath(path));
  return figures;
}

}  // namespace

int RunInspect(const InspectFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto fail = [&](const absl::Status& why) {
    ReportFailure(why.message(), &signals);
    return absl::IsUnavailable(why) || absl::IsCancelled(why) ? kExitFailed : kExitUsage;
  };
  std::error_code error;
  if (!flags.job.empty() && std::filesystem::exists(flags.job, error)) {
    return fail(AlreadyExists(flags.job));  // Known before the log is read.
  }
  const absl::StatusOr<Json> figures =
      Inspect(flags, flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals);
  if (!figures.ok()) return fail(figures.status());
  const int requests = signals.stop_requests();
  Console out(STDOUT_FILENO, &signals);
  out.Write(flags.json ? figures->dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                       : RenderInspection(*figures));
  if (!flags.job.empty()) {
    absl::StatusOr<std::string> text =
        DraftJob(*figures, (*figures)["paths"].get<std::vector<std::string>>(), flags.job);
    // What the job says of columns, LoadJob understands, or `train` would refuse it.
    if (text.ok()) {
      const auto job = ParseJob(*text, flags.job, {});
      if (!job.ok()) text = job.status();
    }
    const absl::Status written = text.ok() ? WriteNew(flags.job, *text) : text.status();
    if (!written.ok()) return fail(written);
    Console(flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals)
        .Write(
            absl::StrCat("job file: ", flags.job, "; next: thermocline train ", flags.job, "\n"));
  }
  return signals.stop_requests() > requests ? kExitFailed : kExitDone;
}

}  // namespace thermocline
