#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"
#include "deploy/checkpoints/checkpoint_match.h"

namespace thermocline {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job with these numeric and categorical features, in their order.
Job JobOfFeatures(const std::vector<std::string>& numbers, const std::vector<std::string>& ids,
                  const std::string& more = "dlrm { bottom: 8 top: [8, 4] }") {
  std::string text = R"(
      name: "j" seed: 3
      data { train { path: "log.csv" csv { header: true } } label { column: "y" } }
      default_table { dim: 4 }
      train { batch_size: 16 learning_rate { base: 0.1 } } )";
  for (const std::string& name : numbers) {
    absl::StrAppend(&text, "feature { column: '", name, "' numeric { missing: 0 } }\n");
  }
  for (const std::string& name : ids) {
    absl::StrAppend(&text, "feature { column: '", name, "' categorical {} }\n");
  }
  const auto job = ParseJob(text + more, "j", {});
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

class InitMatchTest : public testing::Test {
 protected:
  InitMatchTest() : manifest_(ManifestOf(JobOfFeatures({"a", "b"}, {"u", "v", "w"}), "1.0")) {}

  absl::StatusOr<std::vector<std::string>> Check(const Job& job) {
    notices_.clear();
    return CheckInit(job, manifest_, &notices_);
  }

  const CheckpointManifest manifest_;
  std::vector<std::string> notices_;
};

TEST_F(InitMatchTest, TheSameFeaturesKeepAll) {
  const auto anew = Check(JobOfFeatures({"a", "b"}, {"u", "v", "w"}));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, IsEmpty());
  EXPECT_THAT(notices_, IsEmpty());
}

TEST_F(InitMatchTest, FirstOrderWeightsThatAreLeftOutAreNamed) {
  CheckpointManifest manifest = manifest_;
  TableSpec* const table = manifest.mutable_tables(1);
  ASSERT_EQ(table->name(), "v");
  table->set_dim(table->dim() + 1);
  table->mutable_first_order()->mutable_optimizer()->mutable_ftrl();
  table->mutable_first_order()->mutable_initializer()->mutable_constant();
  std::vector<std::string> notices;
  const auto anew = CheckInit(JobOfFeatures({"a", "b"}, {"u", "v", "w"}), manifest, &notices);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, IsEmpty());
  EXPECT_THAT(notices, ElementsAre("the first-order weights of table 'v' are left out: the job has "
                                   "none"));
}

TEST_F(InitMatchTest, AFeatureMoreBeginsTheLayerThatReadsIt) {
  const auto anew = Check(JobOfFeatures({"a", "b"}, {"u", "new", "v", "w"}));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, ElementsAre("top.0.weight", "top.0.bias"));
  EXPECT_THAT(
      notices_,
      ElementsAre(
          "the feature 'new' is new", "table 'new' is not in the checkpoint: its rows begin anew",
          AllOf(HasSubstr("tables u, v, w; layers bottom.0.weight, "), HasSubstr("top.1.weight"),
                HasSubstr("inputs are other features: top.0.weight, top.0.bias"))));
}

// One in the place of another gives a layer of the same shape, whose rows say nothing of it.
TEST_F(InitMatchTest, AFeatureInThePlaceOfAnother) {
  const auto anew = Check(JobOfFeatures({"a", "b"}, {"u", "new", "w"}));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, ElementsAre("top.0.weight", "top.0.bias"));
  EXPECT_THAT(notices_,
              Contains("the feature 'v' of the checkpoint is left out: the job has none"));
  EXPECT_THAT(notices_, Contains("table 'v' of the checkpoint is left out: the job has none"));
}

TEST_F(InitMatchTest, ANumberLessBeginsTheBottomsFirstLayer) {
  const auto anew = Check(JobOfFeatures({"b"}, {"u", "v", "w"}));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, ElementsAre("bottom.0.weight", "bottom.0.bias"));
  EXPECT_THAT(notices_,
              Contains("the numeric feature 'a' of the checkpoint is left out: the job has none"));
}

// Layers of a user's own, whose task reads `read`.
std::string LayersWith(const std::string& units, const std::string& more, const std::string& read) {
  return absl::StrCat("layer { name: 'deep' input: ['numeric', 'categorical'] mlp { units: ", units,
                      " } } ", more, " task { label: 'y' input: ", read, " }");
}

constexpr char kCross[] =
    "layer { name: 'cross' input: ['numeric', 'categorical'] cross { layers: 1 } }";

