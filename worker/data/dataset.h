// The data of a job: two splits of rows, and readers over them.
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

// How far a scan of a text file is, and what for: "counting lines", "skipping to step 400",
// "skipping to the held-out rows". Called on the thread that scans.
using OnDatasetScan = std::function<void(absl::string_view what, const ScanProgress&)>;

struct DatasetOptions {
  OnDatasetScan on_scan;
  TextIndexOptions index;  // Of text files.
  // false: the files may lack the label's column (npy: the file of labels), and what is no label is
  // none: NaN.
  bool needs_labels = true;
  // Columns of text that go along with the rows (Batch::carried).
  std::vector<std::string> carried_columns;
  int64_t max_table_lookups = kMaxTableLookups;  // Of a worker's batch; tests lower it.
};

// One reading of the training rows that is no training: once, by one worker.
struct DatasetScan {
  int64_t batch_rows = 4096;
  // Share of the batches that are read, spread evenly; which ones `seed` decides. The others are
  // skipped without parsing.
  double share = 1;
  uint64_t seed = 0;
};

// Thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Finds the files of `job` (resolved: every default filled in, features listed), checks that they
  // are those that it began with (data_files), their types, shapes and headers, and splits them.
  // Where a share of text files is held out, its rows are counted first: the cut is int(rows * (1 -
  // last_share)), and malformed lines count as rows. options.on_scan also serves the readers, which
  // it has to outlive. Errors: kNotFound, kDataLoss (a truncated file), kInvalidArgument (wrong
  // dtype or shape, or a field of the job), kFailedPrecondition (another file); each names the file
  // or the field. Readers end with kFailedPrecondition where a file is changed or replaced
  // meanwhile.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const Job& job, DatasetOptions options);
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const Job& job, OnDatasetScan on_scan = {},
                                                       const TextIndexOptions& index = {});

  // kTrain: in global batches of train.batch_size, train.passes times, up to train.max_steps, from
  // `start_step` on.
  // kTest: once, in global batches of train.eval_batch_size; no batch at all where nothing is held
  // out.
  virtual absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader(Split split, WorkerRank rank,
                                                                  uint32_t num_workers,
                                                                  Step start_step) = 0;

  virtual absl::StatusOr<std::unique_ptr<BatchReader>> OpenScan(const DatasetScan& scan) = 0;

  // Rows of a split, or -1 where they were not counted.
  virtual int64_t rows(Split split) const = 0;
  // Whether its files have labels: DatasetOptions.needs_labels.
  virtual bool has_labels(Split split) const = 0;
};

// For one split alone, from step 0 on. Several readers of one job had better share a Dataset.
absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader(const Job& job, Split split,
                                                        WorkerRank rank, uint32_t num_workers);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_DATASET_H_
