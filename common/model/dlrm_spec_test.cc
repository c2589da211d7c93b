#include "common/model/dlrm_spec.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using testing::ElementsAre;

Job JobOf(const std::vector<uint32_t>& bottom, const std::vector<uint32_t>& top) {
  Job job;
  for (const uint32_t width : bottom) job.mutable_dlrm()->add_bottom(width);
  for (const uint32_t width : top) job.mutable_dlrm()->add_top(width);
  return job;
}

ModelInputs InputsOf(int numeric, int vectors, int dim) {
  return {numeric, std::vector<int>(vectors, dim), dim};
}

TEST(DlrmSpec, WidthsOfTheKaggleModel) {
  const ModelSpec spec = DescribeModel(JobOf({512, 256, 64}, {512, 256}), InputsOf(13, 26, 16));
  EXPECT_EQ(spec.preset, "dlrm");
  ASSERT_EQ(spec.mlps.size(), 2u);
  EXPECT_EQ(spec.mlps[0].name, "bottom");
  EXPECT_THAT(spec.mlps[0].widths, ElementsAre(13, 512, 256, 64, 16));
  // 27 vectors: 351 pairs, and the bottom's 16.
  EXPECT_EQ(spec.mlps[1].name, "top");
  EXPECT_THAT(spec.mlps[1].widths, ElementsAre(367, 512, 256, 1));
}

TEST(DlrmSpec, TensorsInTheOrderOfTheirTables) {
  const ModelSpec spec = DescribeModel(JobOf({7}, {5}), InputsOf(3, 2, 4));
  std::vector<std::string> names;
  for (const DenseTensor& tensor : spec.tensors) names.push_back(tensor.name);
  EXPECT_THAT(names,
              ElementsAre("bottom.0.weight", "bottom.0.bias", "bottom.1.weight", "bottom.1.bias",
                          "top.0.weight", "top.0.bias", "top.1.weight", "top.1.bias"));
  EXPECT_EQ(spec.tensors[4].rows(), 4 + 3);
  EXPECT_EQ(spec.tensors[4].cols(), 5);
  EXPECT_EQ(spec.tensors[5].rows(), 1);
  EXPECT_EQ(spec.tensors[5].cols(), 5);
}

TEST(DlrmSpec, NumericOrEmbeddedFeaturesAlone) {
  // The top reads an embedding and the products of three.
  const ModelSpec embedded = DescribeModel(JobOf({}, {4}), InputsOf(0, 3, 8));
  EXPECT_THAT(embedded.mlps[0].widths, ElementsAre());
  EXPECT_THAT(embedded.mlps[1].widths, ElementsAre(8 + 3, 4, 1));
  EXPECT_EQ(embedded.tensors.size(), 4u);
  // The top reads the bottom, whose width is default_table's dim.
  const ModelSpec numeric = DescribeModel(JobOf({}, {4}), InputsOf(5, 0, 8));
  EXPECT_THAT(numeric.mlps[0].widths, ElementsAre(5, 8));
  EXPECT_THAT(numeric.mlps[1].widths, ElementsAre(8, 4, 1));
  EXPECT_EQ(numeric.tensors.size(), 6u);
}

TEST(DlrmSpec, NamesTheFirstWrongField) {
  const auto error_of = [](const Job& job, const ModelInputs& inputs) {
    const std::optional<ModelError> error = CheckModel(job, inputs);
    return error.has_value() ? error->field + " " + error->what : "";
  };
  EXPECT_EQ(error_of(JobOf({8}, {8}), InputsOf(1, 1, 4)), "");
  EXPECT_EQ(error_of(Job(), InputsOf(1, 1, 4)), "dlrm is missing; a job needs a model");
  EXPECT_EQ(error_of(JobOf({8, 0}, {0}), InputsOf(1, 1, 4)),
            "dlrm.bottom[1] is 0; it must be at least 1");
  EXPECT_EQ(error_of(JobOf({8}, {65537}), InputsOf(1, 1, 4)),
            "dlrm.top[0] is 65537; it must be at most 65536");
  EXPECT_EQ(error_of(JobOf({8}, {8}), InputsOf(0, 1, 4)),
            "dlrm.bottom[0] is set, but data.num_dense is 0: it has no input");
}

}  // namespace
}  // namespace thermocline