TEST_F(InitMatchTest, LayersMoreOrLess) {
  const Job alone = JobOfFeatures({"a", "b"}, {"u", "v"}, LayersWith("[8, 4]", "", "'deep'"));
  const Job both =
      JobOfFeatures({"a", "b"}, {"u", "v"}, LayersWith("[8, 4]", kCross, "['deep', 'cross']"));
  const auto check = [&](const Job& job, const Job& before) {
    notices_.clear();
    return CheckInit(job, ManifestOf(before, "1.0"), &notices_);
  };
  auto anew = check(both, alone);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, ElementsAre("y.weight", "y.bias"));
  EXPECT_THAT(notices_,
              ElementsAre("kept of the checkpoint: tables u, v; layers deep.0.weight, deep.0.bias, "
                          "deep.1.weight, deep.1.bias. These begin anew, since their inputs are "
                          "others: y.weight, y.bias. The checkpoint has none of these, which begin "
                          "anew: cross.0.weight, cross.0.bias"));
  anew = check(alone, both);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, ElementsAre("y.weight", "y.bias"));
  EXPECT_THAT(notices_, ElementsAre("layer 'cross' of the checkpoint is left out: the job has none",
                                    AllOf(HasSubstr("layers deep.0.weight, "),
                                          HasSubstr("inputs are others: y.weight, y.bias"))));
  EXPECT_THAT(*check(both, both), IsEmpty());
  EXPECT_THAT(notices_, IsEmpty());
  // A layer of another name is another layer.
  anew = check(JobOfFeatures({"a", "b"}, {"u", "v"},
                             "layer { name: 'far' input: ['numeric', 'categorical'] "
                             "mlp { units: 4 } } task { label: 'y' input: 'far' }"),
               alone);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(notices_,
              ElementsAre("layer 'deep' of the checkpoint is left out: the job has none",
                          "kept of the checkpoint: tables u, v; no layers. These begin anew, since "
                          "their inputs are others: y.weight, y.bias. The checkpoint has none of "
                          "these, which begin anew: far.0.weight, far.0.bias"));
  // An MLP may go on into one more layer; a layer that has another width begins nowhere.
  anew = check(JobOfFeatures({"a", "b"}, {"u", "v"}, LayersWith("[8, 4, 2]", "", "'deep'")), alone);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("anew: deep.2.weight, deep.2.bias")));
  anew = check(JobOfFeatures({"a", "b"}, {"u", "v"}, LayersWith("[8, 5]", "", "'deep'")), alone);
  EXPECT_EQ(anew.status(),
            absl::FailedPreconditionError("the MLPs differ: a layer is 'deep.1.weight' of 8 x 5 "
                                          "here, and was of 8 x 4 in the checkpoint; a layer of "
                                          "another name begins anew"));
  // The width of a cross layer is that of its inputs.
  anew = check(JobOfFeatures({"a", "b"}, {"u", "v", "new"},
                             LayersWith("[8, 4]", kCross, "['deep', 'cross']")),
               both);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, ElementsAre("deep.0.weight", "deep.0.bias", "cross.0.weight", "cross.0.bias",
                                 "y.weight", "y.bias"));
}

