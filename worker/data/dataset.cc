#include "worker/data/dataset.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arrow/parquet.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"
#include "proto/job.pb.h"
#include "worker/data/byte_source.h"
#include "worker/data/data_files.h"
#include "worker/data/npy/npy_source.h"
#include "worker/data/parquet/parquet_source.h"
#include "worker/data/row_stream.h"
#include "worker/data/sampled_source.h"
#include "worker/data/step_lists.h"
#include "worker/data/text/text_parser.h"
#include "worker/data/text/text_source.h"

namespace thermocline {
namespace {

// Rows [begin, end) of npy files.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// `rows` are fewer than 2^53.
int64_t CutOf(int64_t rows, double test_share) {
  return static_cast<int64_t>(static_cast<double>(rows) * (1 - test_share));
}

// The job's workers may all be on this host.
uint32_t ParserThreads(const Job& job) {
  if (job.data().has_parser_threads()) return job.data().parser_threads();
  const uint32_t workers = std::max(job.cluster().workers(), 1u);
  return std::clamp(static_cast<uint32_t>(HardwareThreads()) / workers, 1u, 8u);
}

// The base of both kinds of data: it makes the options of readers.
class DatasetBase : public Dataset {
 public:
  DatasetBase(const Job& job, const DatasetOptions& options) {
    train_.batch_size = job.train().batch_size();
    train_.passes = job.train().passes();
    train_.max_steps = job.train().max_steps();
    train_.max_bad_lines = job.data().max_bad_lines();
    train_.read_ahead_batches = job.data().read_ahead_batches();
    train_.parser_threads = ParserThreads(job);
    // Without sequences, a batch's columns are its lookups.
    if (!job.sequence().empty()) {
      train_.lookup_maker = std::make_shared<LookupMaker>(ResolveTables(job).features);
    }
    train_.lookups = LookupLimitOf(job);
    train_.lookups.most = options.max_table_lookups;
    test_ = train_;
    test_.batch_size = job.train().eval_batch_size();
    test_.passes = 1;
    test_.max_steps = 0;
    test_.is_held_out = true;
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

  absl::StatusOr<std::unique_ptr<BatchReader>> OpenScan(const DatasetScan& scan) override {
    BatchReaderOptions options = train_;
    options.batch_size = scan.batch_rows;
    options.passes = 1;
    options.max_steps = 0;
    std::unique_ptr<BatchSource> source = MakeSource(Split::kTrain, Step(0));
    if (scan.share < 1) {
      source =
          std::make_unique<SampledSource>(std::move(source), BlockSample(scan.share, scan.seed));
    }
    return std::make_unique<BatchReader>(std::move(source), options);
  }

 protected:
  // For a reader that begins at `start_step`.
  virtual std::unique_ptr<BatchSource> MakeSource(Split split, Step start_step) = 0;

 private:
  BatchReaderOptions train_;
  BatchReaderOptions test_;
};

// Takes the label's columns out of `columns`, where the files' names for their columns don't come
// from the files, and the first line has so many fewer.
absl::Status TakeOutAbsentLabels(const TextFiles& files, const Data& data, ColumnNames* columns) {
  if (!files.header.empty()) return absl::OkStatus();
  const std::atomic<bool> cancelled{false};
  ASSIGN_OR_RETURN(
      const std::unique_ptr<LineStream> lines,
      LineStream::Open(files.paths[0], &cancelled, files.format, /*file=*/0, files.store.get()));
  RawBatch raw;
  raw.ClearText();
  ASSIGN_OR_RETURN(const int64_t rows, lines->Append(1, &raw));
  if (rows == 0) return absl::OkStatus();
  LineColumns line;
  SplitLine(WithoutLineEnd(raw.TextOf(0)), files.format, &line);
  const auto& labels = data.label().column();
  if (line.columns.size() + columns->num_keys + labels.size() != columns->names.size()) {
    return absl::OkStatus();
  }
  const auto is_label = [&](const std::string& name) {
    return std::find(labels.begin(), labels.end(), name) != labels.end();
  };
  std::vector<std::string>& names = columns->names;
  names.erase(std::remove_if(names.begin(), names.end(), is_label), names.end());
  return absl::OkStatus();
}

// So many rows show how a file is written.
constexpr int64_t kHeadRows = 1000;

class TextDataset : public DatasetBase {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const Job& job, const Data& data,
                                                       const DatasetOptions& options) {
    std::unique_ptr<TextDataset> dataset(new TextDataset(job, options));
    const TextIndexOptions& index = options.index;
    ColumnNames columns;
    ASSIGN_OR_RETURN(const FoundFiles found, FindFiles(job, data));
    ASSIGN_OR_RETURN(TextFiles train, DescribeFiles(data.train(), found, found.train, &columns));
    if (data.has_test()) RETURN_IF_ERROR(dataset->OpenTest(data, found, index, &train, &columns));
    AddIndexes(data, columns, index, &train);
    dataset->train_files_ = std::make_shared<TextFiles>(std::move(train));
    if (!data.has_test()) dataset->test_files_ = dataset->train_files_;
    if (data.train().has_criteo_tsv()) {
      const bool is_short = !job.data().has_train();
      columns.source =
          absl::StrCat("1 label + ", is_short ? "data.num_dense=" : "criteo_tsv.integers=",
                       data.train().criteo_tsv().integers(), " + ",
                       is_short ? "data.num_categorical=" : "criteo_tsv.categories=",
                       data.train().criteo_tsv().categories());
    }
    if (!options.needs_labels) {
      RETURN_IF_ERROR(TakeOutAbsentLabels(*dataset->test_files_, data, &columns));
    }
    ASSIGN_OR_RETURN(TextParser parser,
                     TextParser::Make(job, data, std::move(columns),
                                      {options.needs_labels, options.carried_columns}));
    dataset->parser_ = std::make_shared<TextParser>(std::move(parser));
    RETURN_IF_ERROR(dataset->SplitRows(data));
    if (data.has_shuffle()) {
      dataset->train_rows_.shuffle_rows = data.shuffle().block_rows();
      dataset->train_rows_.shuffle_seed = job.seed();
    }
    return dataset;
  }

