#include "deploy/bench/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/disk/npy.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Sweep, KnobsHaveTheirEndsAndAsManyPointsAsAreWanted) {
  const auto values = [](const std::string& knob, int points) {
    std::vector<std::string> values;
    const auto plan = PlanSweep(knob, points);
    for (const SweepPoint& point : *plan) values.push_back(point.value);
    return values;
  };
  EXPECT_THAT(values("batch", 1), ElementsAre("base", "200"));
  EXPECT_THAT(values("batch", 2), ElementsAre("base", "200", "12800"));
  EXPECT_THAT(values("batch", 4), ElementsAre("base", "200", "800", "3200", "12800"));
  EXPECT_THAT(values("hash,device", 2), ElementsAre("base", "1e5", "1e7", "CPU", "CUDA"));
  EXPECT_EQ(PlanSweep("size", 2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(PlanSweep("batch,", 2).status().message(), HasSubstr("'' is no knob"));
  std::set<std::string> knobs;
  const auto all = PlanSweep("", 2);
  for (const SweepPoint& point : *all) knobs.insert(point.knob);
  EXPECT_EQ(knobs.size(), SweepKnobs().size() + 1);
}

// Every point of every knob has a job that `train` takes, of its shape.
TEST(Sweep, EveryPointIsAJob) {
  const auto plan = PlanSweep("", 4);
  for (const SweepPoint& point : *plan) {
    const SweepShape& shape = point.shape;
    const int64_t steps = SweepSteps(shape, 40);
    EXPECT_GE(steps, 5);
    EXPECT_LE(steps, 40);
    const auto job = SweepJob(shape, steps, "/data");
    ASSERT_TRUE(job.ok()) << point.knob << " " << point.value << ": " << job.status();
    EXPECT_EQ(job->feature_size(), shape.sparse);
    EXPECT_EQ(job->dlrm().bottom_size(), shape.layers);
    EXPECT_EQ(job->train().batch_size(), static_cast<uint32_t>(shape.batch));
    EXPECT_EQ(job->train().max_steps(), static_cast<uint64_t>(steps));
    EXPECT_EQ(job->has_cache(), !shape.placement.empty() && shape.placement != "REMOTE");
    // The data last for all steps, are whole batches, and are no more than they may be.
    const int64_t rows = SweepRows(shape, steps);
    EXPECT_EQ(rows % shape.batch, 0);
    EXPECT_GE(rows * job->train().passes(), steps * shape.batch);
    EXPECT_LE(rows * 4 * (shape.dense + shape.sparse * shape.lookups),
              std::max<int64_t>(64 << 20, 4 * shape.batch * (shape.dense + 4096)));
  }
}

TEST(Sweep, PlacesSmallTablesAndLargeOnes) {
  SweepShape shape;
  shape.sparse = 4;
  shape.placement = "DEVICE, REMOTE";
  const auto job = SweepJob(shape, 5, "/data");
  ASSERT_TRUE(job.ok()) << job.status();
  std::vector<int> placements;
  for (const Table& table : job->table()) placements.push_back(table.settings().placement());
  EXPECT_THAT(placements, ElementsAre(TableSettings::REMOTE, TableSettings::DEVICE,
                                      TableSettings::REMOTE, TableSettings::DEVICE));
}

TEST(Sweep, DataHaveTheirShape) {
  SweepShape shape;
  shape.dense = 3;
  shape.sparse = 2;
  shape.lookups = 4;
  shape.hash = 300;
  shape.placement = "DEVICE, REMOTE";  // The second table is the small one: of 3 rows.
  const std::string folder = testing::TempDir() + "/sweep_data";
  ASSERT_TRUE(WriteSweepData(shape, 500, folder).ok());
  const auto dense = MappedNpy::Open(folder + "/train_dense.npy");
  const auto sparse = MappedNpy::Open(folder + "/train_sparse.npy");
  const auto labels = MappedNpy::Open(folder + "/train_labels.npy");
  ASSERT_TRUE(dense.ok() && sparse.ok() && labels.ok());
  EXPECT_THAT((*dense)->header().shape, ElementsAre(500, 3));
  EXPECT_THAT((*sparse)->header().shape, ElementsAre(500, 8));
  EXPECT_THAT((*labels)->header().shape, ElementsAre(500, 1));
  const auto* ids = reinterpret_cast<const int32_t*>((*sparse)->data());
  int32_t most[2] = {0, 0};
  for (int i = 0; i < 500 * 8; ++i) most[i % 8 / 4] = std::max(most[i % 8 / 4], ids[i]);
  EXPECT_GT(most[0], 100);
  EXPECT_LT(most[0], 300);
  EXPECT_EQ(most[1], 2);
  EXPECT_EQ(WriteSweepData(shape, 1, "/proc/no").code(), absl::StatusCode::kUnavailable);
}

TEST(Sweep, TableComparesWithTheBaseAndSaysWhatIsNotThere) {
  std::vector<SweepPoint> points(3);
  points[0].knob = points[0].value = "base";
  points[1].knob = points[2].knob = "placement";
  points[1].value = "DEVICE, REMOTE";
  points[2].value = "CACHED";
  points[2].absence = "no room, none";
  for (const int i : {0, 1}) {
    RunFigures run;
    run.steps = 7;
    run.samples_per_s = i == 0 ? 100 : 250;
    run.wire_bytes_per_sample = 64;
    run.stage_us = {{"forward", 1}, {"backward dense", 2}, {"wait for rows", 0.5}};
    points[static_cast<size_t>(i)].figures = run;
  }
  const std::string text = RenderSweep(points);
  EXPECT_THAT(text, testing::ContainsRegex(
                        "placement +DEVICE, REMOTE +250 +2.50 +64 +- +0.00 +0.50 +3.00 +0.00"));
  EXPECT_THAT(text, HasSubstr("\nplacement CACHED: no room, none\n"));
  const std::vector<std::string> lines = absl::StrSplit(SweepCsv(points), '\n');
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[0], testing::EndsWith(",us forward,us backward dense,us wait for rows"));
  EXPECT_THAT(lines[2], StartsWith("placement,\"DEVICE, REMOTE\",64,16,1,100000,16,800,64,2,"));
  EXPECT_THAT(lines[3], HasSubstr("\"no room, none\""));
}

}  // namespace
}  // namespace thermocline
