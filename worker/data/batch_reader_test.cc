#include "worker/data/batch_reader.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

// Rows 0 .. rows-1; the label of row i is i, so that a test sees which rows it got. Hooks make it
// fail or wait.
struct FakeScript {
  int64_t rows = 0;
  std::set<int64_t> bad_rows;
  int64_t read_error_at_row = -1;
  absl::Notification* block_reading_after_first = nullptr;
  std::atomic<int> batches_read{0};
  std::atomic<int64_t> rows_skipped{0};
  std::atomic<bool> cancelled{false};
};

class FakeSource : public BatchSource {
 public:
  explicit FakeSource(FakeScript* script) : script_(script) {}

  absl::Status Rewind(uint32_t) override {
    next_row_ = 0;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override {
    if (script_->block_reading_after_first != nullptr && next_row_ > 0) {
      script_->block_reading_after_first->WaitForNotification();
    }
    if (script_->cancelled) return absl::CancelledError("cancelled");
    if (script_->read_error_at_row == next_row_) return absl::DataLossError("torn page");
    raw->first_row = next_row_;
    raw->num_rows = std::min(batch_size, script_->rows - next_row_);
    next_row_ += raw->num_rows;
    raw->pass_progress = static_cast<double>(next_row_) / script_->rows;
    if (raw->num_rows > 0) ++script_->batches_read;
    return raw->num_rows > 0;
  }
  absl::StatusOr<int64_t> Skip(int64_t rows) override {
    const int64_t skipped = std::min(rows, script_->rows - next_row_);
    next_row_ += skipped;
    script_->rows_skipped += skipped;
    return skipped;
  }
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad) override {
    batch->labels.clear();
    for (int64_t row = raw.slice_begin; row < raw.slice_end; ++row) {
      if (script_->bad_rows.count(raw.first_row + row) > 0) {
        bad->push_back(row);
      } else {
        batch->labels.push_back(static_cast<float>(raw.first_row + row));
      }
    }
    batch->size = static_cast<int>(batch->labels.size());
    return absl::OkStatus();
  }
  std::string PlaceOf(const RawBatch& raw, int64_t row) override {
    return absl::StrCat("row ", raw.first_row + row);
  }
  absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) override {
    return absl::InvalidArgumentError(absl::StrCat("bad row ", raw.first_row + row));
  }
  void Cancel() override {
    script_->cancelled = true;
    if (script_->block_reading_after_first != nullptr &&
        !script_->block_reading_after_first->HasBeenNotified()) {
      script_->block_reading_after_first->Notify();
    }
  }

 private:
  FakeScript* const script_;
  int64_t next_row_ = 0;
};

std::unique_ptr<BatchReader> MakeReader(FakeScript* script, const BatchReaderOptions& options) {
  return std::make_unique<BatchReader>(std::make_unique<FakeSource>(script), options);
}

struct Seen {
  std::vector<std::vector<int>> rows;  // of each batch
  std::vector<int64_t> global_samples;
  std::vector<double> progress;
  std::vector<int> passes;
  std::vector<bool> begins;  // a pass
  absl::Status status;
};

// Reads to the end, giving every batch back.
Seen ReadAll(BatchReader* reader, int64_t first_step = 0) {
  Seen seen;
  for (int64_t step = first_step;; ++step) {
    auto batch = reader->Next();
    seen.status = batch.status();
    if (!batch.ok() || *batch == nullptr) return seen;
    EXPECT_EQ((*batch)->step, Step(step));
    EXPECT_EQ((*batch)->size, static_cast<int>((*batch)->labels.size()));
    seen.rows.emplace_back((*batch)->labels.begin(), (*batch)->labels.end());
    seen.global_samples.push_back((*batch)->global_samples);
    seen.progress.push_back((*batch)->progress);
    seen.passes.push_back(static_cast<int>((*batch)->pass));
    seen.begins.push_back((*batch)->begins_pass);
    reader->Recycle(*std::move(batch));
  }
}

using Rows = std::vector<std::vector<int>>;

