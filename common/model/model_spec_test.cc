#include "common/model/model_spec.h"

#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/presets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Job JobOf(const std::string& text) {
  Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

// Features C1, C2, ..., each with a table of its own.
ModelInputs InputsOf(int numeric, const std::vector<int>& dims, int default_dim = 4) {
  ModelInputs inputs;
  inputs.numeric = numeric;
  inputs.default_dim = default_dim;
  for (const int dim : dims) {
    const std::string name = absl::StrCat("C", inputs.features.size() + 1);
    inputs.features.push_back({name, name, dim, false});
  }
  return inputs;
}

std::vector<std::string> TensorsOf(const ModelSpec& spec) {
  std::vector<std::string> tensors;
  for (const DenseTensor& t : spec.tensors) {
    tensors.push_back(t.is_vector ? absl::StrCat(t.name, " [", t.cols(), "]")
                                  : absl::StrCat(t.name, " [", t.rows(), ", ", t.cols(), "]"));
  }
  return tensors;
}

int CopiesOf(const ModelSpec& spec) {
  int copies = 0;
  for (const GraphNode& node : spec.graph.nodes) {
    copies += static_cast<int>(node.copies.size());
    for (const InputGradient& gradient : node.gradients) {
      copies += static_cast<int>(gradient.copies.size());
    }
  }
  return copies;
}

TEST(DescribeModel, DlrmOfTheKaggleShape) {
  const ModelSpec spec = DescribeModel(JobOf("dlrm { bottom: [512, 256, 64] top: [512, 256] }"),
                                       InputsOf(13, std::vector<int>(26, 16)));
  // 27 vectors: 351 pairs, and the bottom's 16.
  EXPECT_THAT(
      TensorsOf(spec),
      ElementsAre("bottom.0.weight [13, 512]", "bottom.0.bias [512]", "bottom.1.weight [512, 256]",
                  "bottom.1.bias [256]", "bottom.2.weight [256, 64]", "bottom.2.bias [64]",
                  "bottom.3.weight [64, 16]", "bottom.3.bias [16]", "top.0.weight [367, 512]",
                  "top.0.bias [512]", "top.1.weight [512, 256]", "top.1.bias [256]",
                  "top.2.weight [256, 1]", "top.2.bias [1]"));
  // The bottom writes its output where the dot products read it.
  EXPECT_EQ(CopiesOf(spec), 0);
  ASSERT_EQ(spec.graph.pooled.size(), 1u);
  EXPECT_EQ(spec.graph.pooled[0].leading, 1);
  // Vectors, dot products and logits, and the gradients of all.
  const int64_t floats = 2 * (27 * 16 + 368 + 1);
  const int64_t hidden = 2 * (512 + 256 + 64 + 512 + 256) + 384;  // The top's input is copied.
  EXPECT_EQ(spec.ActivationBytes({100, 100}, ComputeOn::kCpu),
            sizeof(float) * 100 * (floats + hidden) + 8);
  // Without their gradients.
  EXPECT_EQ(spec.ActivationBytes({100, 0}, ComputeOn::kCpu),
            sizeof(float) * 100 * (floats / 2 + (hidden - 384) / 2 + 384) + 8);
}

// A CPU has the input and the output's gradient of each fully connected layer in bfloat16, also
// those of a layer alone.
TEST(DescribeModel, ActivationsInBfloat16) {
  const std::string text = "dlrm { bottom: [512, 256] top: [512] }";
  const auto bytes = [&](const std::string& precision) {
    return DescribeModel(JobOf(text + precision), InputsOf(13, std::vector<int>(26, 16)))
        .ActivationBytes({100, 100}, ComputeOn::kCpu);
  };
  // 13 x 512, 512 x 256, 256 x 16; 367 x 512, 512 x 1: in panels of 64 columns.
  const int64_t pairs = (64 + 512) + (512 + 256) + (256 + 64) + (384 + 512) + (512 + 64);
  const int64_t float32 = 2 * (512 + 256 + 512) + 384;
  EXPECT_EQ(bytes("precision: BFLOAT16"), bytes("") + sizeof(float) * 100 * (pairs / 2 - float32));
}

