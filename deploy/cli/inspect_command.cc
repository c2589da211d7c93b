// thermocline inspect: what is in a log, and a first job file for it.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/write_all.h"
#include "common/disk/file_list.h"
#include "common/job/job_loader.h"
#include "common/model/presets.h"
#include "common/process/child_process.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/inspect/inspection.h"
#include "deploy/inspect/job_draft.h"
#include "deploy/inspect/suggestions.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  std::vector<std::string> paths;
  std::string job;  // the file to write
  std::string model = "dlrm";
  std::string label;     // separated by commas
  std::string positive;  // separated by commas
  std::string columns;   // separated by commas
  std::string separator;
  int64_t max_rows = 0;  // 0: all
  bool json = false;
  std::string bin_dir;
};

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
  int error = WriteAll(fd, text) ? 0 : errno;
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0) return absl::OkStatus();
  const std::string why = std::strerror(error);
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
  choice.columns = flags.label;
  if (!flags.positive.empty()) choice.positive = absl::StrSplit(flags.positive, ',');
  RETURN_IF_ERROR(AddSuggestions(choice, &figures));
  for (const std::string& path : flags.paths) figures["paths"].push_back(AbsolutePath(path));
  return figures;
}

int RunInspect(const InspectFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  std::error_code error;
  if (!flags.job.empty() && std::filesystem::exists(flags.job, error)) {
    return ReportFailure(AlreadyExists(flags.job), &signals);  // Known before the log is read.
  }
  const absl::StatusOr<Json> figures =
      Inspect(flags, flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals);
  if (!figures.ok()) return ReportFailure(figures.status(), &signals);
  const int requests = signals.stop_requests();
  Console out(STDOUT_FILENO, &signals);
  out.Write(flags.json ? figures->dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                       : RenderInspection(*figures));
  if (!flags.job.empty()) {
    absl::StatusOr<std::string> text = DraftJob(
        *figures, (*figures)["paths"].get<std::vector<std::string>>(), flags.job, flags.model);
    // What the job says of columns, LoadJob understands, or `train` would refuse it.
    if (text.ok()) {
      const auto job = ParseJob(*text, flags.job, {});
      if (!job.ok()) text = job.status();
    }
    const absl::Status written = text.ok() ? WriteNew(flags.job, *text) : text.status();
    if (!written.ok()) return ReportFailure(written, &signals);
    Console(flags.json ? STDERR_FILENO : STDOUT_FILENO, &signals)
        .Write(
            absl::StrCat("job file: ", flags.job, "; next: thermocline train ", flags.job, "\n"));
  }
  return signals.stop_requests() > requests ? kExitFailed : kExitDone;
}

}  // namespace

void AddInspect(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = AddCommand(
      app, "inspect", "says what is in a log, and drafts a first job file for it",
      R"(Reads every row once, in bounded memory, and guesses how the files are written: separator,
header, quotes; what type each column has, and what it is good for: label, feature, time. Prints
distinct values (exact up to 131,072 a column; beyond that an estimate, with two standard
deviations), missing values, skew, the range and moments of numbers, the rate of the label, and
what the tables would take. FILE is a file of text (plain, .gz or .zst) or Parquet, a folder, a
pattern, each here or as s3://BUCKET/KEY (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ... say where), or a
folder of npy files; several are read as one.

--job writes a job file that trains as it is, with comments on what was guessed. It overwrites
nothing. A label that is wrongly guessed is named with --label, as are several, which mmoe and ple
learn as a task each, and --model names the model.

examples:
  thermocline inspect train.csv.gz
  thermocline inspect 'logs/day-*.tsv' --label buy --job first.textproto
  thermocline inspect train.csv.gz --job deepfm.textproto --model deepfm
  thermocline inspect events.csv --columns user,item,event,time --label event --positive cart,buy
  thermocline inspect train.csv --json > figures.json)");
  AddValue(command, "FILE", &flags->paths, "PATH", "the log")->required();
  CLI::Option* const job =
      AddValue(command, "--job", &flags->job, "FILE", "writes a job file for the log");
  AddValue(command, "--model", &flags->model, "NAME",
           absl::StrCat("the model of that job: ", absl::StrJoin(PresetNames(), ", "),
                        "; default: dlrm"))
      ->check(CLI::IsMember(PresetNames()))
      ->needs(job);
  AddValue(command, "--label", &flags->label, "NAME,NAME",
           "the column of the label, or of several");
  AddValue(command, "--positive", &flags->positive, "TEXT,TEXT",
           "the labels' texts that are a 1; all others are a 0");
  AddValue(command, "--columns", &flags->columns, "NAME,NAME",
           "the columns' names; the files have no header then, or are npy (those of ids)");
  AddValue(command, "--separator", &flags->separator, "C",
           "the character between columns; \\t is a tab");
  AddValue(command, "--rows", &flags->max_rows, "N", "reads the first N rows alone")
      ->transform(WholeNumber(1, int64_t{1} << 40));
  command->add_flag("--json", flags->json,
                    "prints the figures as JSON; progress goes to standard error");
  AddValue(command, "--bin-dir", &flags->bin_dir, "DIR", "the folder of thermocline-inspect");
  OnCommand(command, action, RunInspect, flags);
}

}  // namespace thermocline