TEST(BatchReader, LastBatchMayBeShort) {
  FakeScript script;
  script.rows = 7;
  BatchReaderOptions options;
  options.batch_size = 3;
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get());
  EXPECT_EQ(seen.rows, (Rows{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(seen.global_samples, (std::vector<int64_t>{3, 3, 1}));
  EXPECT_TRUE(seen.status.ok());
  EXPECT_DOUBLE_EQ(seen.progress[0], 3.0 / 7);
  EXPECT_DOUBLE_EQ(seen.progress[2], 1);
  EXPECT_EQ(reader->progress().samples, 7u);
  EXPECT_EQ(reader->progress().steps, 3);
  EXPECT_EQ(reader->progress().fraction, 1);
  // The end stays the end.
  auto after = reader->Next();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(*after, nullptr);
}

TEST(BatchReader, WorkersSliceEveryBatchWithoutGapOrOverlap) {
  // B = 5, W = 3: [0, 1), [1, 3), [3, 5); then 2 rows: none, [0, 1), [1, 2).
  const std::vector<Rows> wanted = {{{0}, {}}, {{1, 2}, {5}}, {{3, 4}, {6}}};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    FakeScript script;
    script.rows = 7;
    BatchReaderOptions options;
    options.batch_size = 5;
    options.rank = WorkerRank(rank);
    options.num_workers = 3;
    auto reader = MakeReader(&script, options);
    const Seen seen = ReadAll(reader.get());
    EXPECT_EQ(seen.rows, wanted[rank]) << "rank " << rank;
    EXPECT_EQ(seen.global_samples, (std::vector<int64_t>{5, 2}));
  }
}

TEST(BatchReader, PassesStartAgainAndStepsGoOn) {
  FakeScript script;
  script.rows = 3;
  BatchReaderOptions options;
  options.batch_size = 2;
  options.passes = 3;
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get());
  EXPECT_EQ(seen.rows, (Rows{{0, 1}, {2}, {0, 1}, {2}, {0, 1}, {2}}));
  EXPECT_NEAR(seen.progress[2], (1 + 2.0 / 3) / 3, 1e-12);
  EXPECT_EQ(seen.passes, (std::vector<int>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(seen.begins, (std::vector<bool>{true, false, true, false, true, false}));
}

TEST(BatchReader, StopsAfterMaxSteps) {
  FakeScript script;
  script.rows = 100;
  BatchReaderOptions options;
  options.batch_size = 10;
  options.max_steps = 4;
  options.read_ahead_batches = 50;
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get());
  EXPECT_EQ(seen.rows.size(), 4u);
  EXPECT_DOUBLE_EQ(seen.progress[1], 0.5);
  EXPECT_EQ(script.batches_read, 4);  // Not one more was read.
}

// Every start, in passes that end with a short batch; the rows, and what lies before them, are
// those of a reader that begins at step 0, for every worker of any number.
TEST(BatchReader, AStartAmidTheDataContinuesTheSameOrder) {
  for (uint32_t workers : {1, 2, 3}) {
    for (uint32_t rank = 0; rank < workers; ++rank) {
      BatchReaderOptions options;
      options.batch_size = 3;
      options.rank = WorkerRank(rank);
      options.num_workers = workers;
      options.passes = 3;
      options.read_ahead_batches = 2;
      FakeScript whole_script;
      whole_script.rows = 11;
      const Seen whole = ReadAll(MakeReader(&whole_script, options).get());
      ASSERT_EQ(whole.rows.size(), 12u);
      for (int64_t start = 0; start <= 12; ++start) {
        SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", workers, " from step ", start));
        FakeScript script;
        script.rows = 11;
        options.start_step = Step(start);
        auto reader = MakeReader(&script, options);
        const Seen seen = ReadAll(reader.get(), start);
        EXPECT_TRUE(seen.status.ok()) << seen.status;
        EXPECT_EQ(seen.rows, Rows(whole.rows.begin() + start, whole.rows.end()));
        EXPECT_EQ(seen.progress,
                  std::vector<double>(whole.progress.begin() + start, whole.progress.end()));
        EXPECT_EQ(seen.passes, std::vector<int>(whole.passes.begin() + start, whole.passes.end()));
        EXPECT_EQ(seen.begins, std::vector<bool>(whole.begins.begin() + start, whole.begins.end()));
        uint64_t samples = 0, global_samples = 0;
        for (int64_t step = 0; step < start; ++step) {
          samples += whole.rows[step].size();
          global_samples += whole.global_samples[step];
        }
        const BatchReader::Skipped skipped = reader->skipped();
        EXPECT_EQ(skipped.steps, start);
        EXPECT_EQ(skipped.samples, samples);
        EXPECT_EQ(skipped.global_samples, global_samples);
        EXPECT_EQ(script.batches_read, 12 - start);  // The others were not parsed, nor read.
      }
    }
  }
}

TEST(BatchReader, WholePassesAreSkippedWithoutReadingThem) {
  FakeScript script;
  script.rows = 10;
  BatchReaderOptions options;
  options.batch_size = 5;
  options.passes = 1000;
  options.start_step = Step(1999);
  auto reader = MakeReader(&script, options);
  EXPECT_EQ(ReadAll(reader.get(), 1999).rows, (Rows{{5, 6, 7, 8, 9}}));
  EXPECT_EQ(reader->skipped().global_samples, 9995u);
  EXPECT_EQ(script.rows_skipped, 10 + 5);
}

TEST(BatchReader, AStartAfterTheEndIsAnError) {
  FakeScript script;
  script.rows = 7;
  BatchReaderOptions options;
  options.batch_size = 3;
  options.passes = 2;
  options.start_step = Step(7);
  auto reader = MakeReader(&script, options);
  const absl::Status status = reader->Next().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* said : {"train.passes=2 ends before step 6 of the checkpoint",
                           "ends after step 5, but this worker is to begin at step 7"}) {
    EXPECT_NE(status.message().find(said), absl::string_view::npos) << status;
  }
}