TEST(DescribeModel, DlrmOfNumericOrEmbeddedFeaturesAlone) {
  const ModelSpec embedded = DescribeModel(JobOf("dlrm { top: 4 }"), InputsOf(0, {8, 8, 8}));
  // The top reads an embedding and the products of three.
  EXPECT_THAT(TensorsOf(embedded), ElementsAre("top.0.weight [11, 4]", "top.0.bias [4]",
                                               "top.1.weight [4, 1]", "top.1.bias [1]"));
  // The top reads the bottom, whose width is default_table's dim.
  const ModelSpec numeric = DescribeModel(JobOf("dlrm { top: 4 }"), InputsOf(5, {}, 8));
  EXPECT_THAT(TensorsOf(numeric),
              ElementsAre("bottom.0.weight [5, 8]", "bottom.0.bias [8]", "top.0.weight [8, 4]",
                          "top.0.bias [4]", "top.1.weight [4, 1]", "top.1.bias [1]"));
}

TEST(DescribeModel, FirstOrderWeightsAreNamedByTable) {
  const ModelSpec spec = DescribeModel(JobOf(R"(layer { name: "wide" input: ["numeric", "C1", "C3"]
                                     first_order { optimizer { ftrl { l1: 1 } } } }
                             layer { name: "deep" input: ["C1", "C2"] mlp { units: 5 } }
                             task { label: "click" input: ["wide", "deep"] })"),
                                       InputsOf(2, {4, 4, 8}));
  ASSERT_THAT(spec.first_order, testing::SizeIs(2));
  EXPECT_TRUE(spec.first_order.at("C1").has_vectors);
  EXPECT_FALSE(spec.first_order.at("C3").has_vectors);
  EXPECT_EQ(spec.first_order.at("C3").optimizer.ftrl().l1(), 1);
  EXPECT_THAT(TensorsOf(spec),
              ElementsAre("wide.weight [2, 1]", "deep.0.weight [8, 5]", "deep.0.bias [5]",
                          "click.weight [5, 1]", "click.bias [1]"));
}

TEST(DescribeModel, InputsOfOneDimLieBesideTheNumbers) {
  const ModelSpec spec =
      DescribeModel(JobOf("deepfm { deep: [40, 30] }"), InputsOf(13, std::vector<int>(26, 16)));
  ASSERT_EQ(spec.graph.pooled.size(), 1u);
  EXPECT_EQ(spec.graph.pooled[0].leading, 1);
  const GraphBuffer& buffer = spec.graph.buffers[spec.graph.pooled[0].vectors];
  EXPECT_EQ(buffer.ld, 27 * 16);
  // Only the numbers are copied.
  int copied = 0;
  for (const GraphNode& node : spec.graph.nodes) {
    for (const ColumnCopy& copy : node.copies) copied += copy.from.width;
  }
  EXPECT_EQ(copied, 13);
}

TEST(DescribeModel, TablesMayDifferInDimWhereLayersAllowIt) {
  const ModelSpec spec =
      DescribeModel(JobOf(R"(layer { name: "deep" input: "categorical" mlp { units: 5 } }
               task { label: "click" input: "deep" })"),
                    InputsOf(0, {4, 16, 4}));
  EXPECT_EQ(spec.tensors[0].rows(), 24);
  EXPECT_EQ(spec.graph.pooled.size(), 2u);
}

TEST(ExpandPreset, EachMeansLayersAndATask) {
  for (const char* text :
       {"dlrm { bottom: 8 top: 8 }", "wide_deep { deep: 8 dropout: 0.5 }",
        "deepfm { deep: [8, 4] }", "dcnv2 { cross_layers: 2 cross_rank: 3 deep: 8 }",
        "dcnv2 { cross_layers: 1 deep: 4 stacked: true }", "dcnv2 { cross_layers: 1 }",
        "finalmlp { first: 8 second: 12 heads: 4 gate: 6 }",
        "finalmlp { first: 8 second: 8 gate: 3 first_gate_by: 'numeric' second_gate_by: 'C1' }"}) {
    SCOPED_TRACE(text);
    const Job job = JobOf(text);
    const ModelInputs inputs = InputsOf(3, {4, 4});
    ASSERT_EQ(CheckModel(job, inputs), std::nullopt);
    Job expanded = job;
    ExpandPreset(inputs, &expanded);
    EXPECT_THAT(PresetsOf(expanded), IsEmpty());
    EXPECT_EQ(expanded.task_size(), 1);
    // The layers mean what the preset means.
    EXPECT_EQ(TensorsOf(DescribeModel(expanded, inputs)), TensorsOf(DescribeModel(job, inputs)));
  }
}

