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

// Vectors of 5 weights, and a first-order weight.
TableLayout WithFirstOrder() {
  TableLayout layout = MakeLayout();
  FirstOrderWeight& weight = layout.first_order.emplace();
  weight.optimizer.kind = OptimizerKind::kFtrl;
  weight.optimizer.initial_accumulator = 0.5f;
  weight.optimizer.l1 = 2;
  weight.init_scale = 0.125f;
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
  const TableLayout first_order = WithFirstOrder();
  TableLayout alone = first_order;
  alone.dim = 1;
  alone.first_order->distribution = InitialDistribution::kNormal;
  for (const TableLayout& layout :
       {sparse, dense, normal, truncated, constant, first_order, alone}) {
    const auto again = TableLayoutFromProto(TableLayoutToProto(layout));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(*again == layout);
    EXPECT_EQ(DescribeDifference(*again, layout), "");
  }
  EXPECT_EQ(sparse.row_floats(), 12);
  EXPECT_EQ(dense.row_floats(), 18);
  EXPECT_EQ(first_order.row_floats(), 6 + 5 + 2);
  EXPECT_EQ(first_order.vector_dim(), 5);
  EXPECT_EQ(alone.row_floats(), 1 + 2);
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
  bad = good;
  bad.mutable_optimizer()->mutable_adam_w();
  ExpectRefused(bad, "adam_w is set; it is for dense_optimizer alone");
  bad = TableLayoutToProto(WithFirstOrder());
  bad.mutable_first_order()->mutable_optimizer()->mutable_ftrl()->set_l1(-1);
  ExpectRefused(bad, "first-order weights: l1 is -1");
  bad = TableLayoutToProto(WithFirstOrder());
  bad.mutable_first_order()->clear_initializer();
  ExpectRefused(bad, "first-order weights: no initializer is set");
  bad = TableLayoutToProto(WithFirstOrder());
  bad.set_role(TableSpec::DENSE);
  ExpectRefused(bad, "a dense tensor has no first-order weights");
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
  const TableLayout weight = WithFirstOrder();
  EXPECT_EQ(DescribeDifference(here, weight),
            "table 'C3': rows have no first-order weight here, one there");
  EXPECT_EQ(DescribeDifference(weight, here),
            "table 'C3': rows have a first-order weight here, none there");
  there = weight;
  there.first_order->optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(DescribeDifference(weight, there),
            "table 'C3': the first-order weights' optimizer is ftrl here, sgd there");
  there = weight;
  there.first_order->optimizer.l1 = 3;
  EXPECT_EQ(DescribeDifference(weight, there),
            "table 'C3': the first-order weights' optimizer has other settings");
  there = weight;
  there.first_order->init_scale = 3;
  EXPECT_EQ(DescribeDifference(weight, there),
            "table 'C3': the first-order weights' initializer differs");
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

TEST(InitialRowTest, AFirstOrderWeightBeginsByItself) {
  TableLayout layout = WithFirstOrder();
  std::vector<float> row(layout.row_floats(), 77.0f);
  InitialRow(layout, 5, 123, absl::MakeSpan(row));
  std::vector<float> expected(5);
  InitialWeights(5, layout.id, 123, InitialDistribution::kUniform, layout.init_scale,
                 absl::MakeSpan(expected));
  expected.insert(expected.end(), {0.125f, 0.25f, 0.25f, 0.25f, 0.25f, 0.25f, 0.5f, 0});
  EXPECT_EQ(row, expected);
  // It repeats none of the vector's weights.
  layout.first_order->distribution = InitialDistribution::kUniform;
  layout.first_order->init_scale = layout.init_scale;
  InitialRow(layout, 5, 123, absl::MakeSpan(row));
  EXPECT_EQ(std::count(row.begin(), row.begin() + 6, row[5]), 1);
  EXPECT_NE(row[5], 0.125f);
}

}  // namespace
}  // namespace thermocline