// Copies of an mlp read the same inputs, and each begins anew where these are others; what lies
// behind the first of their fully connected layers is kept.
TEST_F(InitMatchTest, EachCopyOfAnMlpReadsTheInputs) {
  const auto make = [](const std::string& input, const std::string& copies) {
    return JobOfFeatures({"a", "b"}, {"u", "v"},
                         absl::StrCat("layer { name: 'experts' input: [", input,
                                      "] copies: ", copies, R"( mlp { units: [8, 4] } }
        layer { name: 'mix' input: 'experts' gate { by: 'numeric' } }
        layer { name: 'rest' input: ['numeric', 'u', 'v'] mlp { units: 2 } }
        task { input: ['mix', 'rest'] })"));
  };
  const CheckpointManifest manifest = ManifestOf(make("'u'", "2"), "1.0");
  const auto anew = [&](const Job& job) {
    return CheckInit(job, manifest, &notices_).value_or(std::vector<std::string>{"refused"});
  };
  const std::vector<std::string> first = {"experts.0.0.weight", "experts.0.0.bias",
                                          "experts.1.0.weight", "experts.1.0.bias"};
  EXPECT_THAT(anew(make("'u'", "2")), IsEmpty());
  EXPECT_THAT(anew(make("'v'", "2")), ElementsAreArray(first));       // The shapes are the same.
  EXPECT_THAT(anew(make("'u', 'v'", "2")), ElementsAreArray(first));  // More rows.
}

// A layer that reads steps of other lists, or is asked by others, begins anew.
TEST(SequencesOfACheckpoint, AreComparedByTheirLists) {
  const auto make = [](const std::string& lists, const std::string& query,
                       const std::string& name = "past") {
    return JobOfFeatures({}, {"u", "v"},
                         absl::StrCat(R"(
        feature { column: "c" sequence { max_length: 5 } }
        feature { column: "d" sequence { max_length: 5 } }
        sequence { name: ")",
                                      name, "\" of: ", lists, R"( }
        layer { name: "own" input: )",
                                      query, R"( concat {} }
        layer { name: "a" input: ")",
                                      name, R"(" attention { query: "own" units: 3 } }
        layer { name: "p" input: ["u", "v", "c", "d"] mlp { units: 2 } }
        task { input: ["a", "p"] })"));
  };
  const CheckpointManifest manifest = ManifestOf(make("'c'", "'u'"), "1.0");
  std::vector<std::string> notices;
  const auto anew = [&](const Job& job) {
    return CheckInit(job, manifest, &notices).value_or(std::vector<std::string>{"refused"});
  };
  EXPECT_THAT(anew(make("'c'", "'u'", "renamed")), IsEmpty());
  EXPECT_THAT(anew(make("'d'", "'u'")), Contains("a.0.weight"));
  EXPECT_THAT(anew(make("'c'", "'v'")), Contains("a.0.weight"));
  EXPECT_TRUE(CheckModel(make("'c'", "'u'"), manifest).ok());
  EXPECT_EQ(CheckModel(make("'d'", "'u'"), manifest).message(),
            "the sequence 'past' has of [\"d\"] here, [\"c\"] in the checkpoint");
  EXPECT_EQ(CheckModel(make("'c'", "'u'", "renamed"), manifest).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(SequencesOfACheckpoint, MorePositionsBeginAnew) {
  const auto make = [](int positions) {
    return JobOfFeatures({}, {"u"},
                         absl::StrCat(R"(
        feature { column: "c" sequence { max_length: 9 } }
        sequence { name: "past" of: "c" }
        layer { name: "sa" input: "past" self_attention { positions: )",
                                      positions, R"( } }
        layer { name: "mean" input: "sa" pool {} }
        layer { name: "p" input: ["u", "c", "mean"] mlp { units: 2 } }
        task { input: "p" })"));
  };
  std::vector<std::string> notices;
  const auto anew = CheckInit(make(7), ManifestOf(make(5), "1.0"), &notices);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, ElementsAre("sa.positions"));
  EXPECT_THAT(notices, ElementsAre(testing::EndsWith(
                           ". These begin anew, since they have another size here: "
                           "sa.positions")));
}

// All that two presets share are the tables.
TEST_F(InitMatchTest, AnotherPresetKeepsTheTables) {
  const auto anew = Check(JobOfFeatures({"a", "b"}, {"u", "v", "w"}, "deepfm { deep: 8 }"));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, IsEmpty());
  EXPECT_THAT(notices_, Contains("layer 'top' of the checkpoint is left out: the job has none"));
  EXPECT_THAT(notices_, Contains("the first-order weights of table 'u' begin anew: the checkpoint "
                                 "has none"));
  EXPECT_THAT(notices_, Contains(AllOf(HasSubstr("tables u, v, w; no layers. "),
                                       HasSubstr("deep.0.weight, deep.0.bias"))));
}

TEST_F(InitMatchTest, ARunGoesOnWithItsLayers) {
  const auto difference = [](const std::string& now, const std::string& before) {
    const CheckpointManifest manifest = ManifestOf(JobOfFeatures({"a"}, {"u", "v"}, before), "1.0");
    const absl::Status status = CheckModel(JobOfFeatures({"a"}, {"u", "v"}, now), manifest);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  const std::string deep = LayersWith("[8, 4]", "", "'deep'");
  EXPECT_EQ(difference(deep, deep), "");
  EXPECT_EQ(difference(LayersWith("[8, 4] dropout: 0.5", "", "'deep'"), deep), "");
  EXPECT_EQ(difference(LayersWith("[8, 4]", "", "'deep' weight: 0.5"), deep), "");
  EXPECT_EQ(difference(LayersWith("[9]", "", "'deep'"), deep),
            "the layer 'deep' has units [9] here, [8, 4] in the checkpoint");
  EXPECT_EQ(difference(LayersWith("[8, 4] activation: TANH", "", "'deep'"), deep),
            "the layer 'deep' has activation TANH here, RELU in the checkpoint");
  EXPECT_EQ(difference(LayersWith("[8, 4]", kCross, "['deep', 'cross']"), deep),
            "the checkpoint has no layer 'cross'");
  EXPECT_EQ(difference(deep, LayersWith("[8, 4]", kCross, "['deep', 'cross']")),
            "the checkpoint has a layer 'cross', the job has none");
  const std::string two = LayersWith("[8, 4]", kCross, "['deep', 'cross']");
  EXPECT_EQ(difference(LayersWith("[8, 4]", kCross, "['cross', 'deep']"), two),
            "the task 'y' has input [\"cross\", \"deep\"] here, [\"deep\", \"cross\"] in the "
            "checkpoint");
  EXPECT_EQ(difference("deepfm { deep: 8 }", "dcnv2 { cross_layers: 1 deep: 8 }"),
            "the checkpoint has a layer 'cross', the job has none");
  EXPECT_EQ(difference("wide_deep { deep: 8 }", LayersWith("8", "", "'deep'")),
            "the checkpoint has no layer 'wide'");
}

// A checkpoint of an earlier program, whose job has the preset itself.
TEST_F(InitMatchTest, ThePresetOfAnOldCheckpointMeansItsLayers) {
  CheckpointManifest old = manifest_;
  old.mutable_job()->clear_layer();
  old.mutable_job()->clear_task();
  old.mutable_job()->mutable_dlrm()->add_bottom(8);
  for (const uint32_t width : {8, 4}) old.mutable_job()->mutable_dlrm()->add_top(width);
  const Job job = JobOfFeatures({"a", "b"}, {"u", "v", "w"});
  EXPECT_EQ(CheckModel(job, old), absl::OkStatus());
  EXPECT_THAT(*CheckInit(job, old, &notices_), IsEmpty());
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_EQ(
      CheckModel(JobOfFeatures({"a", "b"}, {"u", "v", "w"}, "dlrm { bottom: 8 top: 8 }"), old),
      absl::FailedPreconditionError(
          "the layer 'top' has units [8, 1] here, [8, 4, 1] in the checkpoint"));
}

constexpr char kScript[] = "worker { command: ['python3', 'train.py'] }";

TEST_F(InitMatchTest, AScriptGetsTheStateOfAScript) {
  const auto check = [&](const Job& job) {
    notices_.clear();
    return CheckInit(job, ManifestOf(JobOfFeatures({"a"}, {"u", "v"}, kScript), "1.0"), &notices_);
  };
  auto anew = check(JobOfFeatures({"a"}, {"u", "v"}, "worker { command: 'other.py' }"));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, IsEmpty());
  EXPECT_THAT(notices_, IsEmpty());
  anew = check(JobOfFeatures({"a"}, {"u", "v", "new"}, kScript));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, IsEmpty());
  EXPECT_THAT(notices_, ElementsAre("the feature 'new' is new",
                                    "table 'new' is not in the checkpoint: its rows begin anew",
                                    "kept of the checkpoint: tables u, v, and the script's state, "
                                    "which was made for the other features"));
  anew = check(JobOfFeatures({"a"}, {"u", "v"}));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, IsEmpty());
  EXPECT_THAT(notices_,
              ElementsAre("the state of the checkpoint's script is left out: the job has none, so "
                          "that its layers begin anew"));
}

TEST_F(InitMatchTest, AScriptGetsNoLayers) {
  const auto anew = Check(JobOfFeatures({"a", "b"}, {"u", "v", "w"}, kScript));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_THAT(*anew, IsEmpty());
  EXPECT_THAT(notices_, ElementsAre("the layers of the checkpoint's model are left out: the job's "
                                    "model is a script, which begins without a state"));
}

// A run goes on with the model that it has.
TEST_F(InitMatchTest, AScriptDoesNotGoOnForAnotherModel) {
  const Job script = JobOfFeatures({"a", "b"}, {"u", "v", "w"}, kScript);
  const Job layers = JobOfFeatures({"a", "b"}, {"u", "v", "w"});
  EXPECT_EQ(CheckModel(script, manifest_),
            absl::FailedPreconditionError("the job has a script (`worker`), and the checkpoint's "
                                          "job has layers"));
  EXPECT_EQ(CheckModel(layers, ManifestOf(script, "1.0")),
            absl::FailedPreconditionError("the job has layers, and the checkpoint's job has a "
                                          "script (`worker`)"));
  EXPECT_EQ(CheckModel(script, ManifestOf(script, "1.0")), absl::OkStatus());
}

TEST_F(InitMatchTest, WhatDoesNotFitIsRefused) {
  const auto refused = [&](const Job& job) {
    const auto anew = Check(job);
    EXPECT_EQ(anew.status().code(), absl::StatusCode::kFailedPrecondition);
    return std::string(anew.status().message());
  };
  EXPECT_THAT(refused(JobOfFeatures({"a", "b"}, {"v", "u", "w"})),
              HasSubstr("name is \"v\", and the checkpoint was made with \"u\""));
  EXPECT_THAT(refused(JobOfFeatures({"a", "b"}, {"u", "v"}, "dlrm { bottom: 8 top: [9, 4] }")),
              HasSubstr("the MLPs differ: a layer is 'top.0.weight'"));
  EXPECT_THAT(refused(JobOfFeatures({"a"}, {"u", "v", "w"}, "dlrm { bottom: [8, 8] top: [8, 4] }")),
              HasSubstr("the MLPs differ"));
}

}  // namespace
}  // namespace thermocline
