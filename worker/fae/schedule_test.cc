#include "worker/fae/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace thermocline {
namespace {

constexpr int64_t kBatch = 100;

class ScheduleTest : public testing::Test {
 protected:
  ScheduleTest() {
    job_.mutable_train()->set_batch_size(kBatch);
    job_.mutable_train()->set_passes(2);
    Fae::Schedule* const schedule = job_.mutable_fae()->mutable_schedule();
    schedule->set_rate(50);
    schedule->set_min_rate(1);
    schedule->set_max_rate(100);
    schedule->set_falls_to_double(4);
    SetBatches(5, 4);
  }
  // The last batch of each kind has 30 rows.
  void SetBatches(int64_t hot, int64_t cold) {
    counts_ = {};
    for (const auto& [kind, batches] : {std::pair<int, int64_t>(1, hot), {0, cold}}) {
      counts_.batches[kind] = batches;
      counts_.rows[kind] = batches == 0 ? 0 : (batches - 1) * kBatch + 30;
    }
  }
  // All stretches as "h0+3 c0+2", a pass after the other, as losses[i] follows from stretch i.
  std::string Stretches(const std::vector<double>& losses = {}) {
    std::string all;
    ScheduleState state = FirstSchedule(job_, counts_);
    for (size_t i = 0; StretchOf(job_, counts_, state).num_batches > 0; ++i) {
      const PackStretch stretch = StretchOf(job_, counts_, state);
      if (stretch.begins_pass && stretch.pass > 0) all += "| ";
      all += std::string(stretch.is_hot ? "h" : "c") + std::to_string(stretch.first_batch) + "+" +
             std::to_string(stretch.num_batches) + " ";
      std::optional<double> loss;
      if (i < losses.size() && ScoresAfter(job_, counts_, state)) loss = losses[i];
      rates_.push_back(state.rate());
      state = NextSchedule(job_, counts_, state, loss);
    }
    return all;
  }