  int64_t rows(Split split) const override {
    const TextRange& rows = range(split);
    return rows.end < 0 ? -1 : rows.end - rows.begin;
  }
  bool has_labels(Split) const override { return parser_->has_label(); }
  std::vector<std::string> Doubts() const override {
    TextFiles head = *train_files_;
    head.indexes.clear();  // It is for the readers to note places.
    const std::atomic<bool> never{false};
    RowStream rows(std::make_shared<TextFiles>(std::move(head)), {}, &never);
    RawBatch raw;
    raw.ClearText();
    // What can't be read is an error where it is trained.
    if (!rows.Rewind().ok() || !rows.Append(kHeadRows, &raw).ok()) return {};
    std::vector<absl::string_view> lines;
    for (int64_t row = 0; row < raw.num_rows; ++row) {
      lines.push_back(WithoutLineEnd(raw.TextOf(row)));
    }
    return parser_->DoubtSeparators(lines);
  }

 protected:
  std::unique_ptr<BatchSource> MakeSource(Split split, Step start_step) override {
    return std::make_unique<TextSource>(
        split == Split::kTrain ? train_files_ : test_files_, parser_, range(split),
        Scan(split == Split::kTest ? "skipping to the held-out rows"
                                   : absl::StrCat("skipping to step ", start_step.value())));
  }

 private:
  TextDataset(const Job& job, const DatasetOptions& options)
      : DatasetBase(job, options), on_scan_(options.on_scan) {}

  absl::Status OpenTest(const Data& data, const FoundFiles& found, const TextIndexOptions& index,
                        TextFiles* train, ColumnNames* columns) {
    ColumnNames of_test;
    ASSIGN_OR_RETURN(TextFiles test, DescribeFiles(data.test(), found, found.test, &of_test));
    if (of_test.names != columns->names) {  // Keys count where both have them.
      DropFolderKeys(train, columns);
      DropFolderKeys(&test, &of_test);
    }
    if (of_test.names != columns->names || test.format.separator != train->format.separator ||
        test.format.quotes != train->format.quotes) {
      return absl::InvalidArgumentError(absl::StrCat("data.test: ", test.paths[0],
                                                     " has other columns, or another separator, "
                                                     "than ",
                                                     train->paths[0]));
    }
    AddIndexes(data, of_test, index, &test);
    test_files_ = std::make_shared<TextFiles>(std::move(test));
    return absl::OkStatus();
  }

  // Counts rows where that is needed, or only makes sure that the files are there.
  absl::Status SplitRows(const Data& data) {
    if (!data.split().column().empty()) {
      train_rows_.rows = TextRange::Rows::kTrain;
      test_rows_.rows = TextRange::Rows::kHeldOut;
    } else if (!data.has_test()) {
      if (data.split().last_share() > 0) {
        ASSIGN_OR_RETURN(const int64_t rows, CountRows(train_files_, Scan("counting lines")));
        train_rows_.end = CutOf(rows, data.split().last_share());
        test_rows_.begin = train_rows_.end;
        test_rows_.end = rows;
        return absl::OkStatus();
      }
      test_rows_.end = 0;
    }
    RETURN_IF_ERROR(CheckReadable(*train_files_));
    return data.has_test() ? CheckReadable(*test_files_) : absl::OkStatus();
  }

