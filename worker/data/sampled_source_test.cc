#include "worker/data/sampled_source.h"

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

// Rows 0 .. rows - 1; tells which it read.
class CountingSource : public BatchSource {
 public:
  CountingSource(int64_t rows, std::vector<int64_t>* read) : rows_(rows), read_(*read) {}

  absl::Status Rewind(uint32_t) override {
    next_ = 0;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override {
    raw->num_rows = std::min(batch_size, rows_ - next_);
    for (int64_t i = 0; i < raw->num_rows; ++i) read_.push_back(next_++);
    return raw->num_rows > 0;
  }
  absl::StatusOr<int64_t> Skip(int64_t rows) override {
    const int64_t skipped = std::min(rows, rows_ - next_);
    next_ += skipped;
    return skipped;
  }
  absl::Status Parse(const RawBatch&, Batch*, std::vector<int64_t>*) override {
    return absl::OkStatus();
  }
  absl::Status DescribeBadRow(const RawBatch&, int64_t) override { return absl::OkStatus(); }
  std::string PlaceOf(const RawBatch&, int64_t) override { return ""; }
  void Cancel() override {}

 private:
  const int64_t rows_;
  std::vector<int64_t>& read_;
  int64_t next_ = 0;
};

std::vector<int64_t> RowsOf(int64_t rows, double share, uint64_t seed, int64_t block_rows = 10) {
  std::vector<int64_t> read;
  SampledSource source(std::make_unique<CountingSource>(rows, &read), BlockSample(share, seed));
  EXPECT_TRUE(source.Rewind(0).ok());
  RawBatch raw;
  for (;;) {
    const auto some = source.Read(block_rows, &raw);
    EXPECT_TRUE(some.ok());
    if (!*some) return read;
  }
}

TEST(SampledSource, ReadsOneBlockOfEachGroup) {
  const std::vector<int64_t> read = RowsOf(100000, 0.05, 1);
  EXPECT_EQ(read.size(), 5000u);
  EXPECT_TRUE(std::is_sorted(read.begin(), read.end()));
  std::set<int64_t> groups, places;
  for (const int64_t row : read) {
    groups.insert(row / 200);
    places.insert(row / 10 % 20);
  }
  EXPECT_EQ(groups.size(), 500u);
  EXPECT_EQ(places.size(), 20u);  // Not always at the same place of a group.
}

TEST(SampledSource, TheSeedDecides) {
  EXPECT_EQ(RowsOf(10000, 0.1, 1), RowsOf(10000, 0.1, 1));
  EXPECT_NE(RowsOf(10000, 0.1, 1), RowsOf(10000, 0.1, 2));
}

TEST(SampledSource, OddShares) {
  for (const double share : {0.3, 0.5, 0.7, 0.999}) {
    const std::vector<int64_t> read = RowsOf(100000, share, 3);
    EXPECT_NEAR(static_cast<double>(read.size()) / 100000, share, 0.002);
    EXPECT_EQ(std::set<int64_t>(read.begin(), read.end()).size(), read.size());
  }
}

TEST(SampledSource, ThereIsAlwaysABlock) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::vector<int64_t> read = RowsOf(15, 0.0001, seed);
    EXPECT_THAT(read, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
  EXPECT_TRUE(RowsOf(0, 0.5, 1).empty());
}

}  // namespace
}  // namespace thermocline
