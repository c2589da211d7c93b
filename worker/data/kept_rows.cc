#include "worker/data/kept_rows.h"

#include <string>
#include <utility>

#include "common/base/status_macros.h"

namespace thermocline {
namespace {

using Batches = std::vector<std::unique_ptr<Batch>>;

// Hands out kept batches. RawBatch::first_row is the index of the batch.
class KeptSource : public BatchSource {
 public:
  explicit KeptSource(std::shared_ptr<const Batches> batches) : batches_(std::move(batches)) {}

  absl::Status Rewind(uint32_t) override {
    next_ = 0;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Read(int64_t, RawBatch* raw) override {
    if (next_ == batches_->size()) return false;
    raw->ClearText();
    raw->first_row = static_cast<int64_t>(next_);
    raw->num_rows = (*batches_)[next_]->global_samples;
    ++next_;
    raw->pass_progress = static_cast<double>(next_) / static_cast<double>(batches_->size());
    return true;
  }
  absl::StatusOr<int64_t> Skip(int64_t) override { return 0; }
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>*) override {
    *batch = *(*batches_)[raw.first_row];
    return absl::OkStatus();
  }
  void Cancel() override {}
  absl::Status DescribeBadRow(const RawBatch&, int64_t) override { return absl::OkStatus(); }
  std::string PlaceOf(const RawBatch&, int64_t) override { return "a row that was kept"; }

 private:
  const std::shared_ptr<const Batches> batches_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<KeptRows> KeptRows::Read(BatchReader* reader, int64_t max_rows) {
  auto batches = std::make_shared<Batches>();
  int64_t rows = 0;
  while (rows < max_rows) {
    ASSIGN_OR_RETURN(std::unique_ptr<Batch> batch, reader->Next());
    if (batch == nullptr) break;
    rows += batch->size;
    batches->push_back(std::move(batch));
  }
  KeptRows kept;
  kept.batches_ = std::move(batches);
  kept.of_reader_ = reader->progress();
  return kept;
}

std::unique_ptr<BatchReader> KeptRows::OpenReader() const {
  BatchReaderOptions options;
  options.batch_size = 1;  // It is not used: KeptSource hands out whole batches.
  options.is_held_out = true;
  return std::make_unique<BatchReader>(std::make_unique<KeptSource>(batches_), options);
}

}  // namespace thermocline
