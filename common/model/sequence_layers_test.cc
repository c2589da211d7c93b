#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec.h"
#include "common/model/presets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Job JobOf(const std::string& text) {
  Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

constexpr char kEvents[] = " sequence { name: 'events' of: ['hist_item', 'hist_shop'] } ";
constexpr char kEndedEvents[] =
    " sequence { name: 'events' of: ['hist_item', 'hist_shop'] then: ['item', 'shop'] } ";

// Two numbers, a user, an item and its shop, and the user's items and shops so far.
ModelInputs InputsOf(bool ends_with_sample, int sequences = 1) {
  ModelInputs inputs;
  inputs.numeric = 2;
  inputs.default_dim = 4;
  inputs.features = {{"user", "user", 4},
                     {"item", "item", 4},
                     {"shop", "shop", 2},
                     {"hist_item", "item", 4, true},
                     {"hist_shop", "shop", 2, true}};
  for (int s = 0; s < sequences; ++s) {
    const std::string name = s == 0 ? "events" : absl::StrCat("events", s);
    inputs.sequences.push_back({name, inputs.num_vectors(), 2, ends_with_sample, 11});
    inputs.features.push_back({name + ".hist_item", "item", 4, true, s});
    inputs.features.push_back({name + ".hist_shop", "shop", 2, true, s});
  }
  return inputs;
}

ModelSpec SpecOf(const std::string& text, bool ends_with_sample = false) {
  const Job job = JobOf(text + (ends_with_sample ? kEndedEvents : kEvents));
  const ModelInputs inputs = InputsOf(ends_with_sample);
  const std::optional<ModelError> error = CheckModel(job, inputs);
  EXPECT_EQ(error, std::nullopt) << error->field << " " << error->what;
  return DescribeModel(job, inputs);
}

std::vector<std::string> TensorsOf(const ModelSpec& spec) {
  std::vector<std::string> tensors;
  for (const DenseTensor& t : spec.tensors) {
    tensors.push_back(absl::StrCat(t.name, t.is_vector ? " [" : absl::StrCat(" [", t.rows(), ", "),
                                   t.cols(), "]"));
  }
  return tensors;
}

std::vector<std::string> FeaturesOf(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const EmbeddedFeature& feature : spec.inputs.features) names.push_back(feature.name);
  return names;
}

TEST(SequencePreset, DinComparesEachStepWithTheSamplesOwnFeatures) {
  const ModelSpec spec = SpecOf("din { attention: 8 deep: 16 }");
  EXPECT_THAT(
      TensorsOf(spec),
      ElementsAre("interest.0.weight [24, 8]", "interest.0.bias [8]", "interest.0.slope [8]",
                  "interest.1.weight [8, 1]", "interest.1.bias [1]", "deep.0.weight [18, 16]",
                  "deep.0.bias [16]", "label.weight [16, 1]", "label.bias [1]"));
  // Lists that are read by step alone are not pooled.
  EXPECT_THAT(FeaturesOf(spec),
              ElementsAre("user", "item", "shop", "events.hist_item", "events.hist_shop"));
}

TEST(SequencePreset, BstNormalizesTwiceABlock) {
  const ModelSpec spec = SpecOf("bst { heads: 2 units: 5 positions: 7 deep: 9 }", true);
  EXPECT_THAT(TensorsOf(spec),
              ElementsAre("transformer.positions [7, 6]", "transformer.0.query.weight [6, 6]",
                          "transformer.0.query.bias [6]", "transformer.0.key.weight [6, 6]",
                          "transformer.0.key.bias [6]", "transformer.0.value.weight [6, 6]",
                          "transformer.0.value.bias [6]", "transformer.0.output.weight [6, 6]",
                          "transformer.0.output.bias [6]", "transformer.0.first_norm.weight [6]",
                          "transformer.0.first_norm.bias [6]", "transformer.0.up.weight [6, 5]",
                          "transformer.0.up.bias [5]", "transformer.0.down.weight [5, 6]",
                          "transformer.0.down.bias [6]", "transformer.0.second_norm.weight [6]",
                          "transformer.0.second_norm.bias [6]", "deep.0.weight [18, 9]",
                          "deep.0.bias [9]", "label.weight [9, 1]", "label.bias [1]"));
}