// The lines of a pass that was begun before count again, and those of the next pass don't.
TEST(BatchReader, BadLinesCountFromTheStartOn) {
  for (const int64_t start : {3, 4, 5}) {  // Amid the second pass, at its end, in the third.
    FakeScript script;
    script.rows = 6;
    script.bad_rows = {1, 4};
    BatchReaderOptions options;
    options.batch_size = 3;
    options.max_bad_lines = 2;
    options.passes = 4;
    options.start_step = Step(start);
    auto reader = MakeReader(&script, options);
    EXPECT_TRUE(ReadAll(reader.get(), start).status.ok());
    EXPECT_EQ(reader->progress().bad_lines, start == 4 ? 2u : 1u);
  }
}

TEST(BatchReader, EmptyDataHasNoBatch) {
  FakeScript script;
  BatchReaderOptions options;
  options.batch_size = 10;
  options.passes = 2;
  auto reader = MakeReader(&script, options);
  EXPECT_TRUE(ReadAll(reader.get()).rows.empty());
}

// Many parsers, a short queue: batches still come in order, none twice.
TEST(BatchReader, OrderHoldsWithManyParsers) {
  FakeScript script;
  script.rows = 1000;
  BatchReaderOptions options;
  options.batch_size = 3;
  options.parser_threads = 4;
  options.read_ahead_batches = 5;
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get());
  int next = 0;
  for (const std::vector<int>& rows : seen.rows) {
    for (int row : rows) ASSERT_EQ(row, next++);
  }
  EXPECT_EQ(next, 1000);
}

TEST(BatchReader, NoMoreThanTheQueueIsReadAhead) {
  FakeScript script;
  script.rows = 1000;
  BatchReaderOptions options;
  options.batch_size = 1;
  options.read_ahead_batches = 3;
  auto reader = MakeReader(&script, options);
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(reader->Next().ok());
    // One that was handed out just now may have been replaced already.
    EXPECT_LE(script.batches_read, step + 1 + 3);
  }
}

TEST(BatchReader, BatchesAreUsedAgain) {
  FakeScript script;
  script.rows = 100;
  BatchReaderOptions options;
  options.batch_size = 1;
  options.read_ahead_batches = 2;
  auto reader = MakeReader(&script, options);
  std::set<const Batch*> seen;
  for (;;) {
    auto batch = reader->Next();
    ASSERT_TRUE(batch.ok());
    if (*batch == nullptr) break;
    seen.insert(batch->get());
    reader->Recycle(*std::move(batch));
  }
  EXPECT_LE(seen.size(), 4u);  // Two ahead, one in hand, one that came back too late.
}

TEST(BatchReader, ErrorSurfacesAfterTheBatchesBeforeIt) {
  FakeScript script;
  script.rows = 100;
  script.read_error_at_row = 20;
  BatchReaderOptions options;
  options.batch_size = 10;
  options.read_ahead_batches = 8;
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get());
  EXPECT_EQ(seen.rows.size(), 2u);
  EXPECT_EQ(seen.status, absl::DataLossError("torn page"));
  EXPECT_EQ(reader->Next().status(), absl::DataLossError("torn page"));
}

TEST(BatchReader, FirstBadLineIsAnErrorByDefault) {
  FakeScript script;
  script.rows = 100;
  script.bad_rows = {15, 16};
  BatchReaderOptions options;
  options.batch_size = 10;
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get());
  EXPECT_EQ(seen.rows.size(), 1u);
  EXPECT_EQ(seen.status,
            absl::InvalidArgumentError("bad row 15; 1 more in this batch is malformed, too"));
  EXPECT_EQ(reader->progress().bad_lines, 0u);  // None was skipped.
}

