#include "worker/model/model.h"

#include <google/protobuf/text_format.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/math/table_spec.h"
#include "common/model/model_spec.h"
#include "common/model/presets.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/random_values.h"
#include "worker/model/testing/random_batch.h"
#include "worker/model/testing/reference_model.h"

namespace thermocline {
namespace {

struct Case {
  std::string name;
  std::string job;  // The preset, or the layers.
  int numeric = 0;
  std::vector<int> dims;  // [features]
  BatchShape batch;
  std::vector<StepSequence> sequences = {};  // Their features come last.
};

ModelInputs InputsOf(const Case& c) {
  ModelInputs inputs;
  inputs.numeric = c.numeric;
  inputs.default_dim = 3;
  for (size_t f = 0; f < c.dims.size(); ++f) {
    inputs.features.push_back(
        {absl::StrCat("C", f + 1), absl::StrCat("T", c.batch.tables[f]), c.dims[f], false});
  }
  inputs.sequences = c.sequences;
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    for (int i = 0; i < c.sequences[s].features; ++i) {
      EmbeddedFeature& feature = inputs.features[c.sequences[s].first_feature + i];
      feature.is_sequence = true;
      feature.sequence = static_cast<int>(s);
    }
  }
  return inputs;
}

// The job with its layers in place of a preset.
Job JobOf(const Case& c) {
  Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(c.job, &job)) << c.job;
  const std::optional<ModelError> error = CheckModel(job, InputsOf(c));
  EXPECT_FALSE(error.has_value()) << error->field << " " << error->what;
  ExpandPreset(InputsOf(c), &job);
  return job;
}

// Four features, two of which share a table.
Case SharedTables(const std::string& name, const std::string& job, int numeric = 3) {
  Case c = {name, job, numeric, {5, 5, 5, 5}, {}};
  c.batch.batch_size = 9;
  c.batch.tables = {0, 1, 0, 2};
  c.batch.poolings = {PoolingMode::kSum, PoolingMode::kMean, PoolingMode::kMean, PoolingMode::kSum};
  c.batch.max_bag = {3, 4, 2, -1};
  return c;
}

Case DimSixteen(const std::string& job) {
  Case c = {"DimSixteen", job, 2, std::vector<int>(11, 16), {}};
  c.batch.batch_size = 5;
  c.batch.tables = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9};
  c.batch.poolings.assign(11, PoolingMode::kSum);
  c.batch.max_bag.assign(11, -1);
  c.batch.max_bag[3] = 0;
  c.batch.unique_keys = 3;
  return c;
}

// Three features of one, two and no other table's dim.
Case SeveralDims(const std::string& name, const std::string& job) {
  Case c = SharedTables(name, job);
  c.batch.tables = {0, 1, 2, 3};
  c.dims = {4, 7, 4, 1};
  return c;
}

Case OneFeature(const std::string& job) {
  Case c = {"OneFeature", job, 0, {4}, {}};
  c.batch.batch_size = 6;
  c.batch.tables = {0};
  c.batch.poolings = {PoolingMode::kMean};
  c.batch.max_bag = {3};
  return c;
}

// Three features and a list, and the steps S of two features, which read tables of the others.
// then: what ends them, as the preset reads it.
Case Steps(const std::string& name, const std::string& job, const std::string& then = "") {
  Case c = {name, job, 2, {4, 4, 4, 4, 4}, {}};
  c.job += absl::StrCat(" sequence { name: 'S' of: ['L1', 'L2'] then: [", then, "] }");
  c.batch.batch_size = 7;
  c.batch.tables = {0, 1, 2, 0, 1};
  c.batch.poolings.assign(5, PoolingMode::kSum);
  c.batch.poolings[2] = PoolingMode::kMean;
  c.batch.max_bag = {-1, -1, 3, 4, 4};
  c.sequences = {{"S", 3, 2, !then.empty(), 5}};
  return c;
}