TEST(SequencePreset, TbsmReadsWhatEndsTheSequenceAsItsLastStepAlone) {
  const Job job = JobOf(absl::StrCat("tbsm { bottom: 3 top: 5 head: 7 }", kEndedEvents));
  ModelInputs inputs = InputsOf(true);
  for (EmbeddedFeature& feature : inputs.features) feature.dim = 4;
  ASSERT_EQ(CheckModel(job, inputs), std::nullopt);
  const ModelSpec spec = DescribeModel(job, inputs);
  EXPECT_THAT(FeaturesOf(spec), ElementsAre("user", "events.hist_item", "events.hist_shop"));
  // The bottom's output and the products of four vectors.
  EXPECT_THAT(TensorsOf(spec),
              ElementsAre("bottom.0.weight [2, 3]", "bottom.0.bias [3]", "bottom.1.weight [3, 4]",
                          "bottom.1.bias [4]", "step.0.weight [10, 5]", "step.0.bias [5]",
                          "context.weight [5, 5]", "head.0.weight [10, 7]", "head.0.bias [7]",
                          "label.weight [7, 1]", "label.bias [1]"));
}

TEST(SequencePreset, PleHasExpertsOfEachTaskAndSharedOnes) {
  Job job = JobOf(
      "data { label { column: ['click', 'to buy'] } } "
      "ple { levels: 2 shared_experts: 2 task_experts: 1 expert: 5 tower: 3 }");
  ModelInputs inputs = InputsOf(false, 0);
  ASSERT_EQ(CheckModel(job, inputs), std::nullopt);
  ExpandPreset(inputs, &job);
  std::vector<std::string> layers;
  for (const Layer& layer : job.layer()) {
    std::string& text = layers.emplace_back(layer.name() + ":");
    for (const std::string& input : layer.input()) absl::StrAppend(&text, " ", input);
    if (layer.copies() > 0) absl::StrAppend(&text, " x", layer.copies());
    for (const std::string& by : layer.gate().by()) absl::StrAppend(&text, " by ", by);
  }
  EXPECT_THAT(
      layers,
      ElementsAre("experts_0_0: numeric categorical x1", "experts_1_0: numeric categorical x1",
                  "shared_0: numeric categorical x2",
                  "mix_0_0: experts_0_0 shared_0 by numeric by categorical",
                  "mix_1_0: experts_1_0 shared_0 by numeric by categorical",
                  "shared_mix_0: experts_0_0 experts_1_0 shared_0 by numeric by categorical",
                  "experts_0_1: mix_0_0 x1", "experts_1_1: mix_1_0 x1", "shared_1: shared_mix_0 x2",
                  "mix_0_1: experts_0_1 shared_1 by mix_0_0",
                  "mix_1_1: experts_1_1 shared_1 by mix_1_0", "tower_0: mix_0_1",
                  "tower_1: mix_1_1"));
  ASSERT_EQ(job.task_size(), 2);
  EXPECT_EQ(job.task(1).label(), "to buy");
}

TEST(SequenceLayers, ActivationsHaveRoomForTheStepsOfSamples) {
  const ModelSpec spec = SpecOf(
      "layer { name: 'interest' input: 'events' attention { query: ['item', 'shop'] } } "
      "task { label: 'click' input: ['interest', 'user', 'numeric'] }");
  int64_t by_step = 0;
  for (const GraphBuffer& buffer : spec.graph.buffers) {
    if (buffer.sequence == 0) by_step += buffer.ld * (buffer.has_value + buffer.has_gradient);
  }
  EXPECT_GT(by_step, 0);
  EXPECT_GE(spec.ActivationBytes({100, 100}, ComputeOn::kGpu, {2.5}) -
                spec.ActivationBytes({100, 100}, ComputeOn::kGpu),
            sizeof(float) * 250 * by_step);
}

