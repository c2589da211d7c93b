// Reads some blocks of a source's rows, spread evenly over them. Blocks between are skipped, not
// parsed.
#ifndef THERMOCLINE_WORKER_DATA_SAMPLED_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_SAMPLED_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/batch.h"

namespace thermocline {

// Decides which blocks are read. The blocks are divided into groups of about 1 / share neighbours.
// One of each group is read; the seed and the group's number decide which one.
class BlockSample {
 public:
  // REQUIRES: 0 < share <= 1
  BlockSample(double share, uint64_t seed) : share_(share), seed_(seed) {}

  // Returns the block that is read of a group.
  int64_t BlockOf(int64_t group) const;

 private:
  int64_t FirstOf(int64_t group) const;

  const double share_;
  const uint64_t seed_;
};

// Each Read() gives one block, which has `batch_size` rows. If the source has any rows, at least
// one block is read.
class SampledSource : public BatchSource {
 public:
  SampledSource(std::unique_ptr<BatchSource> source, const BlockSample& sample)
      : source_(std::move(source)), sample_(sample) {}

  absl::Status Rewind(uint32_t pass) override;
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override;
  absl::StatusOr<int64_t> Skip(int64_t rows) override;
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) override {
    return source_->Parse(raw, batch, bad_rows);
  }
  absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) override {
    return source_->DescribeBadRow(raw, row);
  }
  bool IsHeader(const RawBatch& raw, int64_t row) override { return source_->IsHeader(raw, row); }
  std::string PlaceOf(const RawBatch& raw, int64_t row) override {
    return source_->PlaceOf(raw, row);
  }
  void Cancel() override { source_->Cancel(); }

 private:
  const std::unique_ptr<BatchSource> source_;
  const BlockSample sample_;

  // Only the thread that reads uses these.
  uint32_t pass_ = 0;
  int64_t next_group_ = 0;
  int64_t next_block_ = 0;  // The block that the source would read next.
  bool has_read_ = false;
  bool at_end_ = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_SAMPLED_SOURCE_H_
