// Rows [begin, end) of a file in Criteo's text form, as a BatchSource.
#ifndef THERMOCLINE_WORKER_DATA_TSV_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_TSV_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/data/batch_source.h"
#include "worker/data/line_stream.h"
#include "worker/data/tsv_parser.h"

namespace thermocline {

class TsvSource : public BatchSource {
 public:
  // end < 0: through the end of the file. Otherwise the file has at least `end` rows, as counted;
  // if it has fewer when it is read, that is kDataLoss. `on_scan`: while rows are passed over.
  TsvSource(std::string path, int64_t begin, int64_t end, int num_dense,
            std::vector<std::string> feature_names, OnScan on_scan);

  absl::Status Rewind() override;
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override;
  absl::StatusOr<int64_t> Skip(int64_t rows) override;
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) override;
  absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) override;
  void Cancel() override { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  absl::Status TooFewRows(int64_t found) const;

  const std::string path_;
  const int64_t begin_;
  const int64_t end_;
  const TsvParser parser_;
  const OnScan on_scan_;
  std::atomic<bool> cancelled_{false};

  // Of the thread that reads.
  std::unique_ptr<LineStream> lines_;
  int64_t next_row_ = 0;  // of the file
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TSV_SOURCE_H_
