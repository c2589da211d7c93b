// thermocline predict: writes a score for each row of a file. thermocline-predict computes them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/timing.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"
#include "deploy/checkpoints/checkpoint_match.h"
#include "deploy/cli/checkpoint_path.h"
#include "deploy/cli/command_line.h"
#include "deploy/cli/console.h"
#include "deploy/cli/job_files.h"
#include "deploy/cli/run_setup.h"
#include "deploy/console/format.h"
#include "deploy/console/progress_bar.h"
#include "deploy/runner/child_process.h"
#include "deploy/runner/summary.h"
#include "deploy/runner/supervisor.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);
// The child has its own descriptors below, and the pipe of its progress at 3.
constexpr int kLowestFd = 10;

std::string TextAt(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

struct Prediction {
  Job job;
  CheckpointPath checkpoint;
  uint64_t generation = 0;  // That made it.
  uint64_t memory_bytes = 0;
  std::string program;
  std::vector<std::string> notices;
};

absl::Status CheckOut(const PredictFlags& flags) {
  if (!absl::EndsWith(flags.out, ".csv") && !absl::EndsWith(flags.out, ".npy") &&
      !absl::EndsWith(flags.out, ".parquet")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out ", flags.out,
                     " ends in no format that scores are written in: .csv, .npy, .parquet"));
  }
  std::error_code error;
  if (!std::filesystem::exists(flags.out, error)) return absl::OkStatus();
  if (flags.force && !std::filesystem::is_directory(flags.out, error)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("--out ", flags.out, " is there already",
                                               flags.force ? "" : "; --force replaces it"));
}

// The job of the checkpoint, or of --job, whose held-out rows are all those of --data.
absl::StatusOr<Job> JobToPredict(const PredictFlags& flags, const std::string& checkpoint,
                                 const CheckpointManifest& manifest) {
  std::vector<std::string> overrides = flags.set;
  overrides.push_back(absl::StrCat("data.path=", flags.data));
  overrides.insert(overrides.end(), {"data.test_path=\"\"", "data.test_share=0"});
  if (flags.max_bad_lines.has_value()) {
    overrides.push_back(absl::StrCat("data.max_bad_lines=", *flags.max_bad_lines));
  }
  // What a file that is only scored need not have, and what its scores don't depend on.
  std::vector<std::string> cleared = {"evaluate",    "data.test",  "data.split",
                                      "data.weight", "data.group", "checkpoint",
                                      "cache",       "init_from",  "init"};
  absl::StatusOr<Job> job;
  if (flags.job.empty()) {
    // Of the machine that trained.
    cleared.insert(cleared.end(), {"cluster.worker_threads", "data.parser_threads"});
    job = ParseJob(JobToText(manifest.job()), absl::StrCat("the job of checkpoint ", checkpoint),
                   overrides, cleared);
  } else {
    job = LoadJob(flags.job, overrides, cleared);
  }
  RETURN_IF_ERROR(job.status());
  MakePathsAbsolute(&*job);
  RETURN_IF_ERROR(CheckJobFiles(*job));
  ScoreAllRows(job->mutable_data());
  return job;
}

absl::StatusOr<Prediction> SetUpPrediction(const PredictFlags& flags) {
  RETURN_IF_ERROR(CheckOut(flags));
  Prediction prediction;
  const absl::StatusOr<uint64_t> memory = ParseByteSize(flags.memory);
  if (!memory.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory ", flags.memory, ": ", memory.status().message()));
  }
  prediction.memory_bytes = *memory;
  ASSIGN_OR_RETURN(prediction.checkpoint,
                   ResolveCheckpointPath(flags.checkpoint, nullptr, &prediction.notices));
  PosixDisk disk;
  const CheckpointStore store(&disk, prediction.checkpoint.directory);
  ASSIGN_OR_RETURN(
      const ListedCheckpoint base,
      LoadWholeCheckpoint(store, prediction.checkpoint.name, nullptr, &prediction.notices));
  prediction.checkpoint.name = base.name;
  prediction.generation = base.manifest.generation();
  ASSIGN_OR_RETURN(prediction.job, JobToPredict(flags, base.name, base.manifest));
  RETURN_IF_ERROR(CheckModel(prediction.job, base.manifest));
  const absl::StatusOr<std::string> program = FindProgram("thermocline-predict", flags.bin_dir);
  if (!program.ok()) {
    return absl::NotFoundError(
        absl::StrCat(program.status().message(), " (--bin-dir names its folder)"));
  }
  prediction.program = *program;
  return prediction;
}

// A file in memory, which children inherit by its number.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view text) {
    const int low_fd = memfd_create("thermocline predict", MFD_CLOEXEC);
    fd_ = low_fd < 0 ? -1 : fcntl(low_fd, F_DUPFD, kLowestFd);
    if (low_fd >= 0) close(low_fd);
    while (fd_ >= 0 && !text.empty()) {
      const ssize_t written = write(fd_, text.data(), text.size());
      if (written <= 0) break;
      text.remove_prefix(static_cast<size_t>(written));
    }
    is_whole_ = fd_ >= 0 && text.empty();
  }
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  bool is_whole() const { return is_whole_; }
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  int fd_;
  bool is_whole_ = false;
};

// thermocline-predict while it runs: what it says, and how it ends.
class PredictRun {
 public:
  explicit PredictRun(SignalWatch* signals)
      : signals_(*signals),
        supervisor_(signals),
        out_(STDOUT_FILENO, signals),
        bar_([this](absl::string_view text) { return out_.TryWrite(text); }, out_.is_terminal()) {}