  static absl::Status CheckReadable(const TextFiles& files) {
    for (const std::string& path : files.paths) {
      RETURN_IF_ERROR(ByteSource::Open(path, files.store.get()).status());
    }
    return absl::OkStatus();
  }

  OnScan Scan(std::string what) const {
    if (!on_scan_) return {};
    return [on_scan = on_scan_, what = std::move(what)](const ScanProgress& progress) {
      on_scan(what, progress);
    };
  }

  const TextRange& range(Split split) const {
    return split == Split::kTrain ? train_rows_ : test_rows_;
  }

  const OnDatasetScan on_scan_;
  std::shared_ptr<const TextFiles> train_files_, test_files_;
  std::shared_ptr<const TextParser> parser_;
  TextRange train_rows_, test_rows_;
};

class ParquetDataset : public DatasetBase {
 public:
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const Job& job, const Data& data,
                                                       const DatasetOptions& options) {
    std::unique_ptr<ParquetDataset> dataset(new ParquetDataset(job, options));
    RETURN_IF_ERROR(dataset->OpenFiles(job, data, options));
    return dataset;
  }

  int64_t rows(Split split) const override {
    const TextRange& rows = split == Split::kTrain ? train_rows_ : test_rows_;
    return rows.end < 0 ? -1 : rows.end - rows.begin;
  }
  bool has_labels(Split) const override { return parser_->has_label(); }

 protected:
  std::unique_ptr<BatchSource> MakeSource(Split split, Step) override {
    return split == Split::kTrain ? std::make_unique<ParquetSource>(train_, parser_, train_rows_)
                                  : std::make_unique<ParquetSource>(test_, parser_, test_rows_);
  }

 private:
  ParquetDataset(const Job& job, const DatasetOptions& options) : DatasetBase(job, options) {}

  absl::Status OpenFiles(const Job& job, const Data& data, const DatasetOptions& options) {
    ASSIGN_OR_RETURN(const FoundFiles found, FindFiles(job, data));
    ASSIGN_OR_RETURN(const std::unique_ptr<ParquetFile> first,
                     OpenParquet(found.train[0], found.store.get()));
    ASSIGN_OR_RETURN(ParquetParser parser,
                     ParquetParser::Make(job, data, found.train[0], first->columns(),
                                         {options.needs_labels, options.carried_columns}));
    parser_ = std::make_shared<ParquetParser>(std::move(parser));
    ASSIGN_OR_RETURN(ParquetFiles train, OpenParquetFiles(found, found.train, *parser_));
    train_ = test_ = std::make_shared<ParquetFiles>(std::move(train));
    if (data.has_test()) {
      ASSIGN_OR_RETURN(ParquetFiles test, OpenParquetFiles(found, found.test, *parser_));
      test_ = std::make_shared<ParquetFiles>(std::move(test));
    }
    SplitRows(data);
    train_rows_.shuffle_rows = data.shuffle().block_rows();
    train_rows_.shuffle_seed = job.seed();
    return absl::OkStatus();
  }

  void SplitRows(const Data& data) {
    train_rows_.end = train_->all_rows();
    test_rows_.end = test_->all_rows();
    if (!data.split().column().empty()) {
      train_rows_.rows = TextRange::Rows::kTrain;
      test_rows_.rows = TextRange::Rows::kHeldOut;
      train_rows_.end = test_rows_.end = -1;
    } else if (!data.has_test()) {
      train_rows_.end = test_rows_.begin = CutOf(train_->all_rows(), data.split().last_share());
    }
  }

