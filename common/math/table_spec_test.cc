#include "common/math/table_spec.h"

#include <gtest/gtest.h>

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
  for (const TableLayout& layout : {sparse, dense}) {
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
  there.role = TableRole::kDense;
  EXPECT_NE(DescribeDifference(here, there).find("role"), std::string::npos);
}

TEST(InitialRowTest, IsInitialWeightsThenInitialState) {
  const TableLayout layout = MakeLayout();
  std::vector<float> row(layout.row_floats(), 77.0f);
  InitialRow(layout, 5, 123, absl::MakeSpan(row));
  std::vector<float> weights(layout.dim);
  InitialWeights(5, layout.id, 123, layout.init_scale, absl::MakeSpan(weights));
  weights.resize(layout.row_floats(), 0.25f);
  EXPECT_EQ(row, weights);
}

}  // namespace
}  // namespace thermocline
