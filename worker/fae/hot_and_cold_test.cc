#include "worker/fae/hot_and_cold.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/data_place.h"
#include "worker/fae/testing/test_packs.h"

namespace thermocline {
namespace {

constexpr int kRows = 30;  // In batches of 4: 3 hot ones (10 rows) and 5 cold ones.

class HotAndColdTest : public testing::Test {
 protected:
  HotAndColdTest()
      : data_(folder_.Write("log.csv", TestLog(kRows))), job_(MakeJob({"fae.schedule.rate=50"})) {
    WritePack(job_, [](int row) { return row % 3 == 1; });
  }

  Job MakeJob(const std::vector<std::string>& overrides) const {
    return TestJob(data_, folder_.path() + "/hot", overrides);
  }
  static std::unique_ptr<HotAndCold> Open(const Job& job, Step start_step = Step(0),
                                          const std::string& place = "") {
    auto opened = HotAndCold::Open(job, WorkerRank(0), start_step, place);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  // The steps up to the next break.
  static std::vector<int64_t> StepsOf(HotAndCold* order) {
    auto reader = order->OpenReader();
    EXPECT_TRUE(reader.ok()) << reader.status();
    std::vector<int64_t> steps;
    while (true) {
      auto batch = (*reader)->Next();
      EXPECT_TRUE(batch.ok()) << batch.status();
      if (!batch.ok() || *batch == nullptr) return steps;
      steps.push_back((*batch)->step.value());
    }
  }

  const TempFolder folder_;
  const std::string data_;
  const Job job_;
};

TEST_F(HotAndColdTest, TheKindsTakeTurnsUpToTheEnd) {
  const std::unique_ptr<HotAndCold> order = Open(job_);
  std::vector<bool> kinds;
  int64_t next = 0;
  while (true) {
    kinds.push_back(order->reads_hot_rows());
    for (const int64_t step : StepsOf(order.get())) EXPECT_EQ(step, next++);
    const BatchOrder::Break end = order->next_break();
    EXPECT_EQ(end.pass, 1u);
    EXPECT_FALSE(end.is_scored) << "the schedule is fixed";
    if (end.ends_training) break;
    EXPECT_FALSE(end.ends_pass);
    ASSERT_EQ(order->GoTo(order->PlaceBehind(std::nullopt)), absl::OkStatus());
  }
  EXPECT_EQ(next, 8);
  EXPECT_EQ(kinds, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(order->Stats().changes(), 3u);
  EXPECT_EQ(order->Stats().hot_rows(), 5u);
}

TEST_F(HotAndColdTest, BatchesOfOneKindAreNoChangeWhereAPassEnds) {
  const Job job = MakeJob({"fae.schedule.rate=100", "train.passes=2"});
  // Every row is cold.
  WritePack(job, [](int) { return false; });
  const std::unique_ptr<HotAndCold> order = Open(job);
  EXPECT_EQ(StepsOf(order.get()).size(), 8u);
  EXPECT_TRUE(order->next_break().ends_pass);
  ASSERT_EQ(order->GoTo(order->PlaceBehind(std::nullopt)), absl::OkStatus());
  EXPECT_EQ(order->Stats().changes(), 0u);
  EXPECT_EQ(order->next_break().pass, 2u);
}

TEST_F(HotAndColdTest, NoNumberOfScoredRowsMeansAll) {
  Job job = job_;
  job.mutable_fae()->mutable_schedule()->set_fixed(false);
  job.mutable_fae()->mutable_schedule()->set_scored_rows(0);
  const std::unique_ptr<HotAndCold> order = Open(job);
  EXPECT_TRUE(order->next_break().is_scored);
  EXPECT_EQ(order->next_break().scored_rows, 0);
}

TEST_F(HotAndColdTest, GoesOnInAnotherWorkerFromAPlace) {
  Job job = job_;  // A job file would have to hold rows out.
  job.mutable_fae()->mutable_schedule()->set_fixed(false);
  const std::unique_ptr<HotAndCold> first = Open(job);
  EXPECT_TRUE(first->next_break().is_scored);
  EXPECT_EQ(first->next_break().scored_rows, 16384);
  const std::string place = first->PlaceBehind(0.5);
  const Step behind = FirstStepAt(place);
  const std::unique_ptr<HotAndCold> second = Open(job, behind + 1, place);
  EXPECT_EQ(StepsOf(second.get()).front(), behind.value() + 1);
  ASSERT_EQ(first->GoTo(place), absl::OkStatus());
  EXPECT_EQ(first->PlaceBehind(0.6), second->PlaceBehind(0.6));
}

TEST_F(HotAndColdTest, APlaceHasToLieBehindTheBreak) {
  const std::unique_ptr<HotAndCold> order = Open(job_);
  EXPECT_EQ(order->GoTo("\xff").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(order->GoTo("").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(HotAndCold::Open(job_, WorkerRank(0), Step(0), "\xff").status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace thermocline
