#include "worker/data/dataset.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "proto/job.pb.h"
#include "worker/data/line_stream.h"
#include "worker/data/npy_source.h"
#include "worker/data/tsv_source.h"

namespace thermocline {
namespace {

// Rows [begin, end) of a file or set of files; end < 0: through the end, not counted.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end < 0 ? -1 : end - begin; }
};

int64_t CutOf(int64_t rows, double test_share) {
  return static_cast<int64_t>(static_cast<double>(rows) * (1 - test_share));
}

// What both formats share: the options of readers.
class DatasetBase : public Dataset {
 public:
  explicit DatasetBase(const Job& job) {
    train_.batch_size = job.train().batch_size();
    train_.passes = job.train().passes();
    train_.max_steps = job.train().max_steps();
    train_.max_bad_lines = job.data().max_bad_lines();
    train_.read_ahead_batches = job.data().read_ahead_batches();
    test_ = train_;
    test_.batch_size = job.train().eval_batch_size();
    test_.passes = 1;
    test_.max_steps = 0;
  }

  absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader(Split split, WorkerRank rank,
                                                          uint32_t num_workers,
                                                          Step start_step) override {
    BatchReaderOptions options = split == Split::kTrain ? train_ : test_;
    options.rank = rank;
    options.num_workers = num_workers;
    options.start_step = start_step;
    return std::make_unique<BatchReader>(MakeSource(split, start_step), options);
  }

 protected:
  // For a reader that begins at `start_step`.
  virtual std::unique_ptr<BatchSource> MakeSource(Split split, Step start_step) = 0;

 private:
  BatchReaderOptions train_;
  BatchReaderOptions test_;
};

class TsvDataset : public DatasetBase {
 public:
  TsvDataset(const Job& job, OnDatasetScan on_scan)
      : DatasetBase(job),
        train_path_(job.data().path()),
        test_path_(job.data().test_path()),
        num_dense_(static_cast<int>(job.data().num_dense())),
        on_scan_(std::move(on_scan)) {
    for (const Feature& feature : job.feature()) feature_names_.push_back(feature.name());
  }

  // Cuts the file in two, or only makes sure that the files are there.
  absl::Status CutRows(double test_share) {
    train_rows_ = RowRange{0, -1};
    if (!test_path_.empty()) {
      test_rows_ = RowRange{0, -1};
      RETURN_IF_ERROR(ByteSource::Open(test_path_).status());
    } else if (test_share > 0) {
      ASSIGN_OR_RETURN(const int64_t rows, CountLines(train_path_, Scan("counting lines")));
      train_rows_.end = CutOf(rows, test_share);
      test_rows_ = RowRange{train_rows_.end, rows};
      return absl::OkStatus();
    }
    return ByteSource::Open(train_path_).status();
  }

  int64_t rows(Split split) const override { return range(split).size(); }

 protected:
  std::unique_ptr<BatchSource> MakeSource(Split split, Step start_step) override {
    const bool own_file = split == Split::kTest && !test_path_.empty();
    return std::make_unique<TsvSource>(
        own_file ? test_path_ : train_path_, range(split).begin, range(split).end, num_dense_,
        feature_names_,
        Scan(split == Split::kTest ? "skipping to the held-out rows"
                                   : absl::StrCat("skipping to step ", start_step.value())));
  }

 private:
  OnScan Scan(std::string what) const {
    if (!on_scan_) return {};
    return [on_scan = on_scan_, what = std::move(what)](const ScanProgress& progress) {
      on_scan(what, progress);
    };
  }

  const RowRange& range(Split split) const {
    return split == Split::kTrain ? train_rows_ : test_rows_;
  }

