// Hands out one worker's slice of every global batch, read and parsed ahead by threads of its own.
//
// A global batch is `batch_size` neighbouring rows of the split (the last one of a pass may be
// shorter). Worker r of W gets its rows [B*r/W, B*(r+1)/W), where B is the number of rows: maybe
// none, but every worker sees every step. A malformed line that may be skipped keeps its place in
// the global batch and is missing from its worker's slice.
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

namespace thermocline {

// The first row of worker `rank`'s slice of a global batch of `rows`; of rank + 1: its end.
inline int64_t SliceBegin(int64_t rows, int64_t rank, int64_t num_workers) {
  return rows * rank / num_workers;
}

struct BatchReaderOptions {
  int64_t batch_size = 0;  // Rows of a global batch. REQUIRED
  WorkerRank rank{0};
  uint32_t num_workers = 1;
  uint32_t passes = 1;
  uint64_t max_steps = 0;  // 0: no limit
  // Malformed lines of the worker's own slices that may be skipped. A line counts once, in the
  // first pass that is handed out.
  uint64_t max_bad_lines = 0;
  // The first step that is handed out. Steps and rows are those of a reader that begins at step 0.
  Step start_step{0};
  uint32_t read_ahead_batches = 4;  // At least 1, and parser_threads.
  // Beside the thread that reads (and inflates). The batches are the same for any number.
  uint32_t parser_threads = 1;
  StretchPlace place;  // Of the source. REQUIRES: place.first_step <= start_step
  LookupLimit lookups;
};

// Next() is for one thread at a time; all else is thread-safe.
class BatchReader {
 public:
  // Starts reading at once.
  BatchReader(std::unique_ptr<BatchSource> source, const BatchReaderOptions& options);
  ~BatchReader();  // Stops reading and waits for the threads.
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  // The next batch, or null after the last. Waits until it is parsed. An error surfaces in its
  // place: after every batch before it; each further call returns it again. Errors:
  // kInvalidArgument (a malformed line beyond max_bad_lines: file, line, what was wrong; where some
  // were allowed also how many, how many there were, and what the first one was; a row with which
  // the batch has too many lookups: file, line, feature and table),
  // kFailedPrecondition (the data ends before start_step),
  //         kDataLoss, kNotFound (of the file), kCancelled.
  absl::StatusOr<std::unique_ptr<Batch>> Next();

  // Gives a batch back, so that its memory serves a later one. Optional; null is ignored.
  void Recycle(std::unique_ptr<Batch> batch);

  // Ends the reading: Next() returns kCancelled from now on, also where it waits already.
  void Cancel();

  // What lies before start_step.
  using Skipped = SkippedBatches;
  // Known once Next() has returned without an error.
  Skipped skipped() const;

  // Of the batches handed out so far.
  struct Progress {
    double fraction = 0;  // In [0, 1]: of all passes, or of max_steps where that is nearer.
    int64_t steps = 0;
    uint64_t samples = 0;  // This worker's.
    uint64_t padding_ids = 0;
    uint64_t bad_lines = 0;
    std::string first_bad_line;     // What was wrong with the first; "" where there is none.
    uint64_t repeated_headers = 0;  // Left out, and no bad lines; counted as these are.
  };
  Progress progress() const;

 private:
  enum class EntryState { kEmpty, kRead, kParsing, kReady };
  // One of the batches ahead; the steps go round the entries.
  struct Entry {
    EntryState state = EntryState::kEmpty;
    bool end = false;  // No batch: reading ended here, well or with `status`.
    absl::Status status;
    uint32_t pass = 0;
    bool begins_pass = false;
    RawBatch raw;
    std::unique_ptr<Batch> batch;
    std::vector<int64_t> bad_rows;  // Without headers.
    uint64_t headers = 0;
  };

  void ReadLoop();
  void ParseLoop();
  // Passes over the steps before start_step.
  absl::Status SkipSteps();
  // Adds `rows` neighbouring rows, from a batch's first on, to what was skipped; returns how many
  // steps they are.
  int64_t CountSkipped(int64_t rows);
  // Reads the rows of `step` into `entry`; false at the end of all passes.
  absl::StatusOr<bool> ReadStep(int64_t step, Entry* entry);
  absl::Status ParseStep(int64_t step, Entry* entry);
  std::unique_ptr<Batch> TakeSpare();
  // Adds the bad rows of the entry that is handed out, or says that there are too many.
  absl::Status CountBadRows(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `last`: what is wrong with the row that is one too many. `met`: bad rows through its batch.
  absl::Status TooManyBadRows(const absl::Status& last, uint64_t met) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<BatchSource> source_;
  const BatchReaderOptions options_;

  // Of the reading thread alone.
  uint32_t pass_ = 0;
  bool pass_started_ = false;
  bool at_first_row_ = false;  // Of the pass, once it has started.
  Skipped being_skipped_;

  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  // A entry belongs to whom its state says: reader (kEmpty), parser (kRead, kParsing), Next()
  // (kReady). Its state is guarded by mutex_.
  std::vector<Entry> entries_;
  int64_t next_step_ ABSL_GUARDED_BY(mutex_);   // To be handed out.
  int64_t parse_step_ ABSL_GUARDED_BY(mutex_);  // To be taken by a parser.
  Skipped skipped_ ABSL_GUARDED_BY(mutex_);
  uint32_t first_pass_ ABSL_GUARDED_BY(mutex_) = 0;  // Of the batches handed out.
  absl::Status final_status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Batch>> spare_ ABSL_GUARDED_BY(mutex_);
  Progress progress_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BATCH_READER_H_
