// Writes predictions to a file, which is there whole or not at all.
#ifndef THERMOCLINE_WORKER_PREDICT_SCORE_FILE_H_
#define THERMOCLINE_WORKER_PREDICT_SCORE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/data/batch.h"

namespace thermocline {

// Returns 1 / (1 + e^-logit), computed in float64.
double Probability(float logit);

// The predictions for the samples of one batch.
struct ScoredBatch {
  const Batch* batch = nullptr;    // It has the samples' labels and carried columns.
  std::vector<int64_t> rows;       // [size] The samples' numbers in the data, from 0.
  absl::Span<const float> logits;  // [tasks, size]
};

struct ScoreFileOptions {
  std::string path;                            // "scores.csv", ".npy" or ".parquet"
  std::vector<std::string> columns;            // The names of the batches' carried columns.
  std::vector<std::string> tasks = {"label"};  // The labels that they learn.
  bool has_labels = false;
  bool logits = false;  // Whether scores are the model's logits; if not, they are probabilities.
};

// Has an implementation for each format; the end of the path says which one (docs/formats.md). Not
// thread-safe. The errors of all calls name the file: kUnavailable, kResourceExhausted (the disk),
// kFailedPrecondition (Parquet, and the build has no Arrow).
class ScoreFile {
 public:
  // Creates a file with a temporary name, the path and ".tmp". Finish renames it to the path;
  // without Finish the destructor removes it. Errors: also kInvalidArgument (the path's end names
  // no format, or there are columns for npy), kNotFound (no such folder).
  static absl::StatusOr<std::unique_ptr<ScoreFile>> Create(const ScoreFileOptions& options);
  virtual ~ScoreFile();
  ScoreFile(const ScoreFile&) = delete;
  ScoreFile& operator=(const ScoreFile&) = delete;

  // Adds scores, in the order of the rows.
  virtual absl::Status Append(const ScoredBatch& scored) = 0;
  // Finishes the file.
  //   total_rows: how many rows the data have, with those that were left out
  absl::Status Finish(int64_t total_rows);

 protected:
  explicit ScoreFile(const ScoreFileOptions& options)
      : options_(options), temporary_(options.path + ".tmp") {}
  virtual absl::Status Close(int64_t total_rows) = 0;

  size_t num_tasks() const { return options_.tasks.size(); }
  // "score", and of several tasks "score_LABEL".
  std::string NameOf(const char* what, size_t task) const {
    return num_tasks() == 1 ? what : absl::StrCat(what, "_", options_.tasks[task]);
  }
  double ScoreOf(const ScoredBatch& scored, size_t task, int sample) const {
    const float logit = scored.logits[task * scored.batch->size + sample];
    return options_.logits ? logit : Probability(logit);
  }

  const ScoreFileOptions options_;
  const std::string temporary_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PREDICT_SCORE_FILE_H_