  const std::string train_path_;
  const std::string test_path_;  // "": a share of train_path_, or none
  const int num_dense_;
  const OnDatasetScan on_scan_;
  std::vector<std::string> feature_names_;
  RowRange train_rows_;
  RowRange test_rows_;
};

NpyFeature FeatureOf(const Feature& feature) {
  NpyFeature npy;
  npy.columns = static_cast<int>(feature.columns());
  if (feature.has_padding_id()) {
    npy.padding = NpyFeature::Padding::kOneId;
    npy.padding_key = static_cast<Key>(feature.padding_id());
  } else if (npy.columns > 1) {
    npy.padding = NpyFeature::Padding::kNegative;
  }
  return npy;
}

class NpyDataset : public DatasetBase {
 public:
  explicit NpyDataset(const Job& job) : DatasetBase(job), folder_(job.data().path()) {
    shape_.num_dense = static_cast<int>(job.data().num_dense());
    for (const Feature& feature : job.feature()) shape_.features.push_back(FeatureOf(feature));
  }

  absl::Status OpenFiles(double test_share) {
    struct stat info;
    if (stat(folder_.c_str(), &info) != 0) {
      return absl::NotFoundError(absl::StrCat(folder_, ": ", std::strerror(errno)));
    }
    if (!S_ISDIR(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(folder_, ": is not a folder of .npy files"));
    }
    ASSIGN_OR_RETURN(train_, NpyFiles::Open(absl::StrCat(folder_, "/train"), shape_));
    train_rows_ = RowRange{0, train_->rows()};
    const std::string test = absl::StrCat(folder_, "/test");
    if (NpyFiles::AnyExists(test)) {
      ASSIGN_OR_RETURN(test_, NpyFiles::Open(test, shape_));
      test_rows_ = RowRange{0, test_->rows()};
    } else {
      test_ = train_;
      train_rows_.end = CutOf(train_->rows(), test_share);
      test_rows_ = RowRange{train_rows_.end, train_->rows()};
    }
    return absl::OkStatus();
  }

  int64_t rows(Split split) const override {
    return (split == Split::kTrain ? train_rows_ : test_rows_).size();
  }

 protected:
  std::unique_ptr<BatchSource> MakeSource(Split split, Step) override {
    const RowRange& range = split == Split::kTrain ? train_rows_ : test_rows_;
    return std::make_unique<NpySource>(split == Split::kTrain ? train_ : test_, shape_, range.begin,
                                       range.end);
  }

 private:
  const std::string folder_;
  NpyShape shape_;
  std::shared_ptr<const NpyFiles> train_;
  std::shared_ptr<const NpyFiles> test_;
  RowRange train_rows_;
  RowRange test_rows_;
};

absl::Status CheckJob(const Job& job) {
  if (job.data().path().empty()) return absl::InvalidArgumentError("data.path is not set");
  if (job.feature().empty() && job.data().num_dense() == 0) {
    return absl::InvalidArgumentError("no feature is listed, and data.num_dense is 0");
  }
  if (job.train().batch_size() == 0) {
    return absl::InvalidArgumentError("train.batch_size is not set");
  }
  if (job.train().eval_batch_size() == 0) {
    return absl::InvalidArgumentError("train.eval_batch_size is not set");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const Job& job, OnDatasetScan on_scan) {
  RETURN_IF_ERROR(CheckJob(job));
  switch (job.data().format()) {
    case Data::CRITEO_TSV: {
      auto dataset = std::make_unique<TsvDataset>(job, std::move(on_scan));
      RETURN_IF_ERROR(dataset->CutRows(job.data().test_share()));
      return dataset;
    }
    case Data::DLRM_NPY: {
      auto dataset = std::make_unique<NpyDataset>(job);
      RETURN_IF_ERROR(dataset->OpenFiles(job.data().test_share()));
      return dataset;
    }
    default:
      return absl::InvalidArgumentError("data.format is not set");
  }
}

absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader(const Job& job, Split split,
                                                        WorkerRank rank, uint32_t num_workers) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> dataset, Dataset::Open(job));
  return dataset->OpenReader(split, rank, num_workers, /*start_step=*/Step(0));
}

}  // namespace thermocline
