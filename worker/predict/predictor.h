// Scores rows with a checkpoint, without servers. It reads the rows that a block of batches needs
// from the checkpoint's files; then the model computes as in an evaluation, with the same bits.
#ifndef THERMOCLINE_WORKER_PREDICT_PREDICTOR_H_
#define THERMOCLINE_WORKER_PREDICT_PREDICTOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "worker/data/dataset.h"
#include "worker/predict/score_file.h"
#include "worker/train/evaluation.h"
#include "worker/train/worker_device.h"

namespace thermocline {

struct PredictProgress {
  int64_t rows = 0;     // Rows scored so far.
  double fraction = 0;  // The share of the data, in [0, 1].
};

struct PredictOptions {
  std::string checkpoint_directory;
  CheckpointManifest manifest;  // The checkpoint's. REQUIRES: its model is the job's.
  // Memory for the checkpoint's rows and the batches that wait for them. The data that are read
  // ahead, the dense parameters and the activations of a batch come on top.
  uint64_t memory_bytes = 0;
  // Called after each batch. An error ends Predict, which returns it.
  std::function<absl::Status(const PredictProgress&)> on_progress;
};

struct PredictResult {
  int64_t rows = 0;  // Rows scored.
  uint64_t bad_lines = 0;
  std::string first_bad_line;
  uint64_t rows_read = 0;  // Rows read from the checkpoint's tables; one may be read several times.
  // The metrics over the rows whose labels are known, each of which counts 1. nullopt: there are no
  // such rows, or more than a quarter of memory_bytes has room for (24 bytes a label).
  std::optional<EvaluationResult> metrics;
};

// Scores the held-out rows of `dataset` (opened for the resolved `job`), in their order, writes the
// scores to `file`, and finishes it. A key without a row has its initial row. Errors: the data's
// (file, line and column), the checkpoint's (the damaged file), the disk's, the device's;
// kResourceExhausted (memory_bytes is too little for one batch); kInvalidArgument (a score is not
// finite).
absl::StatusOr<PredictResult> Predict(const Job& job, const PredictOptions& options,
                                      Dataset* dataset, WorkerDevice device, Disk* disk,
                                      ScoreFile* file);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PREDICT_PREDICTOR_H_