  Job job_;
  PackCounts counts_;
  std::vector<double> rates_;
};

TEST_F(ScheduleTest, TakesTurnsUntilBothKindsAreThrough) {
  EXPECT_EQ(Stretches(), "h0+3 c0+2 h3+2 c2+2 | h0+3 c0+2 h3+2 c2+2 ");
}

TEST_F(ScheduleTest, WhatIsLeftOfOneKindIsOneStretch) {
  SetBatches(2, 7);
  EXPECT_EQ(Stretches(), "h0+1 c0+4 h1+1 c4+3 | h0+1 c0+4 h1+1 c4+3 ");
  job_.mutable_fae()->mutable_schedule()->set_rate(1);
  EXPECT_EQ(Stretches(), "h0+1 c0+1 h1+1 c1+6 | h0+1 c0+1 h1+1 c1+6 ");
  SetBatches(0, 3);
  EXPECT_EQ(Stretches(), "c0+3 | c0+3 ");
  SetBatches(3, 0);
  EXPECT_EQ(Stretches(), "h0+3 | h0+3 ");
}

TEST_F(ScheduleTest, EndsWithTheLastStep) {
  job_.mutable_train()->set_max_steps(4);
  EXPECT_EQ(Stretches(), "h0+3 c0+1 ");
  const ScheduleState first = FirstSchedule(job_, counts_);
  EXPECT_TRUE(ScoresAfter(job_, counts_, first));
  EXPECT_FALSE(ScoresAfter(job_, counts_, NextSchedule(job_, counts_, first, 0.5)));
}

TEST_F(ScheduleTest, ALossThatRisesHalvesTheRateAndFourThatFallDoubleIt) {
  SetBatches(100, 100);
  Stretches({0.9, 0.8, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3});
  const std::vector<double> rates(rates_.begin(), rates_.begin() + 9);
  EXPECT_EQ(rates, (std::vector<double>{50, 50, 50, 25, 25, 25, 25, 50, 50}));
}

TEST_F(ScheduleTest, TheRateHasBounds) {
  SetBatches(1000, 1000);
  job_.mutable_fae()->mutable_schedule()->set_min_rate(30);
  Stretches({0.1, 0.2, 0.3, 0.4});
  EXPECT_EQ(rates_[4], 30);
  rates_.clear();
  job_.mutable_fae()->mutable_schedule()->set_max_rate(60);
  job_.mutable_fae()->mutable_schedule()->set_falls_to_double(1);
  Stretches({0.9, 0.8});
  EXPECT_EQ(rates_[2], 60);
}

TEST_F(ScheduleTest, ALossThatStaysIsNeitherARiseNorAFall) {
  SetBatches(1000, 1000);
  job_.mutable_fae()->mutable_schedule()->set_falls_to_double(2);
  job_.mutable_fae()->mutable_schedule()->set_rate(10);
  Stretches({0.9, 0.8, 0.8, 0.7, 0.6});
  EXPECT_EQ(rates_[4], 10);
  EXPECT_EQ(rates_[5], 20);
}

TEST_F(ScheduleTest, AFixedScheduleScoresNothing) {
  job_.mutable_fae()->mutable_schedule()->set_fixed(true);
  EXPECT_FALSE(ScoresAfter(job_, counts_, FirstSchedule(job_, counts_)));
}

TEST_F(ScheduleTest, EveryStepIsFoundAgain) {
  job_.mutable_fae()->mutable_schedule()->set_fixed(true);
  const ScheduleState first = FirstSchedule(job_, counts_);
  // h0+3 c0+2 h3+2 c2+2 in each pass; the 18th is behind the last.
  const std::vector<int64_t> begins = {0, 0, 0, 3, 3, 5, 5, 7, 7};
  for (int64_t step = 0; step < 18; ++step) {
    const auto state = ScheduleAt(job_, counts_, first, Step(step));
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->first_step(), step / 9 * 9 + begins[step % 9]) << step;
    EXPECT_EQ(state->pass(), step / 9);
  }
  const auto last = ScheduleAt(job_, counts_, first, Step(18));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(FromStep(StretchOf(job_, counts_, *last), Step(18)).num_batches, 0);
  EXPECT_EQ(ScheduleAt(job_, counts_, first, Step(19)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ScheduleTest, AStepBehindAChangeThatIsNotDecidedIsAtTheEndOfTheStretchBefore) {
  const ScheduleState first = FirstSchedule(job_, counts_);
  const auto at_end = ScheduleAt(job_, counts_, first, Step(3));
  ASSERT_TRUE(at_end.ok()) << at_end.status();
  EXPECT_EQ(at_end->first_step(), 0);
  EXPECT_EQ(ScheduleAt(job_, counts_, first, Step(4)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const ScheduleState second = NextSchedule(job_, counts_, first, 0.5);
  EXPECT_EQ(ScheduleAt(job_, counts_, second, Step(3))->first_step(), 3);
  EXPECT_EQ(ScheduleAt(job_, counts_, second, Step(2)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ScheduleTest, APackOfFewerBatchesIsAnother) {
  ScheduleState state = FirstSchedule(job_, counts_);
  state.set_hot_batches(6);
  EXPECT_EQ(ScheduleAt(job_, counts_, state, Step(0)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ScheduleTest, APlaceThatCantBeIsDataLoss) {
  ScheduleState state = FirstSchedule(job_, counts_);
  state.set_hot_batches(uint64_t{1} << 63);
  EXPECT_EQ(ScheduleAt(job_, counts_, state, Step(0)).status().code(), absl::StatusCode::kDataLoss);
  state = FirstSchedule(job_, counts_);
  state.set_first_step(-1);
  EXPECT_EQ(ScheduleAt(job_, counts_, state, Step(-1)).status().code(),
            absl::StatusCode::kDataLoss);
  state = FirstSchedule(job_, counts_);
  state.set_rate(NAN);
  EXPECT_EQ(ScheduleAt(job_, counts_, state, Step(0)).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ScheduleTest, TheRestOfAStretchKeepsItsPlaces) {
  const PackStretch whole = StretchOf(job_, counts_, FirstSchedule(job_, counts_));
  const PackStretch rest = FromStep(whole, Step(2));
  EXPECT_EQ(rest.first_batch, 2);
  EXPECT_EQ(rest.num_batches, 1);
  EXPECT_EQ(rest.first_step, Step(2));
  EXPECT_TRUE(whole.begins_pass);
  EXPECT_FALSE(rest.begins_pass);
  EXPECT_DOUBLE_EQ(rest.progress_before, 2.0 / 18);
  EXPECT_DOUBLE_EQ(rest.progress_through, 3.0 / 18);
}

// As if all batches before had been handed out, one by one.
TEST_F(ScheduleTest, CountsTheRowsBefore) {
  job_.mutable_fae()->mutable_schedule()->set_fixed(true);
  ScheduleState state = FirstSchedule(job_, counts_);
  BatchReader::Skipped expected;
  for (; StretchOf(job_, counts_, state).num_batches > 0;
       state = NextSchedule(job_, counts_, state, std::nullopt)) {
    const PackStretch stretch = StretchOf(job_, counts_, state);
    for (int64_t i = 0; i < stretch.num_batches; ++i) {
      const PackStretch rest = FromStep(stretch, stretch.first_step + i);
      const BatchReader::Skipped before =
          SkippedBefore(job_, counts_, state, rest, WorkerRank(1), 3);
      EXPECT_EQ(before.steps, rest.first_step.value());
      EXPECT_EQ(before.samples, expected.samples);
      EXPECT_EQ(before.global_samples, expected.global_samples);
      const int64_t batch = rest.first_batch + 1;
      const int64_t rows = batch == counts_.batches[rest.is_hot ? 1 : 0] ? 30 : kBatch;
      expected.samples += rows * 2 / 3 - rows / 3;
      expected.global_samples += rows;
    }
  }
}

}  // namespace
}  // namespace thermocline