// What is wrong with a job for features C1, C2 of dim 4, C3 of dim 8, and three numbers.
std::string ErrorOf(const std::string& text) {
  const std::optional<ModelError> error = CheckModel(JobOf(text), InputsOf(3, {4, 4, 8}));
  return error.has_value() ? error->field + " " + error->what : "";
}

constexpr char kTask[] = " task { label: 'click' input: 'deep' }";
constexpr char kDeep[] =
    "layer { name: 'deep' input: ['numeric', 'categorical'] mlp { units: 5 } }";

TEST(CheckModel, NamesWhatIsWrongWithAPreset) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("layer is missing; a job needs a model: dlrm, wide_deep"));
  EXPECT_EQ(ErrorOf("dlrm {} deepfm {}"), "deepfm is set, and dlrm as well; choose one");
  EXPECT_EQ(ErrorOf("dlrm { bottom: [8, 0] }"), "dlrm.bottom[1] is 0; it must be at least 1");
  EXPECT_EQ(ErrorOf("dlrm { top: 65537 }"), "dlrm.top[0] is 65537; it must be at most 65536");
  EXPECT_EQ(
      ErrorOf("dlrm {}"),
      "dlrm means layers of which one can't be made: layer[1].input has 'bottom' with vectors "
      "of 4 numbers and 'C3' with 8; the dot product of layer 'pairs' needs one width for all");
  EXPECT_EQ(ErrorOf("wide_deep {}"),
            "wide_deep.deep is empty; give the widths of the MLP's layers");
  EXPECT_EQ(ErrorOf("wide_deep { deep: 4 dropout: 1 }"),
            "wide_deep.dropout is 1; it must be in [0, 1)");
  EXPECT_EQ(ErrorOf("dcnv2 { deep: 4 }"), "dcnv2.cross_layers is 0; it must be at least 1");
  EXPECT_EQ(ErrorOf("finalmlp { first: 9 second: 8 heads: 4 }"),
            "finalmlp.heads is 4; it must divide the last widths of both streams, 9 and 8");
}