TEST(BatchReader, BadLinesAreSkippedAndCountedOnce) {
  FakeScript script;
  script.rows = 6;
  script.bad_rows = {1, 4};
  BatchReaderOptions options;
  options.batch_size = 3;
  options.max_bad_lines = 2;
  options.passes = 2;
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get());
  EXPECT_TRUE(seen.status.ok()) << seen.status;
  EXPECT_EQ(seen.rows, (Rows{{0, 2}, {3, 5}, {0, 2}, {3, 5}}));
  EXPECT_EQ(seen.global_samples[0], 3);  // The bad line keeps its place.
  EXPECT_EQ(reader->progress().bad_lines, 2u);
  EXPECT_EQ(reader->progress().first_bad_line, "bad row 1");
  EXPECT_EQ(reader->progress().samples, 8u);
}

TEST(BatchReader, OneBadLineTooMany) {
  FakeScript script;
  script.rows = 30;
  script.bad_rows = {1, 14, 15, 18, 21};
  BatchReaderOptions options;
  options.batch_size = 10;
  options.max_bad_lines = 2;
  options.parser_threads = 3;
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get());
  EXPECT_EQ(seen.rows.size(), 1u);
  // The bad rows of the same batch are counted as well; later rows were not read.
  EXPECT_EQ(seen.status,
            absl::InvalidArgumentError("bad row 15; data.max_bad_lines allows each worker 2 such "
                                       "lines, but worker 0 has met 4; the first was bad row 1"));
  EXPECT_EQ(reader->Next().status(), seen.status);
}

TEST(BatchReader, CancelWakesWhoWaits) {
  absl::Notification reading_goes_on;
  FakeScript script;
  script.rows = 100;
  script.block_reading_after_first = &reading_goes_on;
  BatchReaderOptions options;
  options.batch_size = 1;
  auto reader = MakeReader(&script, options);
  ASSERT_TRUE(reader->Next().ok());
  absl::Status status;
  std::thread waiting([&] { status = reader->Next().status(); });  // Reading is blocked.
  reader->Cancel();
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kCancelled);
}

TEST(BatchReader, ASourceMayHaveAPartOfTheTraining) {
  FakeScript script;
  script.rows = 5;
  BatchReaderOptions options;
  options.batch_size = 2;
  options.place.first_step = Step(40);
  options.place.first_pass = 3;
  options.place.begins_pass = false;
  options.place.progress_before = 0.5;
  options.place.progress_through = 0.75;
  options.place.before = {40, 70, 75};
  options.start_step = Step(40);
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get(), 40);
  EXPECT_TRUE(seen.status.ok());
  EXPECT_EQ(seen.rows, (Rows{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(seen.passes, (std::vector<int>{3, 3, 3}));
  EXPECT_EQ(seen.begins, (std::vector<bool>{false, false, false}));
  EXPECT_DOUBLE_EQ(seen.progress[0], 0.5 + 0.25 * 2 / 5);
  EXPECT_DOUBLE_EQ(seen.progress[2], 0.75);
  EXPECT_DOUBLE_EQ(reader->progress().fraction, 0.75);
  EXPECT_EQ(reader->skipped().steps, 40);
  EXPECT_EQ(reader->skipped().samples, 70u);
  EXPECT_EQ(reader->skipped().global_samples, 75u);
}

TEST(BatchReader, StepsOfAPartAreSkippedFromItsFirst) {
  FakeScript script;
  script.rows = 5;
  BatchReaderOptions options;
  options.batch_size = 2;
  options.place.first_step = Step(40);
  options.place.before = {40, 70, 75};
  options.start_step = Step(41);
  auto reader = MakeReader(&script, options);
  const Seen seen = ReadAll(reader.get(), 41);
  EXPECT_EQ(seen.rows, (Rows{{2, 3}, {4}}));
  EXPECT_EQ(reader->skipped().steps, 41);
  EXPECT_EQ(reader->skipped().samples, 72u);
}

// The queue is full and no batch is taken.
TEST(BatchReader, DestructionDoesNotWaitForAConsumer) {
  FakeScript script;
  script.rows = 1000000;
  BatchReaderOptions options;
  options.batch_size = 1;
  auto reader = MakeReader(&script, options);
  ASSERT_TRUE(reader->Next().ok());
  reader.reset();
  EXPECT_LT(script.batches_read, 100);
}

}  // namespace
}  // namespace thermocline
