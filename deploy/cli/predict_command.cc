// thermocline predict: writes a score for each row of a file. thermocline-predict computes them.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/timing.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"
#include "common/process/child_process.h"
#include "deploy/checkpoints/checkpoint_match.h"
#include "deploy/cli/checkpoint_path.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/job_files.h"
#include "deploy/cli/run_setup.h"
#include "deploy/processes/reporting_program.h"
#include "deploy/report/format.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

struct PredictFlags {
  std::string checkpoint, data, out;
  std::string job;                   // a job file, instead of the checkpoint's job
  std::vector<std::string> set;      // "FIELD=VALUE"
  std::vector<std::string> columns;  // written beside the scores
  std::optional<std::string> max_bad_lines;
  std::string memory = "1GiB";
  bool logits = false;
  bool force = false;
  std::string bin_dir;
};

struct Prediction {
  Job job;
  CheckpointPath checkpoint;
  uint64_t generation = 0;  // The generation that made the checkpoint.
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
  std::vector<std::string> cleared = {"data.test",  "data.split", "data.weight", "data.group",
                                      "checkpoint", "cache",      "fae",         "calibration",
                                      "init_from",  "init",       "data_files"};
  absl::StatusOr<Job> job;
  if (flags.job.empty()) {
    // These settings are for the machine that trained.
    cleared.insert(cleared.end(), {"cluster.worker_threads", "data.parser_threads"});
    job = ParseJob(JobToText(manifest.job()), absl::StrCat("the job of checkpoint ", checkpoint),
                   overrides, cleared, JobUse::kScore);
  } else {
    job = LoadJob(flags.job, overrides, cleared, JobUse::kScore);
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
  if (base.manifest.job().has_worker()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint ", base.name,
        " is of a job whose model is a script (`worker`), which predict "
        "does not have; `thermocline eval` starts the script, and thermocline.load() in Python "
        "reads the rows without servers"));
  }
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

ProgramCommand CommandOf(const Prediction& prediction, const PredictFlags& flags) {
  return {prediction.program,
          {absl::StrCat("--checkpoint_directory=", prediction.checkpoint.directory),
           absl::StrCat("--checkpoint=", prediction.checkpoint.name),
           absl::StrCat("--checkpoint_generation=", prediction.generation),
           absl::StrCat("--out=", flags.out),
           absl::StrCat("--columns=", absl::StrJoin(flags.columns, ",")),
           absl::StrCat("--memory_bytes=", prediction.memory_bytes),
           absl::StrCat("--logits=", flags.logits ? "true" : "false")},
          JobToText(prediction.job),
          "scoring"};
}

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
  if (NumberAt(result, "eval_samples")) {
    absl::StrAppend(&text, RenderScores(result, "rows with labels"), "\n");
  }
  return absl::StrCat(text, "scores: ", flags.out, "\n");
}

int RunPredict(const PredictFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const Stopwatch watch;
  const absl::StatusOr<Prediction> prediction = SetUpPrediction(flags);
  if (!prediction.ok()) return ComplainAboutSetup(prediction.status());
  Console out(STDOUT_FILENO, &signals);
  for (const std::string& notice : prediction->notices) out.Write(notice + "\n");
  const absl::StatusOr<Json> result =
      RunProgramOnConsole(CommandOf(*prediction, flags), &signals, STDOUT_FILENO);
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

}  // namespace

void AddPredict(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<PredictFlags>();
  CLI::App* command = AddCommand(
      app, "predict", "writes a score for each row of a file",
      R"(Scores all rows of the data with a checkpoint, without servers, in bounded memory and in the order
of the rows. The scores have the same bits as those of `eval`. The data need no labels: the column,
or npy file, of labels may be missing.

PATH is a checkpoint as for `eval`. It holds its job, which says how the data are read; --job names
another job file with the same model.

The end of OUT says how the scores are written. They are probabilities, or logits with --logits.
  .csv   a header; then row (counted from 0), label (where the data have one), the columns of
         --column, score
  .npy   float32, one for each row; NaN for a malformed one
  .parquet  the columns of .csv, where the build has Arrow
OUT appears when all is written. A malformed line is an error, which names it; up to --max-bad-lines
of them are left out: their numbers are missing in `row`.

examples:
  thermocline predict --checkpoint runs/r --data day_24.gz --out scores.csv
  thermocline predict --checkpoint runs/r/best --data today.csv --column user,item --out s.csv)");
  AddValue(command, "--checkpoint", &flags->checkpoint, "PATH",
           "the checkpoint's folder, or a run directory")
      ->required();
  AddValue(command, "--data", &flags->data, "PATH", "the rows to score")->required();
  AddValue(command, "--out", &flags->out, "OUT", "the file to write")->required();
  AddValue(command, "--job", &flags->job, "FILE", "a job file, instead of the checkpoint's job");
  AddValue(command, "--column", &flags->columns, "NAMES",
           "columns of the data that are written beside the scores: user,item")
      ->delimiter(',')
      ->allow_extra_args(false);
  AddValue(command, "--max-bad-lines", &flags->max_bad_lines, "N",
           "malformed lines that may be left out, instead of data.max_bad_lines");
  AddValue(command, "--memory", &flags->memory, "SIZE",
           "for rows of the checkpoint and batches that wait for them; default 1GiB");
  command->add_flag("--logits", flags->logits, "writes logits, not probabilities");
  command->add_flag("--force", flags->force, "replaces an existing file OUT");
  AddValue(command, "--set", &flags->set, "FIELD=VALUE",
           "changes a field of the job: --set device=CPU (may be repeated)")
      ->allow_extra_args(false);
  AddValue(command, "--bin-dir", &flags->bin_dir, "DIR", "the folder of thermocline-predict");
  OnCommand(command, action, RunPredict, flags);
}

}  // namespace thermocline