// What is wrong with layers beside an MLP of everything.
std::string ErrorOf(const std::string& text, bool ends_with_sample = true, int sequences = 1) {
  const std::string job =
      absl::StrCat("layer { name: 'deep' input: ['numeric', 'categorical'] mlp { units: 5 } } ",
                   text, ends_with_sample ? kEndedEvents : kEvents);
  const std::optional<ModelError> error =
      CheckModel(JobOf(job), InputsOf(ends_with_sample, sequences));
  return error.has_value() ? error->field + " " + error->what : "";
}

constexpr char kTask[] = " task { label: 'click' input: ['deep', 'x'] } ";

TEST(SequenceLayers, NamesWhatIsWrong) {
  const auto attention = [](const std::string& words) {
    return absl::StrCat("layer { name: 'x' input: 'events' attention { ", words, " } }", kTask);
  };
  EXPECT_EQ(ErrorOf(attention("query: ['item', 'shop'] softmax: true without_last: true")), "");
  EXPECT_EQ(ErrorOf(attention("query: 'item'")),
            "layer[1].attention.query has 4 numbers, and a step of 'events' has 6; each part of a "
            "step is compared with one of the query");
  EXPECT_EQ(ErrorOf(attention("")),
            "layer[1].attention.query is empty; steps are compared with something");
  EXPECT_EQ(ErrorOf(attention("query: 'events'")),
            "layer[1].attention.query has steps; what steps are compared with is of the sample");
  EXPECT_EQ(ErrorOf(attention("query: ['item', 'shop'] without_last: true"), false),
            "layer[1].attention.without_last is set, but 'events' has no `then`: its last step is "
            "one like others");
  EXPECT_EQ(ErrorOf(attention("query: ['item', 'shop'] score: DOT units: 3")),
            "layer[1].attention.units is set, but only the score MLP has hidden layers");
  EXPECT_EQ(ErrorOf(attention("query: ['item', 'shop'] units: 0")),
            "layer[1].attention.units[0] is 0; it must be at least 1");
  EXPECT_EQ(ErrorOf(absl::StrCat("layer { name: 'y' input: 'events' pool {} } "
                                 "layer { name: 'x' input: 'y' attention { query: 'item' } }",
                                 kTask)),
            "layer[2].input has no steps; the attention of layer 'x' reads a sequence, or layers "
            "over one");
  EXPECT_EQ(ErrorOf(absl::StrCat("layer { name: 'm' input: 'events' self_attention { heads: 4 } } "
                                 "layer { name: 'x' input: 'm' pool {} }",
                                 kTask)),
            "layer[1].self_attention.heads is 4, which must divide the step's width, 6, and be at "
            "most 256");
  EXPECT_EQ(ErrorOf("task { label: 'click' input: ['deep', 'events'] }"),
            "task[0].input has steps of 'events'; a task reads what is of the sample, such as a "
            "`pool` over them");
  EXPECT_EQ(ErrorOf("task { label: 'click' input: 'deep' }"),
            "sequence[0].name is 'events', which no layer reads");
  EXPECT_THAT(ErrorOf(absl::StrCat("layer { name: 'x' input: 'events' first_order {} }", kTask)),
              HasSubstr("is the sequence 'events'; first_order reads features alone"));
  EXPECT_EQ(ErrorOf(absl::StrCat("group { name: 'g' feature: 'events' } "
                                 "layer { name: 'x' input: 'g' pool {} }",
                                 kTask)),
            "group[0].feature[0] is 'events', a sequence");
}

TEST(SequenceLayers, FirstOrderWeightsAreNotOfTablesThatSequencesRead) {
  const std::string job = absl::StrCat(
      "layer { name: 'x' input: ['user', 'item', 'shop'] first_order {} } "
      "layer { name: 'y' input: ['events', 'item', 'shop', 'user', 'numeric'] mlp { units: 2 } } "
      "layer { name: 'z' input: 'y' pool {} } task { label: 'click' input: ['x', 'z'] }",
      kEvents);
  const std::optional<ModelError> error = CheckModel(JobOf(job), InputsOf(false));
  ASSERT_NE(error, std::nullopt);
  EXPECT_EQ(
      error->field + " " + error->what,
      "layer[0].input has 'item', whose table 'item' the sequence 'events' reads step by step; "
      "rows of sequences have no first-order weights: leave 'item' out of this layer, or give "
      "the lists of the sequence a table of their own");
}

