#include "deploy/report/left_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

namespace thermocline {
namespace {

TEST(LeftStats, ANumberThatThereIsNotStaysNone) {
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "/worker-0.json")
      << R"({"step": 7, "loss": null, "auc": null, "samples": 20,
             "task_losses": [{"task": "click", "loss": 0.5}, {"task": "buy", "loss": null}]})";
  const StatsSnapshot left = ReadLeftStats(folder);
  ASSERT_EQ(left.workers.size(), 1u);
  ASSERT_TRUE(left.workers[0].stats.ok()) << left.workers[0].stats.status();
  const WorkerStats& stats = *left.workers[0].stats;
  EXPECT_EQ(stats.step(), 7);
  EXPECT_EQ(stats.samples(), 20u);
  EXPECT_TRUE(std::isnan(stats.loss()));
  ASSERT_EQ(stats.task_losses_size(), 2);
  EXPECT_EQ(stats.task_losses(0).loss(), 0.5);
  EXPECT_TRUE(std::isnan(stats.task_losses(1).loss())) << "no sample had the label";
}

}  // namespace
}  // namespace thermocline
