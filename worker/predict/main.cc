// thermocline-predict: scores rows with a checkpoint and writes the scores to a file. The launcher
// starts it (`thermocline predict`) with a resolved job file whose held-out rows are the rows to
// score.
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "common/base/process.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "common/job/job_data.h"
#include "common/job/job_loader.h"
#include "common/json/report_lines.h"
#include "worker/data/dataset.h"
#include "worker/predict/predictor.h"
#include "worker/predict/score_file.h"
#include "worker/train/evaluation.h"
#include "worker/train/worker_device.h"

ABSL_FLAG(std::string, job, "", "Resolved job file; its held-out rows are scored");
ABSL_FLAG(std::string, checkpoint_directory, "", "Where the checkpoint lies");
ABSL_FLAG(std::string, checkpoint, "", "Its name");
ABSL_FLAG(uint64_t, checkpoint_generation, 0, "The generation that made it; 0: any");
ABSL_FLAG(std::string, out, "", "The file to write, which ends in .csv, .npy or .parquet");
ABSL_FLAG(std::vector<std::string>, columns, {}, "Columns of the data that go along");
ABSL_FLAG(bool, logits, false, "Write logits, not probabilities");
ABSL_FLAG(uint64_t, memory_bytes, uint64_t{1} << 30, "For the rows of the checkpoint");
ABSL_FLAG(int32_t, progress_fd, -1, "Write progress as JSON lines to this file descriptor");

namespace thermocline {
namespace {

using Json = nlohmann::json;

absl::StatusOr<PredictResult> ScoreAll(const Job& job, ReportLines* lines) {
  PosixDisk disk;
  PredictOptions options;
  options.checkpoint_directory = absl::GetFlag(FLAGS_checkpoint_directory);
  options.memory_bytes = absl::GetFlag(FLAGS_memory_bytes);
  ASSIGN_OR_RETURN(options.manifest, CheckpointStore(&disk, options.checkpoint_directory)
                                         .Load(absl::GetFlag(FLAGS_checkpoint),
                                               absl::GetFlag(FLAGS_checkpoint_generation)));
  ASSIGN_OR_RETURN(WorkerDevice device, MakeWorkerDevice(job, /*local_rank=*/0));
  if (!device.warning.empty()) {
    lines->Write(Json{{"event", "warning"}, {"text", device.warning}});
  }
  DatasetOptions data;
  data.needs_labels = false;
  data.carried_columns = absl::GetFlag(FLAGS_columns);
  ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> dataset, Dataset::Open(job, data));
  ScoreFileOptions out;
  out.path = absl::GetFlag(FLAGS_out);
  out.columns = data.carried_columns;
  out.has_labels = dataset->has_labels(Split::kTest);
  out.tasks = LearnedLabels(job);
  out.logits = absl::GetFlag(FLAGS_logits);
  ASSIGN_OR_RETURN(const std::unique_ptr<ScoreFile> file, ScoreFile::Create(out));
  options.on_progress = [&](const PredictProgress& progress) {
    if (!lines->IsProgressDue()) return absl::OkStatus();
    lines->Write(Json{{"event", "progress"},
                      {"rows", progress.rows},
                      {"fraction", progress.fraction},
                      {"seconds", lines->Seconds()}});
    return absl::OkStatus();
  };
  return Predict(job, options, dataset.get(), std::move(device), &disk, file.get());
}

int Run() {
  const absl::StatusOr<Job> job = LoadJob(absl::GetFlag(FLAGS_job), {});
  // If their reader is gone, SIGPIPE ends the program.
  ReportLines lines(absl::GetFlag(FLAGS_progress_fd));
  const absl::StatusOr<PredictResult> result = job.ok() ? ScoreAll(*job, &lines) : job.status();
  if (!result.ok()) {
    LogLine(result.status().message());
    lines.WriteFailure(result.status());
    return kExitFailed;
  }
  Json done = {{"event", "done"},
               {"rows", result->rows},
               {"bad_lines", result->bad_lines},
               {"first_bad_line", result->first_bad_line},
               {"rows_read", result->rows_read},
               {"resident_bytes", ResidentBytes()}};
  if (result->metrics.has_value()) {
    done["eval_samples"] = result->metrics->samples;
    AddMetrics(*result->metrics, &done);
  }
  lines.Write(done);
  return 0;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  thermocline::ParseProgramFlags(
      "scores rows with a checkpoint; `thermocline predict` starts it.\n"
      "  thermocline-predict --job=job.textproto --checkpoint_directory=run/checkpoints "
      "--checkpoint=step-000000999 --out=scores.csv",
      argc, argv);
  thermocline::RaiseOpenFileLimit();
  thermocline::TurnOffMutexChecks();
  return thermocline::Run();
}
