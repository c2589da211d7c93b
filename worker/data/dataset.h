// The data of a job: the rows to train on, the rows that are held out, and readers of both.
#ifndef THERMOCLINE_WORKER_DATA_DATASET_H_
#define THERMOCLINE_WORKER_DATA_DATASET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "worker/data/batch_reader.h"
#include "worker/data/text/line_stream.h"
#include "worker/data/text/text_index.h"

namespace thermocline {

class Job;  // proto/job.proto

enum class Split { kTrain, kTest };

// Called on the thread that scans a text file, with how far it has got.
//   what: "counting lines", "skipping to step 400", "skipping to the held-out rows"
using OnDatasetScan = std::function<void(absl::string_view what, const ScanProgress&)>;

struct DatasetOptions {
  OnDatasetScan on_scan;
  TextIndexOptions index;  // For text files.
  // false: the files may lack the label's column (npy: the file of labels). A label that is missing
  // or malformed is NaN.
  bool needs_labels = true;
  // The texts of these columns go along with the rows (Batch::carried).
  std::vector<std::string> carried_columns;
  int64_t max_table_lookups = kMaxTableLookups;  // In a worker's batch; tests lower it.
};

// How one worker reads the training rows once, for another purpose than training.
struct DatasetScan {
  int64_t batch_rows = 4096;
  // The share of the batches that is read. They are spread evenly, and `seed` decides which ones
  // they are. The others are skipped without parsing.
  double share = 1;
  uint64_t seed = 0;
};

// Thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Finds the files of `job`, which is resolved (every default filled in, features listed). Checks
  // that they are the files that the job began with (data_files), and their types, shapes and
  // headers. Splits them: where a share of text files is held out, it counts their rows first. The
  // cut is at int(rows * (1 - last_share)), and malformed lines count as rows.
  //
  // The readers call options.on_scan, too, so it has to outlive them. A reader ends with
  // kFailedPrecondition if a file is changed or replaced while it reads.
  //
  // Errors: kNotFound, kDataLoss (a truncated file), kInvalidArgument (wrong dtype or shape, or a
  // field of the job), kFailedPrecondition (not the file that the job began with); each names the
  // file or the field.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const Job& job, DatasetOptions options);
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const Job& job, OnDatasetScan on_scan = {},
                                                       const TextIndexOptions& index = {});

  // Opens a reader of worker `rank`'s slices. Readers may outlive the Dataset.
  //   kTrain: global batches of train.batch_size, in train.passes passes, up to train.max_steps,
  //     from `start_step` on
  //   kTest: global batches of train.eval_batch_size, in one pass; no batch if no row is held out
  virtual absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader(Split split, WorkerRank rank,
                                                                  uint32_t num_workers,
                                                                  Step start_step) = 0;

  virtual absl::StatusOr<std::unique_ptr<BatchReader>> OpenScan(const DatasetScan& scan) = 0;

  // The number of a split's rows, or -1 if they were not counted.
  virtual int64_t rows(Split split) const = 0;
  // What the first training rows show that the job may not mean, in words for the user.
  virtual std::vector<std::string> Doubts() const { return {}; }
  // Whether the split's files have labels; they may lack them only without needs_labels.
  virtual bool has_labels(Split split) const = 0;
};

// Opens a Dataset and a reader of one split, from step 0 on. For several readers of one job open
// one Dataset.
absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader(const Job& job, Split split,
                                                        WorkerRank rank, uint32_t num_workers);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_DATASET_H_
