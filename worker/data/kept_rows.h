// Keeps rows that are read again and again in memory, as the batches that a reader handed out.
#ifndef THERMOCLINE_WORKER_DATA_KEPT_ROWS_H_
#define THERMOCLINE_WORKER_DATA_KEPT_ROWS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/batch_reader.h"

namespace thermocline {

// Immutable and thread-safe.
class KeptRows {
 public:
  // Keeps the batches of `reader` (one worker, one pass) until they have `max_rows` or the data
  // end. Errors: the reader's.
  static absl::StatusOr<KeptRows> Read(BatchReader* reader, int64_t max_rows);

  // Opens a reader of the same batches; it may outlive this object.
  std::unique_ptr<BatchReader> OpenReader() const;
  // The progress of Read's `reader` at its end.
  const BatchReader::Progress& of_reader() const { return of_reader_; }

 private:
  using Batches = std::vector<std::unique_ptr<Batch>>;

  std::shared_ptr<const Batches> batches_;
  BatchReader::Progress of_reader_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_KEPT_ROWS_H_