// Two sequences that read a table of each other's, and of a feature's.
Case TwoSequences(const std::string& name, const std::string& job) {
  Case c = Steps(name, job);
  c.job = job + " sequence { name: 'S' of: 'L1' } sequence { name: 'T' of: ['L2', 'L3'] }";
  c.batch.tables = {0, 1, 0, 0, 1};
  c.batch.poolings.assign(5, PoolingMode::kSum);
  c.batch.max_bag = {2, -1, 3, 5, 5};
  c.sequences = {{"S", 2, 1, false, 3}, {"T", 3, 2, false, 5}};
  return c;
}

Case NumericOnly(const std::string& job) {
  Case c = {"NumericOnly", job, 4, {}, {}};
  c.batch.batch_size = 6;
  return c;
}

// Layers with names of their own, read by the task "click".
std::string Graph(const std::string& layers, const std::string& inputs) {
  return absl::StrCat(layers, " task { label: 'click' input: [", inputs, "] }");
}

std::vector<Case> Cases() {
  return {
      SharedTables("Dlrm", "dlrm { bottom: 7 top: [6, 4] }"),
      DimSixteen("dlrm { bottom: 9 top: 12 }"),
      NumericOnly("dlrm { top: 5 }"),
      SharedTables("EmbeddedOnly", "dlrm { top: [6, 4] }", /*numeric=*/0),
      OneFeature("dlrm { top: 5 }"),
      SharedTables("WideDeep", "wide_deep { deep: [6, 4] }"),
      SharedTables("DeepFm", "deepfm { deep: [6, 4] }"),
      SharedTables("Dcnv2", "dcnv2 { cross_layers: 2 deep: [6, 4] }"),
      SharedTables("LowRank", "dcnv2 { cross_layers: 3 cross_rank: 2 deep: 5 stacked: true }"),
      SharedTables("FinalMlp",
                   "finalmlp { first: [7, 6] second: 9 heads: 3 gate: 4 "
                   "first_gate_by: 'numeric' second_gate_by: ['C2', 'C4'] }"),
      SharedTables("LearnedGates", "finalmlp { first: 4 second: 4 gate: 3 }"),
      SeveralDims("SeveralDims", "wide_deep { deep: 6 }"),
      SeveralDims("CrossOfSeveralDims", "dcnv2 { cross_layers: 2 deep: 4 }"),
      SharedTables("PairsWithoutTheFirst",
                   Graph("layer { name: 'bottom' input: 'numeric' mlp { units: 5 } } "
                         "layer { name: 'pairs' input: ['bottom', 'categorical'] dot {} } "
                         "layer { name: 'top' input: ['bottom', 'pairs'] mlp { units: 4 } }",
                         "'top'")),
      SharedTables(
          "PairsBesideOthers",
          Graph("layer { name: 'bottom' input: 'numeric' mlp { units: 5 } } "
                "layer { name: 'pairs' input: ['bottom', 'categorical'] dot { keep_first: "
                "true } } layer { name: 'a' input: ['pairs', 'categorical'] mlp { units: 4 "
                "} } layer { name: 'b' input: ['bottom', 'pairs'] mlp { units: 3 } }",
                "'a', 'b'")),
      SeveralDims("FirstOrderOfSomeFeatures",
                  Graph("layer { name: 'wide' input: ['C1', 'C4'] first_order {} } "
                        "layer { name: 'deep' input: ['numeric', 'categorical'] mlp { units: 4 } }",
                        "'wide', 'deep'")),
      SharedTables("LogitsOfFeatures",
                   Graph("layer { name: 'last' input: ['C1', 'C4'] pool { mode: LAST } } "
                         "layer { name: 'one' input: 'last' mlp { units: 1 last: LINEAR } } "
                         "layer { name: 'deep' input: ['C2', 'C3', 'numeric'] mlp { units: 4 } }",
                         "'one', 'deep', 'numeric'")),
      SharedTables("FirstOrderAlone",
                   Graph("layer { name: 'wide' input: ['C4', 'numeric'] first_order {} } "
                         "layer { name: 'deep' input: ['C1', 'C2', 'C3'] mlp { units: 4 } }",
                         "'wide', 'deep'")),
      SharedTables("Activations",
                   Graph("layer { name: 'a' input: ['numeric', 'categorical'] mlp { units: [6, 5] "
                         "  activation: PRELU layer_norm: true } } "
                         "layer { name: 'b' input: 'a' mlp { units: [4, 3] activation: TANH } } "
                         "layer { name: 'c' input: 'a' mlp { units: 3 activation: SIGMOID } } "
                         "layer { name: 'd' input: ['a', 'c'] mlp { units: [4, 3] layer_norm: true "
                         "  last: LINEAR } } "
                         "layer { name: 'sum' input: ['b', 'c', 'd'] add {} } "
                         "layer { name: 'product' input: ['c', 'd'] multiply {} }",
                         "'sum', 'product'")),
      SharedTables(
          "ListsOfVectors",
          Graph("layer { name: 'numbers' input: 'numeric' embed { dim: 5 } } "
                "layer { name: 'unit' input: ['numbers', 'categorical'] normalize {} } "
                "layer { name: 'mean' input: 'unit' pool { mode: MEAN } } "
                "layer { name: 'sum' input: ['C1', 'numbers'] pool {} } "
                "layer { name: 'last' input: 'categorical' pool { mode: LAST } } "
                "layer { name: 'fm' input: 'unit' fm {} } "
                "layer { name: 'both' input: ['mean', 'last'] concat {} } "
                "layer { name: 'gated' input: ['both', 'sum'] feature_gate { by: 'both' } }",
                "'fm', 'gated'")),
      SharedTables(
          "Groups",
          "group { name: 'left' feature: ['C1', 'C3'] } group { name: 'right' feature: ['C4', "
          "'C2'] } " +
              Graph("layer { name: 'x' input: 'left' mlp { units: 4 } } "
                    "layer { name: 'y' input: ['right', 'C1', 'numeric'] mlp { units: 4 } } "
                    "layer { name: 'product' input: ['x', 'y'] bilinear { heads: 2 } }",
                    "'product', 'left'")),
      SharedTables(
          "SeveralTasks",
          "layer { name: 'deep' input: ['numeric', 'C1', 'C2', 'C3'] mlp { units: [6, 4] } } "
          "layer { name: 'one' input: ['deep', 'C4'] mlp { units: 1 last: LINEAR } } "
          "layer { name: 'tower' input: ['deep', 'one'] mlp { units: 3 } } "
          "task { label: 'click' input: 'one' } "
          "task { label: 'cart' input: 'deep' weight: 0.5 times: 'click' } "
          "task { label: 'buy' input: ['tower', 'numeric'] weight: 2 times: 'cart' } "
          "task { label: 'same' input: 'one' weight: 0 } "
          "task { label: 'again' input: 'one' times: 'same' }"),
      Steps("Din", "din { attention: [5, 3] deep: [6, 4] }"),
      Steps("DinWithShares", "din { deep: 5 softmax: true }", "'C1', 'C2'"),
      Steps("Bst", "bst { heads: 2 blocks: 2 units: 5 positions: 3 deep: 6 }", "'C1', 'C2'"),
      Steps("Tbsm", "tbsm { bottom: 5 top: [6, 5] head: 7 }", "'X1', 'X2'"),
      TwoSequences("DinOfTwoSequences", "din { attention: 4 deep: 6 }"),
      SharedTables("Mmoe", "mmoe { experts: 3 expert: [6, 4] tower: 5 }"),
      SharedTables("Ple", "ple { levels: 2 shared_experts: 2 task_experts: 1 expert: 4 tower: 3 }"),
      Steps("LayersOfSteps",
            Graph("layer { name: 'numbers' input: 'numeric' mlp { units: 4 } } "
                  "layer { name: 'pairs' input: ['S', 'numbers', 'C1'] dot {} } "
                  "layer { name: 'fm' input: ['S', 'C3'] fm {} } "
                  "layer { name: 'cross' input: ['pairs', 'fm'] cross { layers: 2 } } "
                  "layer { name: 'both' input: ['cross', 'S'] bilinear {} } "
                  "layer { name: 'gated' input: 'C2' feature_gate { by: ['S', 'numeric'] } } "
                  "layer { name: 'learned' input: 'S' feature_gate { units: 3 } } "
                  "layer { name: 'vectors' input: ['fm', 'both'] embed { dim: 4 } } "
                  "layer { name: 'unit' input: ['vectors', 'gated', 'learned'] normalize {} } "
                  "layer { name: 'deep' input: 'unit' mlp { units: [5, 4] activation: PRELU "
                  "  layer_norm: true } } "
                  "layer { name: 'sum' input: ['deep', 'gated', 'C1'] add {} } "
                  "layer { name: 'product' input: ['sum', 'C2'] multiply {} } "
                  "layer { name: 'experts' input: 'product' copies: 3 mlp { units: 4 } } "
                  "layer { name: 'mix' input: ['experts', 'C3'] gate { by: ['deep', 'C1'] } } "
                  "layer { name: 'mean' input: ['mix', 'S'] pool { mode: MEAN } } "
                  "layer { name: 'last' input: ['S', 'mix'] pool { mode: LAST } } "
                  "layer { name: 'all' input: 'product' pool {} }",
                  "'mean', 'last', 'all', 'C1'")),
      Steps("Attentions",
            Graph("layer { name: 'x' input: 'S' concat {} } "
                  "layer { name: 'dots' input: 'x' attention { query: ['C2', 'C3'] score: DOT "
                  "  softmax: true without_last: true } } "
                  "layer { name: 'forms' input: 'S' attention { query: ['C1', 'C2'] "
                  "  score: BILINEAR without_last: true } } ",
                  "'dots', 'forms', 'numeric'"),
            "'C1', 'C2'"),
      TwoSequences("TwoSequences",
                   Graph("layer { name: 's' input: ['S', 'C1'] mlp { units: 4 } } "
                         "layer { name: 's_all' input: 's' pool {} } "
                         "layer { name: 't' input: ['T', 's_all'] self_attention { heads: 3 } } "
                         "layer { name: 't_mean' input: 't' pool { mode: MEAN } } "
                         "layer { name: 'raw' input: 'T' pool {} }",
                         "'s_all', 't_mean', 'raw', 'C1', 'C2', 'numeric'")),
  };
}

