// Where predictions are written: a file that is there whole, or not at all.
#ifndef THERMOCLINE_WORKER_PREDICT_SCORE_FILE_H_
#define THERMOCLINE_WORKER_PREDICT_SCORE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/batch.h"

namespace thermocline {

// The predictions for the samples of one batch.
struct ScoredBatch {
  const Batch* batch = nullptr;    // With its rows' numbers, labels and carried columns.
  std::vector<int64_t> rows;       // [size] of the samples, in the data, from 0
  absl::Span<const float> logits;  // [size]
};

struct ScoreFileOptions {
  std::string path;                  // "scores.csv", ".npy" or ".parquet"
  std::vector<std::string> columns;  // The names of the batches' carried columns.
  bool has_labels = false;
  bool logits = false;  // The score is the model's logit, else a probability.
};

// Implementations: the formats that the name's end says (docs/formats.md). Not thread-safe. Errors
// of all calls name the file: kUnavailable, kResourceExhausted (the disk), kFailedPrecondition
// (Parquet, and the build has no Arrow).
class ScoreFile {
 public:
  // Writes below a temporary name, the path and ".tmp", which Finish gives up for the path; what is
  // not finished is removed with the object. Errors: also kInvalidArgument (an end that says no
  // format, columns in npy), kNotFound (no such folder).
  static absl::StatusOr<std::unique_ptr<ScoreFile>> Create(const ScoreFileOptions& options);
  virtual ~ScoreFile();
  ScoreFile(const ScoreFile&) = delete;
  ScoreFile& operator=(const ScoreFile&) = delete;

  // In the order of the rows.
  virtual absl::Status Append(const ScoredBatch& scored) = 0;
  // total_rows: of the data, those that were left out included.
  absl::Status Finish(int64_t total_rows);

 protected:
  explicit ScoreFile(const ScoreFileOptions& options)
      : options_(options), temporary_(options.path + ".tmp") {}
  virtual absl::Status Close(int64_t total_rows) = 0;

  const ScoreFileOptions options_;
  const std::string temporary_;
};

// 1 / (1 + e^-logit), in float64.
double Probability(float logit);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PREDICT_SCORE_FILE_H_