TEST(SequenceLayers, NameWhatIsWrongWithGatesAndCopies) {
  EXPECT_EQ(ErrorOf(absl::StrCat("layer { name: 'y' input: 'events' pool {} } "
                                 "layer { name: 'x' input: 'deep' gate { by: 'y' } }",
                                 kTask)),
            "layer[2].input is one vector; the gate of layer 'x' mixes two or more, such as those "
            "of an mlp with `copies`");
  EXPECT_EQ(ErrorOf(absl::StrCat("layer { name: 'y' input: 'events' pool {} } "
                                 "layer { name: 'x' input: ['deep', 'y'] gate { by: 'y' } }",
                                 kTask)),
            "layer[2].input has 'deep' with vectors of 5 numbers and 'y' with 4; the gate of "
            "layer 'x' needs one width for all");
  EXPECT_EQ(ErrorOf(absl::StrCat("layer { name: 'x' input: 'events' copies: 2 pool {} }", kTask)),
            "layer[1].copies is set, but only an mlp has copies");
  EXPECT_EQ(ErrorOf(absl::StrCat("layer { name: 'y' input: 'events' pool {} } "
                                 "layer { name: 'x' input: 'y' copies: 3 mlp { units: 2 } }",
                                 kTask)),
            "");
}

TEST(SequenceLayers, ALayerReadsTheStepsOfOneSequence) {
  const std::string job =
      "layer { name: 'm' input: ['events', 'events1'] mlp { units: 3 } } "
      "layer { name: 'x' input: 'm' pool {} }" +
      std::string(kTask) + " sequence { name: 'events1' of: ['hist_item', 'hist_shop'] } ";
  EXPECT_EQ(ErrorOf(job, false, 2),
            "layer[1].input has the steps of 'events' and of 'events1'; a layer reads the steps of "
            "one sequence");
}

TEST(SequencePreset, NamesWhatIsWrong) {
  const auto error = [](const std::string& text, bool ends_with_sample, int sequences = 1) {
    const std::string words = sequences == 0 ? "" : ends_with_sample ? kEndedEvents : kEvents;
    ModelInputs inputs = InputsOf(ends_with_sample, sequences);
    inputs.features[2].table = "shop_of_item";
    const std::optional<ModelError> found = CheckModel(JobOf(text + words), inputs);
    return found.has_value() ? found->field + " " + found->what : "";
  };
  EXPECT_EQ(error("din { deep: 3 }", false, 0), "din needs a `sequence`, and the job has none");
  EXPECT_EQ(error("din { deep: 3 }", false),
            "din compares each step of 'events' with the sample's own features, and for "
            "'hist_shop' there is no feature in the same table that is no list; "
            "set its `table` to the name of the feature that has one such value in each row");
  EXPECT_EQ(error("din {}", true), "din.deep is empty; give the widths of the MLP's layers");
  EXPECT_EQ(error("tbsm { top: 3 head: 3 }", false), "tbsm needs one `sequence`, with `then`");
  // The stanza is the user's own.
  const auto named = [](const std::string& name) {
    const std::optional<ModelError> found =
        CheckModel(JobOf(absl::StrCat("din { deep: 3 } sequence { name: '", name,
                                      "' of: ['hist_item', 'hist_shop'] then: ['item', 'shop'] }")),
                   InputsOf(true));
    return found.has_value() ? found->field + " " + found->what : "";
  };
  EXPECT_EQ(named("numeric"),
            "sequence[0].name is 'numeric', a word for several features; name it otherwise");
  EXPECT_EQ(named("deep"),
            "sequence[0].name is 'deep', the name of a layer; name one of them otherwise");
  EXPECT_EQ(error("mmoe { experts: 1 expert: 3 }", false),
            "mmoe.experts is 1; it must be at least 2");
  EXPECT_EQ(error("ple { shared_experts: 1 expert: 3 }", false),
            "ple.task_experts is 0; it must be at least 1");
}

}  // namespace
}  // namespace thermocline
