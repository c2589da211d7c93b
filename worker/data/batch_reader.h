// Hands out one worker's slice of every global batch, read and parsed ahead by threads of its own.
//
// A global batch has `batch_size` neighbouring rows of the split (the last batch of a pass may have
// fewer). Worker r of W gets its rows [B*r/W, B*(r+1)/W), where B is the number of rows. That may
// be none, but every worker sees every step. A malformed line that may be skipped keeps its place
// in the global batch and is missing from its worker's slice.
#ifndef THERMOCLINE_WORKER_DATA_BATCH_READER_H_
#define THERMOCLINE_WORKER_DATA_BATCH_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "worker/data/batch.h"
#include "worker/data/lookup_limit.h"
#include "worker/data/step_lists.h"

namespace thermocline {

// Returns the first row of worker `rank`'s slice of a global batch of `rows`. The slice ends where
// that of rank + 1 begins.
inline int64_t SliceBegin(int64_t rows, int64_t rank, int64_t num_workers) {
  return rows * rank / num_workers;
}

struct BatchReaderOptions {
  int64_t batch_size = 0;  // Rows of a global batch. Must be set.
  WorkerRank rank{0};
  uint32_t num_workers = 1;
  uint32_t passes = 1;
  uint64_t max_steps = 0;  // 0: no limit
  // How many malformed lines of the worker's own slices may be skipped. A line counts once, in the
  // first pass that is handed out.
  uint64_t max_bad_lines = 0;
  // The first step that is handed out. It has the rows that a reader from step 0 gives it.
  Step start_step{0};
  uint32_t read_ahead_batches = 4;  // At least 1 and parser_threads are read ahead.
  // Threads beside the one that reads (and inflates). The batches are the same for any number.
  uint32_t parser_threads = 1;
  SourcePlace place;  // REQUIRES: place.first_step <= start_step
  // Makes the lookups of the source's columns. Null: the source's batches have the lookups.
  std::shared_ptr<const LookupMaker> lookup_maker;
  LookupLimit lookups;
  bool is_held_out = false;  // The batches are scored: their steps are not those of training.
};

// Only one thread at a time may call Next(); all else is thread-safe.
class BatchReader {
 public:
  // Starts reading at once. The reader owns the source.
  BatchReader(std::unique_ptr<BatchSource> source, const BatchReaderOptions& options);
  ~BatchReader();  // Stops reading and waits for the threads.
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  // Waits for the next batch and returns it, or null after the last. An error comes in its place,
  // after all batches before it; each further call returns it again. Errors:
  //   kInvalidArgument (a malformed line beyond max_bad_lines: names file, line and what was wrong,
  //     and if some were allowed how many, how many there were, and the first one's error; or a row
  //     with which the batch has too many lookups: names file, line, feature and table)
  //   kFailedPrecondition (the data end before start_step; a file has changed)
  //   kDataLoss, kNotFound (name the file), kCancelled
  absl::StatusOr<std::unique_ptr<Batch>> Next();

  // Gives a batch back, so that its memory serves a later one. Optional; null is ignored.
  void Recycle(std::unique_ptr<Batch> batch);

  // Ends the reading: Next() returns kCancelled from now on, also to a thread that waits in it.
  void Cancel();

  using Skipped = SkippedBatches;
  // How much comes before start_step. Known once Next() has returned without an error.
  Skipped skipped() const;
  bool is_held_out() const { return options_.is_held_out; }

  // Counts of the batches handed out so far.
  struct Progress {
    double fraction = 0;  // In [0, 1]: of all passes, or of max_steps if that comes first.
    int64_t steps = 0;
    uint64_t samples = 0;  // Samples of this worker.
    uint64_t padding_ids = 0;
    uint64_t bad_lines = 0;
    std::string first_bad_line;  // The error of the first bad line; "": there is none.
    // Headers within files, which are left out and are no bad lines; counted in the first pass.
    uint64_t repeated_headers = 0;
  };
  Progress progress() const;

 private:
  enum class EntryState { kEmpty, kRead, kParsing, kReady };
  // A batch ahead. Step s is in entries_[s mod entries_.size()].
  struct Entry {
    EntryState state = EntryState::kEmpty;
    bool end = false;  // There is no batch: reading ended here, with `status`, which may be OK.
    absl::Status status;
    uint32_t pass = 0;
    bool begins_pass = false;
    RawBatch raw;
    std::unique_ptr<Batch> batch;
    std::vector<FeatureLookups> columns;  // Their memory: columns become lookups, and back.
    std::vector<int64_t> bad_rows;        // Headers are not among them.
    uint64_t headers = 0;
  };

  void ReadLoop();
  void ParseLoop();
  // Passes over the steps before start_step.
  absl::Status SkipSteps();
  // Adds `rows` neighbouring rows, which begin with a batch's first, to being_skipped_. Returns how
  // many steps they are.
  int64_t CountSkipped(int64_t rows);
  // Reads the rows of `step` into `entry`. Returns false at the end of all passes.
  absl::StatusOr<bool> ReadStep(int64_t step, Entry* entry);
  Step TracedStep(int64_t step) const;
  absl::Status ParseStep(int64_t step, Entry* entry);
  std::unique_ptr<Batch> TakeSpare();
  // Counts the bad rows of the entry that is handed out. Errors: kInvalidArgument (too many).
  absl::Status CountBadRows(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns that error.
  //   last: the error of the row that is one too many
  //   met: how many bad rows there are, up to its batch
  absl::Status TooManyBadRows(const absl::Status& last, uint64_t met) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<BatchSource> source_;
  const BatchReaderOptions options_;

  // Only the reading thread uses these.
  uint32_t pass_ = 0;
  bool pass_started_ = false;
  bool at_first_row_ = false;  // The pass has started, and none of its rows was read.
  Skipped being_skipped_;

  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // mutex_ guards the entries' states. The state says which thread uses the rest of an entry: the
  // reading one (kEmpty), a parser (kRead, kParsing) or that of Next() (kReady).
  std::vector<Entry> entries_;
  int64_t next_step_ ABSL_GUARDED_BY(mutex_);   // Next() hands out this step.
  int64_t parse_step_ ABSL_GUARDED_BY(mutex_);  // The next parser takes this step.
  Skipped skipped_ ABSL_GUARDED_BY(mutex_);
  uint32_t first_pass_ ABSL_GUARDED_BY(mutex_) = 0;  // The pass of the first batch handed out.
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Batch>> spare_ ABSL_GUARDED_BY(mutex_);
  Progress progress_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BATCH_READER_H_
