// The order in which a worker trains its batches.
#ifndef THERMOCLINE_WORKER_DATA_BATCH_ORDER_H_
#define THERMOCLINE_WORKER_DATA_BATCH_ORDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "worker/data/batch_reader.h"

namespace thermocline {

class Dataset;

// Batches follow each other up to a break. There the servers must have the whole model before the
// next batch is trained, and what comes next may depend on how well that model scores. The end of
// the data is the last break.
//
// Implementations: PassByPass; HotAndCold (worker/fae). Not thread-safe.
class BatchOrder {
 public:
  struct Break {
    bool ends_training = true;  // No batch follows.
    bool ends_pass = true;      // The batch before the break is the last of its pass.
    uint32_t pass = 0;          // The pass of that batch, from 1.
    // Whether held-out rows have to be scored for the order; how many, from the first on (0: all);
    // and what in the job file asks for it.
    bool is_scored = false;
    int64_t scored_rows = 0;
    const char* scored_for = "";
  };

  virtual ~BatchOrder() = default;

  // Reads the batches from the place at hand to the next break.
  virtual absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader() = 0;
  // Whether these read no row but those that every worker holds (worker/rows/hot_rows.h).
  virtual bool reads_hot_rows() const { return false; }

  virtual Break next_break() const = 0;
  // The place behind the next break (common/job/data_place.h). logloss: of the rows that are scored
  // there; absent where none are.
  virtual std::string PlaceBehind(std::optional<double> logloss) const = 0;
  // Goes on from `place`, which PlaceBehind() gave here or in another worker. Errors: kInternal,
  // kDataLoss (no place behind the break).
  virtual absl::Status GoTo(absl::string_view place) = 0;
};

// The training rows as they stand in the data, pass by pass, without a break before their end.
class PassByPass : public BatchOrder {
 public:
  // `dataset` outlives it.
  PassByPass(Dataset* dataset, uint32_t passes, WorkerRank rank, uint32_t num_workers,
             Step start_step)
      : dataset_(dataset),
        passes_(passes),
        rank_(rank),
        num_workers_(num_workers),
        start_step_(start_step) {}

  absl::StatusOr<std::unique_ptr<BatchReader>> OpenReader() override;
  Break next_break() const override;
  std::string PlaceBehind(std::optional<double> logloss) const override;
  absl::Status GoTo(absl::string_view place) override;

 private:
  Dataset* const dataset_;
  const uint32_t passes_;
  const WorkerRank rank_;
  const uint32_t num_workers_;
  const Step start_step_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_BATCH_ORDER_H_