TEST(CheckModel, NamesWhatIsWrongWithLayers) {
  EXPECT_EQ(ErrorOf(absl::StrCat(kDeep, kTask)), "");
  EXPECT_EQ(ErrorOf(absl::StrCat(kDeep, kDeep, kTask)), "layer[1].name is 'deep' a second time");
  EXPECT_EQ(ErrorOf(absl::StrCat("layer { name: 'C1' input: 'numeric' concat {} }", kDeep, kTask)),
            "layer[0].name is 'C1', the name of a feature; name one of them otherwise");
  EXPECT_EQ(
      ErrorOf(absl::StrCat("layer { name: 'deep' input: 'categorical' mlp { units: 5 } }", kTask)),
      "layer has none that reads 'numeric'; leave the numeric features out (data.num_dense: 0 in "
      "the short form), or let a layer read them");
  EXPECT_EQ(ErrorOf(kDeep), "task is missing; a model of layers has a task");
  EXPECT_EQ(ErrorOf(absl::StrCat(kDeep, "layer { name: 'fm' input: ['C1', 'C2'] fm {} }", kTask)),
            "layer[1].name is 'fm', which no other layer and no task reads");
  EXPECT_EQ(
      ErrorOf(absl::StrCat("layer { name: 'a' input: 'deep' concat {} }", kDeep, kTask)),
      "layer[0].input[0] is 'deep', which is a later layer; a layer reads layers before it alone");
  EXPECT_EQ(ErrorOf("layer { name: 'deep' input: 'dep' mlp { units: 5 } }" + std::string(kTask)),
            "layer[0].input[0] is 'dep', but no layer, feature, sequence or group has this name "
            "(did you mean "
            "'deep'?)");
  EXPECT_EQ(
      ErrorOf("layer { name: 'deep' input: 'numeric' mlp { units: 5 } }" + std::string(kTask)),
      "layer has none that reads the feature 'C1'; leave the feature out, or let a layer read it");
  EXPECT_EQ(ErrorOf(absl::StrCat(kDeep, "layer { name: 's' input: ['C1', 'C3'] add {} }",
                                 "task { label: 'click' input: ['deep', 's'] }")),
            "layer[1].input[1] has 8 numbers, and input[0] has 4; the inputs of layer 's' have one "
            "width");
  EXPECT_EQ(
      ErrorOf(absl::StrCat(kDeep, "layer { name: 's' input: 'deep' cross { layers: 1 rank: 9 } }",
                           "task { label: 'click' input: 's' }")),
      "layer[1].cross.rank is 9; the input of layer 's' has 5 numbers, and the rank is at most "
      "that");
  EXPECT_THAT(ErrorOf(absl::StrCat(kDeep, "layer { name: 's' input: 'deep' first_order {} }",
                                   "task { label: 'click' input: 's' }")),
              HasSubstr("first_order reads features alone"));
  EXPECT_EQ(
      ErrorOf("layer { name: 'w' input: ['numeric', 'categorical', 'numeric'] first_order {} } "
              "task { label: 'click' input: 'w' }"),
      "layer[0].input[2] is 'numeric', whose first-order weights are read already");
  EXPECT_THAT(
      ErrorOf(absl::StrCat("layer { name: 'deep' input: ['numeric', 'categorical'] }", kTask)),
      HasSubstr("layer[0] ('deep') says not what it computes"));
}

TEST(DescribeModel, EachTaskHasALogitOfItsOwn) {
  const ModelSpec spec = DescribeModel(
      JobOf("layer { name: 'one' input: ['numeric', 'categorical'] mlp { units: 1 } } "
            "task { label: 'click' input: 'one' } "
            "task { label: 'like' input: 'one' weight: 0.5 } "
            "task { label: 'buy' input: ['one', 'C1'] times: 'like' weight: 0 } "
            "task { label: 'again' input: 'one' times: 'buy' }"),
      InputsOf(2, {4, 4}));
  std::vector<std::string> tasks;
  for (const TaskSpec& task : spec.tasks) tasks.push_back(absl::StrCat(task.label, task.weight));
  EXPECT_THAT(tasks, ElementsAre("click1", "like0.5", "buy0", "again1"));
  EXPECT_THAT(TensorsOf(spec), ElementsAre("one.0.weight [10, 1]", "one.0.bias [1]",
                                           "buy.weight [4, 1]", "buy.bias [1]"));
  ASSERT_EQ(spec.graph.logits.size(), 4u);
  for (size_t a = 0; a < 4; ++a) {
    EXPECT_EQ(spec.graph.logits[a].width, 1);
    for (size_t b = 0; b < a; ++b) EXPECT_FALSE(spec.graph.logits[a] == spec.graph.logits[b]);
  }
  // The second factor of a product is the other task's logit, which for 'buy' is a product itself.
  std::vector<Columns> others;
  for (const GraphNode& node : spec.graph.nodes) {
    if (node.op == GraphNode::Op::kProductLogit) others.push_back(node.inputs[1]);
  }
  EXPECT_THAT(others, ElementsAre(spec.graph.logits[1], spec.graph.logits[2]));
}