  std::shared_ptr<const ParquetParser> parser_;
  std::shared_ptr<const ParquetFiles> train_, test_;
  TextRange train_rows_, test_rows_;
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
  if (feature.has_sequence()) {
    npy.list = feature.name();
    npy.max_length = feature.sequence().max_length();
    npy.keeps_first = feature.sequence().keep() == Feature::Sequence::FIRST;
  }
  return npy;
}

class NpyDataset : public DatasetBase {
 public:
  NpyDataset(const Job& job, const Data& data, const DatasetOptions& options)
      : DatasetBase(job, options), folder_(data.train().path(0)) {
    shape_.num_dense = static_cast<int>(job.data().num_dense());
    const std::vector<std::string> learned = LearnedLabels(job);
    shape_.num_tasks = static_cast<int>(learned.size());
    shape_.labels.clear();
    for (const std::string& label : LabelColumns(job)) {
      const auto task = std::find(learned.begin(), learned.end(), label);
      shape_.labels.push_back(task == learned.end() ? -1
                                                    : static_cast<int>(task - learned.begin()));
    }
    shape_.labels_may_be_missing = data.label().may_be_missing();
    shape_.needs_labels = options.needs_labels;
    for (const Feature& feature : job.feature()) shape_.features.push_back(FeatureOf(feature));
    shape_.step_lists = StepLists(job);
  }

  absl::Status OpenFiles(const Job& job, double test_share) {
    ASSIGN_OR_RETURN(pinned_, PinnedFiles::Open(job.data_files(), nullptr));
    struct stat info;
    if (stat(folder_.c_str(), &info) != 0) {
      return absl::NotFoundError(absl::StrCat(folder_, ": ", std::strerror(errno)));
    }
    if (!S_ISDIR(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(folder_, ": is not a folder of .npy files"));
    }
    const std::string test = absl::StrCat(folder_, "/test");
    const std::vector<std::string> parts = NpyParts(job);
    const bool has_test = NpyFiles::AnyExists(test, parts);
    if (has_test) {
      ASSIGN_OR_RETURN(test_, NpyFiles::Open(test, shape_));
      test_rows_ = RowRange{0, test_->rows()};
      // Rows that are only scored may lack the other labels.
      if (!shape_.needs_labels && !NpyFiles::AnyExists(absl::StrCat(folder_, "/train"), parts)) {
        train_ = test_;
        return absl::OkStatus();
      }
    }
    ASSIGN_OR_RETURN(train_, NpyFiles::Open(absl::StrCat(folder_, "/train"), shape_));
    train_rows_ = RowRange{0, train_->rows()};
    if (!has_test) {
      test_ = train_;
      train_rows_.end = CutOf(train_->rows(), test_share);
      test_rows_ = RowRange{train_rows_.end, train_->rows()};
    }
    return absl::OkStatus();
  }

  int64_t rows(Split split) const override {
    return (split == Split::kTrain ? train_rows_ : test_rows_).size();
  }
  bool has_labels(Split split) const override {
    return (split == Split::kTrain ? train_ : test_)->labels != nullptr;
  }

 protected:
  std::unique_ptr<BatchSource> MakeSource(Split split, Step) override {
    const RowRange& range = split == Split::kTrain ? train_rows_ : test_rows_;
    return std::make_unique<NpySource>(split == Split::kTrain ? train_ : test_, shape_, range.begin,
                                       range.end, pinned_);
  }

 private:
  const std::string folder_;
  NpyShape shape_;
  std::shared_ptr<PinnedFiles> pinned_;
  std::shared_ptr<const NpyFiles> train_;
  std::shared_ptr<const NpyFiles> test_;
  RowRange train_rows_;
  RowRange test_rows_;
};

absl::Status CheckJob(const Job& job, const Data& data) {
  if (data.train().path().empty() || data.train().path(0).empty()) {
    return absl::InvalidArgumentError("data.path is not set");
  }
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

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const Job& job, OnDatasetScan on_scan,
                                                       const TextIndexOptions& index) {
  DatasetOptions options;
  options.on_scan = std::move(on_scan);
  options.index = index;
  return Open(job, std::move(options));
}

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const Job& job, DatasetOptions options) {
  const Data data = DescribeData(job.data());
  RETURN_IF_ERROR(CheckJob(job, data));
  if (!job.data().has_train() && job.data().format() == Data::FORMAT_UNSPECIFIED) {
    return absl::InvalidArgumentError("data.format is not set");
  }
  if (data.train().has_parquet()) return ParquetDataset::Open(job, data, options);
  if (!IsNpy(data)) return TextDataset::Open(job, data, options);
  if (!options.carried_columns.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("column '", options.carried_columns[0],
                     "' can't go along: the columns of npy files have no names"));
  }
  auto dataset = std::make_unique<NpyDataset>(job, data, options);
  RETURN_IF_ERROR(dataset->OpenFiles(job, data.split().last_share()));
  return dataset;
}

absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader(const Job& job, Split split,
                                                        WorkerRank rank, uint32_t num_workers) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> dataset, Dataset::Open(job));
  return dataset->OpenReader(split, rank, num_workers, /*start_step=*/Step(0));
}

}  // namespace thermocline
