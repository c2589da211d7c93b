#include "deploy/clicklog/click_log.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "deploy/clicklog/click_log_writer.h"
#include "deploy/clicklog/click_model.h"

namespace thermocline {
namespace {

// Rows that are drawn from one random stream, by one thread.
constexpr int kBlockRows = 16384;

absl::Status CheckOptions(const ClickLogOptions& options) {
  const auto error = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (options.folder.empty()) return error("no folder is given");
  if (options.rows < 1) return error("rows is ", options.rows, "; at least 1 is wanted");
  if (options.test_rows < 0) return error("test_rows is ", options.test_rows);
  if (!(options.skew > 0 && options.skew <= 4)) {
    return error("skew is ", options.skew, "; it must be in (0, 4]");
  }
  if (options.users < 1) return error("users is ", options.users, "; at least 1 is wanted");
  if (options.items < 1) return error("items is ", options.items, "; at least 1 is wanted");
  if (!(options.shrink >= 1)) {
    return error("shrink is ", options.shrink, "; at least 1 is wanted");
  }
  if (!(options.correlation >= 0 && options.correlation <= 1)) {
    return error("correlation is ", options.correlation, "; it must be in [0, 1]");
  }
  return absl::OkStatus();
}

// Area under the ROC curve of scores seen one by one, from a histogram: pairs within one bin count
// half.
class AucHistogram {
 public:
  void Add(float score, bool click) {
    const double bin = (std::clamp<double>(score, -kRange, kRange) + kRange) * (kBins / 2 / kRange);
    ++counts_[click][std::min<size_t>(static_cast<size_t>(bin), kBins - 1)];
  }
  double Auc() const {
    double below = 0, pairs = 0, clicks = 0;  // `below`: without a click, in lower bins
    for (size_t bin = 0; bin < kBins; ++bin) {
      const double others = static_cast<double>(counts_[0][bin]);
      const double here = static_cast<double>(counts_[1][bin]);
      pairs += here * (below + others / 2);
      below += others;
      clicks += here;
    }
    return clicks == 0 || below == 0 ? 0.5 : pairs / (clicks * below);
  }

 private:
  static constexpr double kRange = 16;  // Logits beyond it share the outermost bins.
  static constexpr size_t kBins = 1 << 16;
  std::vector<int64_t> counts_[2] = {std::vector<int64_t>(kBins), std::vector<int64_t>(kBins)};
};

// Draws the blocks of one split on several threads; each waits for its turn to append.
class SplitGenerator {
 public:
  SplitGenerator(const ClickModel& model, uint64_t stream, int64_t rows, ClickLogWriter* writer,
                 std::function<void(int64_t)> progress)
      : model_(model),
        stream_(stream),
        rows_(rows),
        blocks_((rows + kBlockRows - 1) / kBlockRows),
        writer_(writer),
        progress_(std::move(progress)) {
    for (int64_t values : model.cardinalities()) seen_.emplace_back(values);
  }

  absl::StatusOr<ClickLogSplit> Run(int threads) {
    std::vector<Scratch> scratch(threads);
    ThreadPool(threads).ParallelFor(
        blocks_, [&](int64_t number, int thread) { DrawBlock(number, &scratch[thread]); });
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(status_);
    RETURN_IF_ERROR(writer_->Finish());
    summary_.rows = rows_;
    summary_.click_rate = static_cast<double>(clicks_) / static_cast<double>(rows_);
    summary_.best_auc = auc_.Auc();
    summary_.files = writer_->files();
    return summary_;
  }

 private:
  // A thread's own.
  struct Scratch {
    ClickBlock block;
    std::string encoded;
  };

