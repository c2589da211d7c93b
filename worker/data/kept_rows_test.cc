#include "worker/data/kept_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace thermocline {
namespace {

// Rows of a label, which is their number modulo 7.
class Labels : public BatchSource {
 public:
  explicit Labels(int64_t rows) : rows_(rows) {}
  absl::Status Rewind(uint32_t) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override {
    raw->ClearText();
    raw->first_row = next_;
    raw->num_rows = std::min(batch_size, rows_ - next_);
    next_ += raw->num_rows;
    return raw->num_rows > 0;
  }
  absl::StatusOr<int64_t> Skip(int64_t) override { return 0; }
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>*) override {
    batch->size = static_cast<int>(raw.slice_end - raw.slice_begin);
    batch->labels.resize(batch->size);
    for (int i = 0; i < batch->size; ++i) {
      batch->labels[i] = static_cast<float>((raw.first_row + i) % 7);
    }
    return absl::OkStatus();
  }
  void Cancel() override {}
  absl::Status DescribeBadRow(const RawBatch&, int64_t) override { return absl::OkStatus(); }
  std::string PlaceOf(const RawBatch&, int64_t) override { return ""; }

 private:
  const int64_t rows_;
  int64_t next_ = 0;
};

std::vector<float> LabelsOf(BatchReader* reader) {
  std::vector<float> labels;
  for (int64_t step = 0;; ++step) {
    auto batch = reader->Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok() || *batch == nullptr) return labels;
    EXPECT_EQ((*batch)->step, Step(step));
    labels.insert(labels.end(), (*batch)->labels.begin(), (*batch)->labels.end());
    reader->Recycle(*std::move(batch));
  }
}

std::vector<float> Expected(int rows) {
  std::vector<float> labels;
  for (int i = 0; i < rows; ++i) labels.push_back(static_cast<float>(i % 7));
  return labels;
}

absl::StatusOr<KeptRows> Keep(int64_t rows, int64_t max_rows) {
  BatchReaderOptions options;
  options.batch_size = 4;
  BatchReader reader(std::make_unique<Labels>(rows), options);
  return KeptRows::Read(&reader, max_rows);
}

TEST(KeptRowsTest, TheSameBatchesComeEachTime) {
  const auto kept = Keep(22, 100);
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LabelsOf(kept->OpenReader().get()), Expected(22));
}

TEST(KeptRowsTest, WholeBatchesAreKeptUntilTheyAreEnough) {
  EXPECT_EQ(LabelsOf(Keep(22, 9)->OpenReader().get()), Expected(12));
  EXPECT_EQ(LabelsOf(Keep(22, 8)->OpenReader().get()), Expected(8));
  EXPECT_EQ(LabelsOf(Keep(0, 8)->OpenReader().get()), Expected(0));
}

TEST(KeptRowsTest, AReaderOutlivesTheRows) {
  std::unique_ptr<BatchReader> reader;
  {
    const auto kept = Keep(10, 10);
    reader = kept->OpenReader();
  }
  EXPECT_EQ(LabelsOf(reader.get()), Expected(10));
}

}  // namespace
}  // namespace thermocline
