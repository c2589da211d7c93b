#include "common/math/table_spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

TableLayout MakeLayout() {
  TableLayout layout;
  layout.id = TableId(9);
  layout.name = "C3";
  layout.dim = 6;
  layout.optimizer.kind = OptimizerKind::kAdagrad;
  layout.optimizer.initial_accumulator = 0.25f;
  layout.init_scale = 0.5f;
  return layout;
}

TEST(TableLayoutTest, RoundTrips) {
  TableLayout sparse = MakeLayout();
  TableLayout dense = MakeLayout();
  dense.role = TableRole::kDense;
  dense.optimizer = OptimizerConfig();
  dense.optimizer.kind = OptimizerKind::kAdam;
  dense.optimizer.epsilon = 1e-8f;
  TableLayout normal = MakeLayout();
  normal.distribution = InitialDistribution::kNormal;
  TableLayout truncated = MakeLayout();
  truncated.distribution = InitialDistribution::kTruncatedNormal;
  TableLayout constant = MakeLayout();
  constant.distribution = InitialDistribution::kConstant;
  constant.init_scale = -0.5f;
  sparse.min_count = 3;
  dense.unused_steps = 1000;
  for (const TableLayout& layout : {sparse, dense, normal, truncated, constant}) {
    const auto again = TableLayoutFromProto(TableLayoutToProto(layout));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(*again == layout);
    EXPECT_EQ(DescribeDifference(*again, layout), "");
  }
  EXPECT_EQ(sparse.row_floats(), 12);
  EXPECT_EQ(dense.row_floats(), 18);
}

void ExpectRefused(const TableSpec& proto, const std::string& named) {
  const auto layout = TableLayoutFromProto(proto);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(layout.status().message());
  EXPECT_NE(message.find("table 'C3'"), std::string::npos) << message;
  EXPECT_NE(message.find(named), std::string::npos) << message;
}

// A program from before there were initializers reads the scale alone: it must refuse it.
TEST(TableLayoutTest, OnlyAUniformDistributionHasAScaleThatEarlierProgramsTake) {
  TableLayout layout = MakeLayout();
  EXPECT_EQ(TableLayoutToProto(layout).init_scale(), 0.5f);
  EXPECT_FALSE(TableLayoutToProto(layout).has_initializer());
  layout.distribution = InitialDistribution::kNormal;
  EXPECT_LT(TableLayoutToProto(layout).init_scale(), 0);
}

TEST(TableLayoutTest, RefusesBadValuesAndNamesThem) {
  const TableSpec good = TableLayoutToProto(MakeLayout());
  TableSpec bad = good;
  bad.set_dim(0);
  ExpectRefused(bad, "dim is 0");
  bad.set_dim(kMaxDim + 1);
  ExpectRefused(bad, "dim is 4097");
  bad = good;
  bad.clear_optimizer();
  ExpectRefused(bad, "no optimizer");
  for (float scale : {-0.1f, 1e7f, std::numeric_limits<float>::quiet_NaN()}) {
    bad = good;
    bad.set_init_scale(scale);
    ExpectRefused(bad, "init_scale");
  }
  bad = good;
  bad.mutable_initializer()->mutable_normal()->set_std(-1);
  ExpectRefused(bad, "normal.std is -1");
  bad = good;
  bad.set_role(static_cast<TableSpec::Role>(7));
  ExpectRefused(bad, "role 7");
}

TEST(TableLayoutTest, DescribeDifferenceNamesTheField) {
  const TableLayout here = MakeLayout();
  TableLayout there = here;
  there.dim = 16;
  EXPECT_EQ(DescribeDifference(here, there), "table 'C3': dim is 6 here, 16 there");
  there = here;
  there.id = TableId(8);
  EXPECT_EQ(DescribeDifference(here, there), "table 'C3': id is 9 here, 8 there");
  there = here;
  there.name = "C4";
  EXPECT_EQ(DescribeDifference(here, there), "table 'C3': name is C3 here, C4 there");
  there = here;
  there.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(DescribeDifference(here, there), "table 'C3': optimizer is adagrad here, sgd there");
  there = here;
  there.optimizer.epsilon = 1e-3f;
  EXPECT_NE(DescribeDifference(here, there).find("settings"), std::string::npos);
  there = here;
  there.init_scale = 1;
  EXPECT_EQ(DescribeDifference(here, there), "table 'C3': init_scale is 0.5 here, 1 there");
  there = here;
  there.distribution = InitialDistribution::kNormal;
  EXPECT_EQ(DescribeDifference(here, there),
            "table 'C3': initializer is uniform here, normal there");
  there = here;
  there.min_count = 2;
  EXPECT_EQ(DescribeDifference(here, there), "table 'C3': min_count is 0 here, 2 there");
  there = here;
  there.unused_steps = 2;
  EXPECT_EQ(DescribeDifference(here, there),
            "table 'C3': eviction.unused_steps is 0 here, 2 there");
  there = here;
  there.role = TableRole::kDense;
  EXPECT_NE(DescribeDifference(here, there).find("role"), std::string::npos);
}

// Against the rule, step by step: a look at every multiple of an eighth.
TEST(OldestKeptTest, IsWhatTheLastLookAtAllRowsLeft) {
  for (const uint64_t unused : {1, 2, 7, 8, 16, 19, 100}) {
    TableLayout layout = MakeLayout();
    layout.unused_steps = unused;
    EXPECT_EQ(layout.OldestKept(kNoStep), 0u);
    uint32_t oldest_kept = 0;  // The oldest last change of a row that stays: its step, plus 1.
    for (int64_t step = 0; step < 300; ++step) {
      if ((step + 1) % std::max<int64_t>(1, static_cast<int64_t>(unused) / 8) == 0) {
        while (step - (int64_t{oldest_kept} - 1) >= static_cast<int64_t>(unused)) ++oldest_kept;
      }
      ASSERT_EQ(layout.OldestKept(Step(step)), oldest_kept) << unused << ", step " << step;
    }
  }
  EXPECT_EQ(MakeLayout().OldestKept(Step(1000)), 0u);
}

TEST(InitialRowTest, IsInitialWeightsThenInitialState) {
  const TableLayout layout = MakeLayout();
  std::vector<float> row(layout.row_floats(), 77.0f);
  InitialRow(layout, 5, 123, absl::MakeSpan(row));
  std::vector<float> weights(layout.dim);
  InitialWeights(5, layout.id, 123, InitialDistribution::kUniform, layout.init_scale,
                 absl::MakeSpan(weights));
  weights.resize(layout.row_floats(), 0.25f);
  EXPECT_EQ(row, weights);
}

}  // namespace
}  // namespace thermocline