  // Blocks are begun in order, so the one whose turn it is to be appended has a thread.
  void DrawBlock(int64_t number, Scratch* scratch) {
    {
      absl::MutexLock lock(&mutex_);
      if (!status_.ok()) return;
    }
    const int64_t first = number * kBlockRows;
    const int rows = static_cast<int>(std::min<int64_t>(kBlockRows, rows_ - first));
    model_.Draw(Mix64(stream_) + static_cast<uint64_t>(number), rows, &scratch->block);
    writer_->Encode(scratch->block, &scratch->encoded);
    absl::MutexLock lock(&mutex_);
    const auto turn = [this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return appended_ == number || !status_.ok();
    };
    mutex_.Await(absl::Condition(&turn));
    if (!status_.ok()) return;
    status_ = writer_->Append(scratch->block, scratch->encoded);
    if (!status_.ok()) return;
    Count(scratch->block);
    ++appended_;
    progress_(first + rows);
  }

  void Count(const ClickBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int row = 0; row < block.rows; ++row) {
      clicks_ += block.labels[row];
      auc_.Add(block.logits[row], block.labels[row] == 1);
      for (int c = 0; c < kClickSparse; ++c) {
        auto seen = seen_[c][block.ids[static_cast<size_t>(row) * kClickSparse + c]];
        summary_.distinct_ids += !seen;
        seen = true;
      }
    }
  }

  const ClickModel& model_;
  const uint64_t stream_;
  const int64_t rows_;
  const int64_t blocks_;
  ClickLogWriter* const writer_;  // Append and Finish in turn; Encode at any time.
  const std::function<void(int64_t)> progress_;

  absl::Mutex mutex_;
  int64_t appended_ ABSL_GUARDED_BY(mutex_) = 0;  // blocks
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  ClickLogSplit summary_ ABSL_GUARDED_BY(mutex_);
  int64_t clicks_ ABSL_GUARDED_BY(mutex_) = 0;
  AucHistogram auc_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<bool>> seen_ ABSL_GUARDED_BY(mutex_);  // [26][cardinality]
};

// Refuses a folder with another log's held-out rows if this log has none: a job would use them.
absl::Status CheckNoOtherTestFiles(const ClickLogOptions& options) {
  if (options.test_rows > 0) return absl::OkStatus();
  for (const char* name :
       {"test_dense.npy", "test_sparse.npy", "test_labels.npy", "test.tsv", "test.tsv.gz"}) {
    const std::filesystem::path path = std::filesystem::path(options.folder) / name;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(),
                     " is of another log, and test_rows is 0: it would be taken for "
                     "this one's held-out rows; remove it, or choose another folder"));
  }
  return absl::OkStatus();
}

absl::Status WriteCardinalities(const std::string& folder, const std::vector<int64_t>& values) {
  const std::string path = folder + "/cardinalities.txt";
  std::ofstream out(path);
  out << absl::StrJoin(values, "-") << "\n";
  out.close();
  if (!out.good()) return absl::UnavailableError(absl::StrCat(path, ": cannot write"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ClickLogSummary> GenerateClickLog(const ClickLogOptions& options,
                                                 const ClickLogProgress& progress) {
  RETURN_IF_ERROR(CheckOptions(options));
  RETURN_IF_ERROR(CheckNoOtherTestFiles(options));
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(options.folder, ": cannot make the folder: ", error.message()));
  }
  const int threads = options.threads > 0 ? options.threads : HardwareThreads();
  const ClickModel model(options.users, options.items, options.skew, options.shrink,
                         options.correlation);
  ClickLogSummary summary;
  summary.cardinalities = model.cardinalities();
  const int64_t total = options.rows + options.test_rows;
  int64_t done = 0;
  for (ClickLogSplit* split : {&summary.train, &summary.test}) {
    const bool train = split == &summary.train;
    const int64_t rows = train ? options.rows : options.test_rows;
    if (rows == 0) continue;
    ASSIGN_OR_RETURN(
        const std::unique_ptr<ClickLogWriter> writer,
        ClickLogWriter::Create(options.format, options.folder, train ? "train" : "test"));
    SplitGenerator generator(model, Mix64(2 * options.seed + (train ? 0 : 1)), rows, writer.get(),
                             [&](int64_t rows_done) {
                               if (progress) progress(done + rows_done, total);
                             });
    ASSIGN_OR_RETURN(*split, generator.Run(threads));
    done += rows;
  }
  RETURN_IF_ERROR(WriteCardinalities(options.folder, model.cardinalities()));
  return summary;
}

}  // namespace thermocline