TEST(CheckModel, NamesWhatIsWrongWithTasks) {
  const auto error = [](const std::string& tasks) {
    return ErrorOf(absl::StrCat(kDeep, kTask, tasks));
  };
  EXPECT_EQ(error("task { label: 'buy' input: 'deep' times: 'click' }"), "");
  EXPECT_EQ(error("task { label: 'click' input: 'deep' }"),
            "task[1].label is 'click' a second time");
  EXPECT_EQ(error("task { label: 'buy' }"), "task[1].input is empty; a task reads layers");
  EXPECT_EQ(error("task { label: 'buy' input: 'deep' times: 'clik' }"),
            "task[1].times is 'clik', but no earlier task has this label (did you mean 'click'?)");
  EXPECT_EQ(error("task { label: 'buy' input: 'deep' times: 'buy' }"),
            "task[1].times is 'buy', but no earlier task has this label");
  EXPECT_EQ(error("task { label: 'buy' input: 'deep' weight: -0.5 }"),
            "task[1].weight is -0.5; it must be a number, at least 0");
  EXPECT_EQ(error("task { label: 'buy' input: 'deep' weight: nan }"),
            "task[1].weight is nan; it must be a number, at least 0");
  EXPECT_EQ(ErrorOf(absl::StrCat(kDeep, "task { label: 'click' input: 'deep' weight: 0 }")),
            "task[0].weight is 0, as of all tasks; nothing would be learned");
  std::string many;
  for (int i = 0; i < kMaxTasks; ++i) {
    absl::StrAppend(&many, "task { label: 'l", i, "' input: 'deep' }");
  }
  EXPECT_EQ(error(many), "task is there 65 times; a model has at most 64 tasks");
}

TEST(CheckModel, NamesOfFeaturesAreNoWordsOfLayers) {
  const Job job =
      JobOf("layer { name: 'deep' input: 'I1' mlp { units: 5 } } " + std::string(kTask));
  ModelInputs inputs = InputsOf(2, {4});
  inputs.numeric_names = {"I1", "I2"};
  EXPECT_EQ(CheckModel(job, inputs)->what,
            "is 'I1', a number; layers read all numbers, as 'numeric'");
  inputs.features[0].name = "numeric";
  EXPECT_EQ(CheckModel(job, inputs)->what,
            "has one that is named 'numeric', a word for several of them; name it otherwise");
}

TEST(CheckModel, RefusesWhatIsTooLarge) {
  EXPECT_THAT(ErrorOf("layer { name: 'a' input: ['numeric', 'categorical'] mlp { units: 65536 } } "
                      "layer { name: 'deep' input: 'a' embed { dim: 65536 } }" +
                      std::string(kTask)),
              HasSubstr("layer[1] ('deep') has 4294967296 numbers for each sample"));
  EXPECT_THAT(ErrorOf("layer { name: 'a' input: ['numeric', 'categorical'] mlp { units: 65536 } } "
                      "layer { name: 'b' input: 'a' embed { dim: 1 } } "
                      "layer { name: 'deep' input: 'b' dot {} }" +
                      std::string(kTask)),
              HasSubstr("layer[2] ('deep') has 2147450880 numbers"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kDeep,
                                   "layer { name: 's' input: 'deep' cross { layers: 1 rank: "
                                   "4294967295 } } task { label: 'click' input: 's' }")),
              HasSubstr("layer[1].cross.rank is 4294967295"));
  EXPECT_THAT(ErrorOf(absl::StrCat("group { name: 'deep' feature: 'C1' }", kDeep, kTask)),
              HasSubstr("group[0].name is 'deep', as something else is"));
  EXPECT_EQ(ErrorOf(absl::StrCat("group { name: 'fields' feature: 'C1' }", kDeep, kTask)),
            "group[0].name is 'fields', a word for several features; name it otherwise");
  EXPECT_EQ(ErrorOf("layer { name: 'numeric' input: 'categorical' mlp { units: 5 } }"),
            "layer[0].name is 'numeric', a word for several features; name it otherwise");
}

TEST(CheckModel, FeaturesOfOneTableAreReadAlike) {
  ModelInputs inputs = InputsOf(0, {4, 4});
  inputs.features[1].table = "C1";
  const std::optional<ModelError> error =
      CheckModel(JobOf(R"(layer { name: "wide" input: "C1" first_order {} }
                          layer { name: "deep" input: "categorical" mlp { units: 5 } }
                          task { label: "click" input: ["wide", "deep"] })"),
                 inputs);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(
      error->what,
      "has one that reads first-order weights of only one of the features 'C1' and 'C2', which "
      "share the table 'C1'; a layer must read both");
}

}  // namespace
}  // namespace thermocline