  // What it says at its end. Errors: kCancelled (Ctrl-C), kAborted (it failed: why)
  absl::StatusOr<Json> Run(const Prediction& prediction, const PredictFlags& flags) {
    const MemoryFile job(JobToText(prediction.job)), log("");
    int pipe_fds[2];
    if (!job.is_whole() || !log.is_whole() || pipe2(pipe_fds, O_CLOEXEC) != 0) {
      return absl::UnavailableError(absl::StrCat("can't pass the job on: ", std::strerror(errno)));
    }
    supervisor_.ReadFrom(pipe_fds[0], [this](absl::string_view data) { Take(data); });
    ChildProcessOptions child;
    child.name = "thermocline-predict";
    child.command = {
        prediction.program,
        absl::StrCat("--job=", job.path()),
        absl::StrCat("--checkpoint_directory=", prediction.checkpoint.directory),
        absl::StrCat("--checkpoint=", prediction.checkpoint.name),
        absl::StrCat("--checkpoint_generation=", prediction.generation),
        absl::StrCat("--out=", flags.out),
        absl::StrCat("--columns=", absl::StrJoin(flags.columns, ",")),
        absl::StrCat("--memory_bytes=", prediction.memory_bytes),
        absl::StrCat("--logits=", flags.logits ? "true" : "false"),
        "--progress_fd=3",
    };
    child.log_path = log.path();
    child.inherited_fd = pipe_fds[1];
    const absl::Status started = supervisor_.Start({ProcessRole::kWorker}, child);
    close(pipe_fds[1]);
    RETURN_IF_ERROR(started);
    return AwaitEnd();
  }

 private:
  absl::StatusOr<Json> AwaitEnd() {
    for (;;) {
      supervisor_.Poll(kPollPeriod);
      if (signals_.stop_requests() > 0) {
        supervisor_.Stop(ProcessRole::kWorker, absl::ZeroDuration());
        bar_.Clear();
        return absl::CancelledError(signals_.stop_reason());
      }
      if (!is_read_) continue;  // It ends with its last words.
      const std::vector<Supervisor::Ended> ended = supervisor_.TakeEnded();
      if (ended.empty()) continue;
      bar_.Clear();
      if (ended[0].end.exit_code == 0 && !result_.is_null()) return result_;
      return absl::AbortedError(
          !failure_.empty() ? failure_ : absl::StrCat("thermocline-predict ", ended[0].end.report));
    }
  }

  void Take(absl::string_view data) {
    is_read_ = data.empty();
    text_.append(data.data(), data.size());
    for (size_t end; (end = text_.find('\n')) != text_.npos; text_.erase(0, end + 1)) {
      TakeLine(Json::parse(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(end), nullptr,
                           /*allow_exceptions=*/false));
    }
  }

  void TakeLine(const Json& line) {
    if (!line.is_object()) return;
    const std::string event = TextAt(line, "event");
    if (event == "done") result_ = line;
    if (event == "failed") failure_ = TextAt(line, "message");
    if (event == "warning") {
      bar_.Clear();
      out_.TryWrite(absl::StrCat("WARNING: ", TextAt(line, "text").substr(0, 1000), "\n"));
    }
    if (event != "progress") return;
    const double rows = NumberAt(line, "rows").value_or(0);
    const double fraction = NumberAt(line, "fraction").value_or(0);
    Progress progress;
    progress.phase = PhaseProgress{"scoring", static_cast<uint64_t>(rows),
                                   fraction > 0 ? static_cast<uint64_t>(rows / fraction) : 0,
                                   "rows", NumberAt(line, "seconds").value_or(0)};
    bar_.Update(progress, watch_.Elapsed());
  }

  SignalWatch& signals_;
  Supervisor supervisor_;
  Console out_;
  ProgressBar bar_;
  const Stopwatch watch_;
  bool is_read_ = false;
  std::string text_;  // Of lines not yet whole.
  std::string failure_;
  Json result_;
};

std::string Describe(const Prediction& prediction, const PredictFlags& flags, const Json& result,
                     absl::Duration elapsed) {
  const double rows = NumberAt(result, "rows").value_or(0);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  std::string text = absl::StrCat("checkpoint ", prediction.checkpoint.name, "\n",
                                  FormatCount(static_cast<uint64_t>(rows)), " rows scored in ",
                                  absl::StrFormat("%.1f s, ", seconds),
                                  FormatCount(static_cast<uint64_t>(rows / seconds)), "/s\n");
  const auto bad_lines = static_cast<uint64_t>(NumberAt(result, "bad_lines").value_or(0));
  if (bad_lines > 0) {
    absl::StrAppend(&text, FormatCount(bad_lines), " malformed ", bad_lines == 1 ? "row" : "rows",
                    " left out; the first: ", TextAt(result, "first_bad_line"), "\n");
  }
  return absl::StrCat(text, "scores: ", flags.out, "\n");
}

}  // namespace

int RunPredict(const PredictFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const Stopwatch watch;
  const absl::StatusOr<Prediction> prediction = SetUpPrediction(flags);
  if (!prediction.ok()) return ComplainAboutSetup(prediction.status());
  Console out(STDOUT_FILENO, &signals);
  for (const std::string& notice : prediction->notices) out.Write(notice + "\n");
  const absl::StatusOr<Json> result = PredictRun(&signals).Run(*prediction, flags);
  if (!result.ok()) {
    // What a process that was killed has left.
    unlink(absl::StrCat(flags.out, ".tmp").c_str());
    ReportFailure(
        absl::StrCat("checkpoint ", prediction->checkpoint.name, ": ", result.status().message()),
        &signals);
    return kExitFailed;
  }
  out.Write(Describe(*prediction, flags, *result, watch.Elapsed()));
  return kExitDone;
}

}  // namespace thermocline