class ModelGradientTest : public testing::TestWithParam<Case> {};

// Every gradient of the model against central differences of the reference in double.
TEST_P(ModelGradientTest, AgreesWithFiniteDifferences) {
  std::mt19937_64 rng(TestSeed());
  const Case& c = GetParam();
  const Job job = JobOf(c);
  const std::unique_ptr<Device> device = MakeCpuDevice({2, CpuIsaLimit::kAuto});
  ModelUnderTest model(DescribeModel(job, InputsOf(c)), OptimizerConfig(), device.get(),
                       {c.batch.batch_size + 3, c.batch.batch_size + 3}, &rng);
  RandomBatch batch = MakeRandomBatch(c.batch, model.spec, model.model.vector_places(), &rng);
  const ReferenceModel reference(job, model.spec, model.arena, batch, c.batch);
  ExpectGradientsOf([&](const auto& arena, const auto& rows,
                        auto* logits) { return reference.Loss(arena, rows, logits); },
                    &model, &batch);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelGradientTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

void UpdateDense(int step, ModelUnderTest* model) {
  model->device->DenseUpdate(model->optimizer, ScalarsForStep(model->optimizer, 0.05f, Step(step)),
                             model->arena.gradients().AsConst(), model->arena.weights(),
                             model->arena.state());
}

// Trains a few steps and returns every bit that training left behind.
std::vector<float> Train(Case c, int threads, CpuIsaLimit isa, uint64_t seed) {
  std::mt19937_64 rng(seed);
  c.batch.unique_keys = 40;
  const std::unique_ptr<Device> device = MakeCpuDevice({threads, isa});
  ModelUnderTest model(DescribeModel(JobOf(c), InputsOf(c)), OptimizerConfig(), device.get(),
                       {300, 300}, &rng);
  std::vector<float> left;
  for (int step = 0; step < 3; ++step) {
    c.batch.batch_size = step == 0 ? 257 : step == 1 ? 60 : 3;
    RandomBatch batch = MakeRandomBatch(c.batch, model.spec, model.model.vector_places(), &rng);
    model.place.step = step;
    model.Step(&batch);
    UpdateDense(step, &model);
    for (const auto& e : batch.gradients) left.insert(left.end(), e.begin(), e.end());
    left.push_back(static_cast<float>(model.loss_sum()));
  }
  for (const DeviceSpan<float>& arena : {model.arena.weights(), model.arena.state()}) {
    left.insert(left.end(), arena.data, arena.data + arena.size);
  }
  return left;
}

TEST(ModelTest, SameBitsForAnyThreadsAndInstructions) {
  const uint64_t seed = TestSeed();
  std::vector<Case> cases;
  for (const std::string job :
       {"dlrm { bottom: 33 top: [70, 20] }", "wide_deep { deep: [70, 20] dropout: 0.2 }",
        "deepfm { deep: 70 }", "dcnv2 { cross_layers: 2 cross_rank: 20 deep: 70 }",
        "finalmlp { first: [70, 20] second: 30 heads: 5 gate: 9 dropout: 0.1 }"}) {
    cases.push_back(DimSixteen(job));
    cases.back().numeric = 13;
  }
  // More steps than there is room for at first.
  for (const std::string job : {"din { attention: [20, 9] deep: 70 dropout: 0.1 }",
                                "bst { heads: 2 positions: 9 deep: 70 dropout: 0.1 }"}) {
    cases.push_back(TwoSequences("", job));
    cases.back().batch.max_bag = {2, -1, 30, 40, 40};
  }
  for (const Case& c : cases) {
    const std::vector<float> expected = Train(c, 1, CpuIsaLimit::kAuto, seed);
    const auto same_bits = [&expected](const std::vector<float>& got) {
      return got.size() == expected.size() &&
             std::memcmp(got.data(), expected.data(), sizeof(float) * got.size()) == 0;
    };
    EXPECT_TRUE(same_bits(Train(c, 1, CpuIsaLimit::kAvx2, seed))) << c.job;
    EXPECT_TRUE(same_bits(Train(c, 2, CpuIsaLimit::kAuto, seed))) << c.job;
    EXPECT_TRUE(same_bits(Train(c, 5, CpuIsaLimit::kAvx2, seed))) << c.job;
    EXPECT_FALSE(same_bits(Train(c, 1, CpuIsaLimit::kAuto, seed + 1))) << c.job;
  }
}

// A batch with more samples and steps than any that is trained.
TEST(ModelTest, ALargerBatchIsScoredBetweenSteps) {
  const uint64_t seed = TestSeed();
  Case c = TwoSequences("", "bst { heads: 2 positions: 9 deep: 70 dropout: 0.1 }");
  c.batch.max_bag = {2, -1, 30, 40, 40};
  const std::unique_ptr<Device> device = MakeCpuDevice({2, CpuIsaLimit::kAuto});
  const auto train = [&](int64_t trained, bool scores, std::vector<float>* scored) {
    std::mt19937_64 rng(seed);
    ModelUnderTest model(DescribeModel(JobOf(c), InputsOf(c)), OptimizerConfig(), device.get(),
                         {300, trained}, &rng);
    c.batch.batch_size = 300;
    const RandomBatch large =
        MakeRandomBatch(c.batch, model.spec, model.model.vector_places(), &rng);
    c.batch.batch_size = 20;
    RandomBatch batch = MakeRandomBatch(c.batch, model.spec, model.model.vector_places(), &rng);
    std::vector<float> gradients;
    for (int step = 0; step < 3; ++step) {
      if (scores) *scored = model.Score(large);
      if (trained == 0) continue;
      model.place.step = step;
      model.Step(&batch);
      const DeviceSpan<float> dense = model.arena.gradients();
      gradients.insert(gradients.end(), dense.data, dense.data + dense.size);
      for (const auto& e : batch.gradients) gradients.insert(gradients.end(), e.begin(), e.end());
    }
    return gradients;
  };
  std::vector<float> with_room, without_room, alone;
  const std::vector<float> gradients = train(300, true, &with_room);
  EXPECT_EQ(train(20, true, &without_room), gradients);
  EXPECT_EQ(train(20, false, nullptr), gradients);
  train(0, true, &alone);
  EXPECT_EQ(with_room.size(), 300u);
  EXPECT_EQ(without_room, with_room);
  EXPECT_EQ(alone, with_room);
}

// What growth takes has what MLPs keep of each step, in panels of 64 columns.
TEST(ModelTest, GrowthTakesHiddenLayersToo) {
  const uint64_t seed = TestSeed();
  const auto growth_of = [seed](const std::string& units) {
    Case c = TwoSequences("", Graph("layer { name: 's' input: 'S' mlp { units: " + units +
                                        " } } layer { name: 's_all' input: 's' pool {} } "
                                        "layer { name: 'raw' input: 'T' pool {} }",
                                    "'s_all', 'raw', 'C1', 'C2', 'numeric'"));
    c.batch.batch_size = 300;
    c.batch.max_bag = {2, -1, 30, 1, 1};
    std::mt19937_64 rng(seed), batch_rng(seed);
    const std::unique_ptr<Device> device = MakeCpuDevice({1, CpuIsaLimit::kAuto});
    ModelUnderTest model(DescribeModel(JobOf(c), InputsOf(c)), OptimizerConfig(), device.get(),
                         {300, 0}, &rng);
    model.Score(MakeRandomBatch(c.batch, model.spec, model.model.vector_places(), &batch_rng));
    const std::string said = model.model.DescribeGrowth();
    std::pair<int64_t, int64_t> growth;  // Steps and bytes.
    EXPECT_EQ(std::sscanf(said.c_str(), "room for %ld steps of sequence 'S' takes %ld bytes",
                          &growth.first, &growth.second),
              2)
        << said;
    return growth;
  };
  const auto [steps, bytes] = growth_of("4");
  EXPECT_GT(steps, 1024);
  const int64_t hidden = 320 * sizeof(float);
  EXPECT_EQ(growth_of("[300, 4]"), std::pair(steps, bytes + steps * hidden));
}

TEST(ModelTest, DropsUnitsInTrainingAlone) {
  std::mt19937_64 rng(TestSeed());
  const Case c = SharedTables("", "wide_deep { deep: [64, 32] dropout: 0.5 }");
  const std::unique_ptr<Device> device = MakeCpuDevice({1, CpuIsaLimit::kAuto});
  ModelUnderTest model(DescribeModel(JobOf(c), InputsOf(c)), OptimizerConfig(), device.get(),
                       {c.batch.batch_size, c.batch.batch_size}, &rng);
  RandomBatch batch = MakeRandomBatch(c.batch, model.spec, model.model.vector_places(), &rng);
  const auto logits_of = [&](bool trains, int64_t step) {
    const SamplePlace place = {step, 0};
    model.model.Forward(
        FloatMatrix(batch.numeric.data(), c.batch.batch_size, c.numeric), batch.batch,
        trains ? DeviceSpan<const SamplePlace>{&place, 1} : DeviceSpan<const SamplePlace>{});
    const Matrix logits = model.model.Logits(0);
    return std::vector<float>(logits.floats(), logits.floats() + c.batch.batch_size);
  };
  EXPECT_EQ(logits_of(false, 0), logits_of(false, 1));
  EXPECT_EQ(logits_of(true, 4), logits_of(true, 4));
  EXPECT_NE(logits_of(true, 4), logits_of(true, 5));
  EXPECT_NE(logits_of(true, 4), logits_of(false, 4));
}

TEST(ModelTest, LossFallsWhenTrained) {
  std::mt19937_64 rng(TestSeed());
  for (const std::string job : {"dlrm { bottom: 7 top: [6, 4] }", "deepfm { deep: 8 dropout: 0.1 }",
                                "finalmlp { first: 8 second: 8 heads: 2 gate: 4 }"}) {
    Case c = SharedTables("", job);
    c.batch.batch_size = 64;
    const std::unique_ptr<Device> device = MakeCpuDevice({2, CpuIsaLimit::kAuto});
    ModelUnderTest model(DescribeModel(JobOf(c), InputsOf(c)), OptimizerConfig(), device.get(),
                         {c.batch.batch_size, c.batch.batch_size}, &rng);
    RandomBatch batch = MakeRandomBatch(c.batch, model.spec, model.model.vector_places(), &rng);
    double first = 0, last = 0;
    for (int step = 0; step < 200; ++step) {
      model.Step(&batch);
      UpdateDense(step, &model);
      last = model.loss_sum();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first) << job;
  }
}

TEST(PaddedStepsTest, BatchesOfAnyLengthHaveAFewSizes) {
  EXPECT_EQ(PaddedSteps(0), 0);
  EXPECT_EQ(PaddedSteps(1), kStepRows);
  EXPECT_EQ(PaddedSteps(65'535), 65'536);
  EXPECT_EQ(PaddedSteps(65'537), 65'536 + 2 * kStepRows);
  for (int64_t steps = 1; steps < int64_t{1} << 30; steps += 1 + steps / 7) {
    std::set<int64_t> sizes;
    for (int64_t i = 0; i <= 1000; ++i) {  // Up to a tenth more.
      const int64_t more = steps + steps / 10 * i / 1000, padded = PaddedSteps(more);
      EXPECT_GE(padded, more);
      EXPECT_LE(padded - more, std::max<int64_t>(kStepRows, more / 32));
      EXPECT_EQ(PaddedSteps(padded), padded);
      sizes.insert(padded);
    }
    EXPECT_LE(sizes.size(), 8u) << steps;
  }
}

TEST(DenseArena, TensorsStandInWholeBlocksInOrder) {
  std::mt19937_64 rng(TestSeed());
  const std::unique_ptr<Device> device = MakeCpuDevice({1, CpuIsaLimit::kAuto});
  const Case c = DimSixteen("dlrm { bottom: [512, 256, 64] top: [512, 256] }");
  const ModelUnderTest model(DescribeModel(JobOf(c), InputsOf(c)), OptimizerConfig(), device.get(),
                             {8, 8}, &rng);
  ASSERT_EQ(model.spec.tensors.size(), 14u);
  int64_t offset = 0;
  for (const DenseTensor& tensor : model.spec.tensors) {
    EXPECT_EQ(model.arena.OffsetOf(tensor), offset) << tensor.name;
    const int64_t floats = int64_t{tensor.rows()} * tensor.cols();
    offset += (floats + kDenseBlockFloats - 1) / kDenseBlockFloats * kDenseBlockFloats;
  }
  EXPECT_EQ(model.arena.weights().size, offset);
}

}  // namespace
}  // namespace thermocline
