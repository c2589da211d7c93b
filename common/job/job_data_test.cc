// Described data: what stanzas mean once resolved, and every value that they can't have.
#include "common/job/job_data.h"

#include <google/protobuf/util/message_differencer.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"
#include "common/job/job_source.h"
#include "common/job/resolved_job.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr char kModel[] = R"(dlrm { bottom: 8 top: 8 }
train { batch_size: 16 learning_rate { base: 0.1 } })";

Job Parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJob(absl::StrCat("name: 'j' ", text, "\n", kModel), "j", overrides);
  if (!job.ok()) {
    ADD_FAILURE() << job.status();
    return Job();
  }
  return *job;
}

std::vector<std::string> Names(const std::vector<const Feature*>& features) {
  std::vector<std::string> names;
  for (const Feature* feature : features) names.push_back(feature->name());
  return names;
}

// Resolving what is resolved, from its text, changes nothing.
void ExpectStable(const Job& job) {
  const auto again = ParseJob(JobToText(job), "again", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(MessageDifferencer::Equals(*again, job));
}

TEST(ResolveData, TheShortFormSaysWhatItMeans) {
  const Job job = Parse("data { format: CRITEO_TSV path: 'p' num_dense: 2 num_categorical: 1 }");
  ExpectStable(job);
  ASSERT_EQ(job.feature_size(), 3);
  EXPECT_EQ(job.feature(0).column(0), "C1");
  EXPECT_EQ(job.feature(0).categorical().id(), Feature::Categorical::HEX);
  EXPECT_EQ(job.feature(0).categorical().separator(), ",");
  EXPECT_EQ(job.feature(0).categorical().missing(), Feature::Categorical::OWN_KEY);
  EXPECT_EQ(job.feature(2).column(0), "I2");
  EXPECT_EQ(job.feature(2).numeric().missing(), 0);
  EXPECT_TRUE(job.feature(2).numeric().has_missing());
  EXPECT_TRUE(job.feature(2).numeric().transform(0).has_log1p());
  EXPECT_EQ(job.table_size(), 1);

  const Job described = Parse(R"(
data { train { path: "p" criteo_tsv { integers: 2 categories: 1 } }
       split { last_share: 0.1 } label { column: "label" } }
feature { column: "I1..I2" numeric { missing: 0 transform { log1p {} } } }
feature { column: "C1" categorical { id: HEX } })");
  ExpectStable(described);
  EXPECT_EQ(described.data().num_dense(), 2u);
  EXPECT_EQ(Names(EmbeddedFeatures(described)), Names(EmbeddedFeatures(job)));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(
        MessageDifferencer::Equals(*NumericFeatures(described)[i], *NumericFeatures(job)[i]));
  }
  EXPECT_TRUE(
      MessageDifferencer::Equals(*EmbeddedFeatures(described)[0], *EmbeddedFeatures(job)[0]));
  const Data a = DescribeData(job.data()), b = DescribeData(described.data());
  EXPECT_TRUE(MessageDifferencer::Equals(a.train(), b.train()));
  EXPECT_TRUE(MessageDifferencer::Equals(a.split(), b.split()));
  EXPECT_TRUE(MessageDifferencer::Equals(a.label(), b.label()));
  EXPECT_EQ(InputsOf(job).numeric, InputsOf(described).numeric);
  EXPECT_EQ(InputsOf(job).num_vectors(), InputsOf(described).num_vectors());
}

// The job of a run directory that an older program resolved lists categorical features alone.
TEST(ResolveData, OldResolvedJobsMeanTheSame) {
  const Job now = Parse("data { format: CRITEO_TSV path: 'p' num_dense: 2 num_categorical: 1 }");
  const Job old = Parse(R"(data { format: CRITEO_TSV path: 'p' test_share: 0.1 num_dense: 2
num_categorical: 1 read_ahead_batches: 4 }
feature { name: "C1" table: "C1" pooling: SUM columns: 1 })");
  EXPECT_TRUE(MessageDifferencer::Equals(now, old));
}

// Precision and initializer, too, stood in `dlrm`.
TEST(ResolveData, OldJobsOfADlrmMeanTheSame) {
  const std::string data = "data { format: CRITEO_TSV path: 'p' } device: CUDA ";
  const Job now = Parse(data + "precision: TF32 initializer { reference {} }");
  const Job old = Parse(data, {"dlrm.precision=TF32", "dlrm.initializer={reference {}}"});
  EXPECT_TRUE(MessageDifferencer::Equals(now, old));
  EXPECT_TRUE(MessageDifferencer::Equals(
      now, Parse(data + "precision: TF32", {"dlrm.precision=TF32", "initializer={reference {}}"})));
  ExpectStable(now);
  EXPECT_EQ(DescribeModel(old).precision, TF32);
  EXPECT_TRUE(DescribeModel(old).tensors[0].initializer.has_reference());
}

TEST(ValidateJob, PrecisionAndInitializerAreNotWrittenTwice) {
  const auto error = [](const std::string& text, const std::vector<std::string>& overrides) {
    const auto job = ParseJob(
        absl::StrCat("name: 'j' data { format: CRITEO_TSV path: 'p' }\n", text, "\n", kModel), "j",
        overrides);
    EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(job.status().message());
  };
  EXPECT_EQ(error("precision: BFLOAT16", {"dlrm.precision=TF32"}),
            "--set dlrm.precision=TF32: dlrm.precision is TF32, and precision is BFLOAT16; write "
            "precision alone");
  EXPECT_EQ(error("initializer { reference {} }", {"dlrm.initializer={glorot_uniform {}}"}),
            "--set dlrm.initializer={glorot_uniform {}}: dlrm.initializer is set, and initializer "
            "is another; write initializer alone");
  EXPECT_EQ(error("device: CPU precision: TF32", {}),
            "j:2: precision is TF32; device CPU knows FLOAT32 and BFLOAT16");
}

// `job` whose task learns `label`, as resolving it leaves it.
Job Learning(const std::string& label, Job job) {
  if (job.task_size() == 0) job.add_task();
  job.mutable_task(0)->set_label(label);
  ResolveJob(&job);
  return job;
}

TEST(ResolveData, ATaskLearnsOneOfTheLabelsColumns) {
  const Job two =
      Parse(R"(data { train { path: "p" parquet {} } label { column: ["click", "buy"] } }
feature { column: "n1" numeric {} } feature { column: "u" })");
  EXPECT_EQ(LearnedLabels(two), std::vector<std::string>{"click"});
  EXPECT_EQ(LearnedLabels(Learning("buy", two)), std::vector<std::string>{"buy"});
  EXPECT_EQ(LearnedLabels(Learning("", two)), std::vector<std::string>{"click"})
      << "refused where it is loaded";
  const Job criteo = Parse("data { format: CRITEO_TSV path: 'p' }");
  const Job npy = Parse("data { train { path: 'd' npy {} } }");
  for (const Job& own : {criteo, npy}) {
    EXPECT_EQ(LearnedLabels(own), std::vector<std::string>{"label"});
    EXPECT_EQ(Learning("", own).task(0).label(), "label");
  }
}

// The stanza of a model of layers, at line 6, and what a job of two labels with it is or lacks.
absl::StatusOr<Job> WithLayers(const std::string& layers,
                               const std::string& labels = "'click', 'buy'") {
  return ParseJob(absl::StrCat(R"(name: 'j'
data { train { path: "p" parquet {} } label { column: [)",
                               labels, R"(] } }
feature { column: "n1" numeric {} }
feature { column: "u" }
train { batch_size: 16 learning_rate { base: 0.1 } }
)",
                               layers),
                  "j", {});
}

TEST(ResolveData, TheTaskOfLayersLearnsTheLabelThatItNames) {
  const std::string deep = "layer { name: 'deep' input: ['numeric', 'u'] mlp { units: 8 } }\n";
  const auto buys = WithLayers(deep + "task { label: 'buy' input: 'deep' }");
  ASSERT_TRUE(buys.ok()) << buys.status();
  EXPECT_EQ(LearnedLabels(*buys), std::vector<std::string>{"buy"});
  EXPECT_EQ(ResolveTables(*buys).dense.back().layout.name, "buy.bias");
  ExpectStable(*buys);
  const auto preset = WithLayers("wide_deep { deep: 8 }");
  ASSERT_TRUE(preset.ok()) << preset.status();
  EXPECT_EQ(LearnedLabels(*preset), std::vector<std::string>{"click"});
  ExpectStable(*preset);

  const auto error = [&](const std::string& layers) {
    return std::string(WithLayers(layers).status().message());
  };
  EXPECT_EQ(error(deep + "task { input: 'deep' }"),
            "j:7: task[0].label is missing; it is one of click, buy (data.label.column)");
  EXPECT_EQ(error(deep + "task { label: 'by' input: 'deep' }"),
            "j:7: task[0].label is 'by', but there is no such label (did you mean 'buy'?); there "
            "are click, buy");
  EXPECT_EQ(
      std::string(
          WithLayers("mmoe { experts: 2 expert: 4 }", "'buy', 'click', 'buy'").status().message()),
      "j:2: data.label.column has 'buy' twice");
  EXPECT_EQ(error(deep), "j: task is missing; a model of layers has a task");
  EXPECT_EQ(error(deep + deep + "task { label: 'buy' input: 'deep' }"),
            "j:7: layer[1].name is 'deep' a second time");
  EXPECT_EQ(error("layer { name: 'deep' input: ['numeric', 'u', 'deep'] mlp { units: 8 } }\n"
                  "task { label: 'buy' input: 'deep' }"),
            "j:6: layer[0].input[2] is 'deep', which is the layer itself; a layer reads layers "
            "before it alone");
  const auto both = WithLayers(
      deep + "task { label: 'buy' input: 'deep' } task { label: 'click' input: 'deep' }");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(LearnedLabels(*both), (std::vector<std::string>{"buy", "click"}));
  EXPECT_EQ(DecidingTask(*both), 0u);
  ExpectStable(*both);
  EXPECT_EQ(
      error(deep + "task { label: 'buy' input: 'deep' }\ntask { label: 'buy' input: 'deep' }"),
      "j:8: task[1].label is 'buy' a second time");
}

TEST(ResolveData, OneTaskDecides) {
  const auto with_tasks = [](const std::string& tasks, const std::string& evaluate) {
    return ParseJob(R"(name: 'j'
data { train { path: "p" parquet {} } split { last_share: 0.1 } label { column: ["click", "buy"] } }
feature { column: "u" }
layer { name: 'deep' input: 'u' mlp { units: 8 } } train { batch_size: 16 learning_rate { base: 1 } }
)" + tasks + "\nevaluate { every_passes: 1 " +
                        evaluate + "}",
                    "j", {});
  };
  const std::string both =
      "task { label: 'buy' input: 'deep' } task { label: 'click' input: 'deep' }";
  const auto by_default = with_tasks(both, "");
  ASSERT_TRUE(by_default.ok()) << by_default.status();
  EXPECT_EQ(by_default->evaluate().task(), "buy");
  EXPECT_EQ(DecidingTask(*by_default), 0u);
  const auto by_clicks = with_tasks(both, "task: 'click'");
  ASSERT_TRUE(by_clicks.ok()) << by_clicks.status();
  EXPECT_EQ(DecidingTask(*by_clicks), 1u);
  ExpectStable(*by_clicks);
  EXPECT_EQ(with_tasks(both, "task: 'clik'").status().message(),
            "j:6: evaluate.task is 'clik', which no task learns (did you mean 'click'?)");
  const auto one = with_tasks("task { label: 'buy' input: 'deep' }", "");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->evaluate().task(), "") << "there is no other";
}

// All else of `evaluate` is for training; the rows may come from elsewhere.
TEST(ResolveData, AJobThatOnlyScoresKeepsTheTaskThatDecides) {
  const auto scored = [](const std::string& evaluate, const std::vector<std::string>& flags = {}) {
    return ParseJob(R"(name: 'j'
data { train { path: "p" parquet {} } label { column: ["click", "buy"] } }
feature { column: "u" }
layer { name: 'deep' input: 'u' mlp { units: 8 } } train { batch_size: 16 learning_rate { base: 1 } }
task { label: 'buy' input: 'deep' } task { label: 'click' input: 'deep' } )" +
                        evaluate,
                    "j", flags, {}, JobUse::kScore);
  };
  const auto by_clicks = scored("evaluate { every_steps: 5 patience: 2 task: 'click' }");
  ASSERT_TRUE(by_clicks.ok()) << by_clicks.status();
  EXPECT_EQ(DecidingTask(*by_clicks), 1u);
  EXPECT_EQ(by_clicks->evaluate().patience(), 0u);
  EXPECT_EQ(by_clicks->evaluate().every_steps(), 0u);
  const auto by_flag = scored("", {"evaluate.task=click"});
  ASSERT_TRUE(by_flag.ok()) << by_flag.status();
  EXPECT_EQ(DecidingTask(*by_flag), 1u);
  EXPECT_FALSE(scored("evaluate { every_steps: 5 }")->has_evaluate());
  EXPECT_EQ(scored("", {"evaluate.task=clik"}).status().message(),
            "--set evaluate.task=clik: evaluate.task is 'clik', which no task learns (did you mean "
            "'click'?)");
}

TEST(ResolveData, EveryFeatureOfCriteoUnlessSomeAreListed) {
  const Job all = Parse("data { train { path: 'p' criteo_tsv {} } }");
  EXPECT_EQ(EmbeddedFeatures(all).size(), 26u);
  EXPECT_EQ(NumericFeatures(all).size(), 13u);
  EXPECT_EQ(all.data().split().last_share(), 0.1);
  EXPECT_EQ(all.data().label().column(0), "label");
  const Job some = Parse(R"(data { train { path: 'p' criteo_tsv {} } }
feature { name: "C5" } feature { column: ["I3", "I7..I8"] numeric { missing: 0 } })");
  EXPECT_EQ(some.feature(0).column(0), "C5");
  EXPECT_EQ(Names(NumericFeatures(some)), (std::vector<std::string>{"I3", "I7", "I8"}));
  EXPECT_EQ(some.data().num_dense(), 3u);
}

constexpr char kCsv[] = R"(data {
  train { path: "a.csv" csv { column: ["y", "u", "v", "n1", "n2", "w"] } }
  label { column: "y" }
}
feature { column: ["u", "v"] table: "shared" categorical { buckets: 100 } }
table { name: "shared" }
feature { column: "n1..n2" numeric {} }
feature { name: "uxv" cross { of: ["u", "v"] buckets: 50 } }
feature { name: "hist" column: "w" sequence { max_length: 5 } }
)";

TEST(ResolveData, AStanzaOfSeveralColumnsIsAFeatureOfEach) {
  const Job job = Parse(kCsv);
  ExpectStable(job);
  EXPECT_EQ(Names(EmbeddedFeatures(job)), (std::vector<std::string>{"u", "v", "uxv", "hist"}));
  EXPECT_EQ(Names(NumericFeatures(job)), (std::vector<std::string>{"n1", "n2"}));
  EXPECT_EQ(job.feature(1).table(), "shared");
  EXPECT_EQ(job.feature(1).categorical().buckets(), 100u);
  EXPECT_EQ(job.feature(1).categorical().id(), Feature::Categorical::STRING);
  EXPECT_EQ(job.feature(5).categorical().separator(), "|");
  EXPECT_EQ(job.feature(5).categorical().missing(), Feature::Categorical::NO_KEY);
  EXPECT_EQ(job.feature(5).sequence().keep(), Feature::Sequence::LAST);
  EXPECT_EQ(job.data().train().csv().separator(), ",");
  EXPECT_TRUE(job.data().train().csv().quotes());
  EXPECT_EQ(ResolveTables(job).sparse.size(), 3u);
  EXPECT_EQ(InputsOf(job).numeric, 2);
}

TEST(ResolveData, TheShortFormsFieldsStandForThose) {
  const Job job = Parse(kCsv, {"data.path=b.csv", "data.test_share=0.25"});
  EXPECT_EQ(job.data().train().path(0), "b.csv");
  EXPECT_EQ(job.data().split().last_share(), 0.25);
  EXPECT_EQ(job.data().path(), "");
  EXPECT_FALSE(job.data().has_test_share());
  const Job own = Parse(kCsv, {"data.test_path=c.csv"});
  EXPECT_EQ(own.data().test().path(0), "c.csv");
  EXPECT_TRUE(own.data().test().has_csv());
  EXPECT_FALSE(own.data().has_split());
}

TEST(ResolveData, RangesOfColumns) {
  google::protobuf::RepeatedPtrField<std::string> columns;
  for (const char* column : {"x", "I9..I11", "I3..I1", "I1..J2", "a..b", "I1..I5000"}) {
    columns.Add(column);
  }
  EXPECT_EQ(ExpandColumns(columns), (std::vector<std::string>{"x", "I9", "I10", "I11", "I3..I1",
                                                              "I1..J2", "a..b", "I1..I5000"}));
}

// kCsv with `from` replaced by `to`, and the error that it makes.
std::string ErrorWith(const std::string& from, const std::string& to) {
  std::string text = absl::StrCat("name: 'j' ", kCsv, kModel);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto job = ParseJob(text, "j", {});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument) << to;
  return std::string(job.status().message());
}

struct Case {
  const char* from;
  const char* to;
  const char* error;
};

TEST(ValidateData, NamesLineAndField) {
  for (const Case& c : {
           Case{"csv {", "csv { header: true",
                "j:2: data.train.csv.column is set, and header: true as well; the header names the "
                "columns"},
           Case{R"(column: ["y", "u", "v", "n1", "n2", "w"])", "",
                "j:2: data.train.csv.column is missing; name the columns, or say header: true "
                "where the files' first lines do"},
           Case{"\"n2\", ", "\"u\", ", "j:2: data.train.csv.column has 'u' twice"},
           Case{"csv {", "csv { separator: '::'",
                "j:2: data.train.csv.separator is not one character; a tab is written \"\\t\""},
           Case{"path: \"a.csv\"", "",
                "j:2: data.train.path is empty; give it in the job file or with --data"},
           Case{"label { column: \"y\" }", "",
                "j:1: data.label names no column; only criteo_tsv and npy have their own"},
           Case{"label { column: \"y\" }", "label { column: \"Y\" }",
                "j:3: data.label.column names 'Y', but there is no such column (did you mean "
                "'y'?)"},
           Case{"column: \"y\" }\n}", "column: ['y', 'n1'] }\n}\ntask { label: 'N1' }",
                "j:5: task[0].label is 'N1', but there is no such label (did you mean 'n1'?); "
                "there are y, n1"},
           Case{"column: \"y\" }\n}", "column: ['y', 'n1'] }\n}\ntask { input: 'top' }",
                "j:5: task[0].label is missing; it is one of y, n1 (data.label.column)"},
           Case{"column: \"y\" }\n}", "column: 'y' }\n}\ntask { label: 'click' }",
                "j:5: task[0].label is 'click', but there is no such label; there is y"},
           Case{"label {", "format: CRITEO_TSV label {",
                "j:3: data.format is set, and data.train as well; choose one"},
           Case{"label {", "weight: 'N1' label {",
                "j:3: data.weight names 'N1', but there is no such column (did you mean 'n1'?)"},
           Case{"label {", "group: 'n4' label {",
                "j:3: data.group names 'n4', but there is no such column"},
           Case{"label {", "split { last_share: 1 } label {",
                "j:3: data.split.last_share is 1; it must be in [0, 1)"},
           Case{"label {", "split { column: 'n1' } label {",
                "j:3: data.split.test_from is missing; column and test_from go together"},
           Case{"label {", "split { column: 'm1' test_from: '5' } label {",
                "j:3: data.split.column names 'm1', but there is no such column"},
           Case{"label {", "split { last_share: 0.5 } test { path: 'b' } label {",
                "j:3: data.split is set, and data.test as well; choose one"},
           Case{"label {", "shuffle {} label {",
                "j:3: data.shuffle.block_rows is 0; it must be at least 2"},
           Case{"label {", "num_dense: 7 label {",
                "j:3: data.num_dense is 7, but 2 features are numeric"},
       }) {
    EXPECT_EQ(ErrorWith(c.from, c.to), c.error);
  }
}

TEST(ValidateData, ColumnsOfParquetAreCheckedWhereTheFilesAre) {
  const auto job = ParseJob(R"(name: "j"
data { train { path: "s3://logs/days/" parquet {} } label { column: "y" } }
feature { column: "u" categorical { separator: "\t" } }
feature { column: "x" numeric {} }
dlrm { bottom: 8 top: 8 }
train { batch_size: 4 learning_rate { base: 0.1 } })",
                            "j", {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->data().split().last_share(), 0.1);
  EXPECT_EQ(job->data().num_dense(), 1u);
  EXPECT_EQ(job->feature(0).categorical().id(), Feature::Categorical::STRING);
}

TEST(ValidateFeatures, NamesLineAndField) {
  for (const Case& c : {
           Case{"[\"u\", \"v\"] table", "[\"u\", \"v\"] name: 'x' table",
                "j:5: feature[0].name is one name, and the stanza has 2 columns, which are a "
                "feature each"},
           Case{"n1..n2", "n1..n3",
                "j:7: feature[1].column names 'n3', but there is no such column"},
           Case{"column: \"w\"", "column: \"y\"",
                "j:9: feature[3].column is 'y', which is a label"},
           Case{"numeric {}", "numeric {} categorical {}",
                "j:7: feature[1].numeric is set beside another kind; choose one"},
           Case{"numeric {}", "table: 'shared' numeric {}",
                "j:7: feature[1].table is set, but a numeric feature reads no table"},
           Case{"numeric {}", "numeric { transform { standardize {} } }",
                "j:7: feature[1].numeric.transform[0].standardize.std is 0; it must be finite and "
                "above 0"},
           Case{"numeric {}", "numeric { transform { clip { min: 2 max: 1 } } }",
                "j:7: feature[1].numeric.transform[0].clip.min is 2; it must be at most max, 1"},
           Case{"numeric {}", "numeric { transform { clip {} } }",
                "j:7: feature[1].numeric.transform[0].clip has neither min nor max"},
           Case{"numeric {}", "numeric { transform {} }",
                "j:7: feature[1].numeric.transform[0] is empty; it is one of log1p, clip, "
                "standardize"},
           Case{"buckets: 100", "boundaries: [2, 1]",
                "j:5: feature[0].categorical.boundaries must be finite and ascend; 1 does not"},
           Case{"buckets: 100", "boundaries: 2 buckets: 3",
                "j:5: feature[0].categorical.buckets is set beside boundaries, which make few keys "
                "by themselves"},
           Case{"buckets: 100", "weights: 'scores'",
                "j:5: feature[0].categorical.weights names 'scores', but there is no such column"},
           Case{"buckets: 100", "weights: 'y'",
                "j:5: feature[0].categorical.weights is 'y', which is a label"},
           Case{"buckets: 100", "min: 2", "j:5: feature[0].categorical.min goes with id: INTEGER"},
           Case{"buckets: 100", "separator: ','",
                "j:5: feature[0].categorical.separator is ','; it must be one character, and not "
                "the one between columns"},
           Case{"buckets: 100", "separator: '|'",
                "j:8: feature[2].cross.of names 'u', which is a list"},
           Case{"of: [\"u\", \"v\"]", "of: [\"u\", \"n1\"]",
                "j:8: feature[2].cross.of names 'n1', which is numeric"},
           Case{"of: [\"u\", \"v\"]", "of: [\"u\", \"vv\"]",
                "j:8: feature[2].cross.of names 'vv', but there is no such feature"},
           Case{"of: [\"u\", \"v\"]", "of: [\"u\", \"hists\"]",
                "j:8: feature[2].cross.of names 'hists', but there is no such feature (did you "
                "mean 'hist'?)"},
           Case{"of: [\"u\", \"v\"]", "of: 'u'",
                "j:8: feature[2].cross.of names fewer than two features"},
           Case{"buckets: 100 } }\ntable { name: \"shared\" }",
                "min_count: 2 } }\ntable { name: 'shared' settings { min_count: 3 } }",
                "j:5: feature[0].categorical.min_count is 2, but table 'shared', which it reads, "
                "has 3"},
           Case{"max_length: 5", "",
                "j:9: feature[3].sequence.max_length is 0; it must be at least 1"},
           Case{"name: \"hist\"", "name: \"u\"",
                "j:9: feature[3].name is 'u', as is feature[0].name"},
           Case{"name: \"hist\"", "padding_id: 0 name: \"hist\"",
                "j:9: feature[3].padding_id is for npy; in text a bag has no padding"},
       }) {
    EXPECT_EQ(ErrorWith(c.from, c.to), c.error);
  }
  EXPECT_EQ(ErrorWith("buckets: 100", "id: HEXX"),
            "j:5:64: field 'id' has no value 'HEXX' (did you mean 'HEX'?); it is one of HEX, "
            "ID_UNSPECIFIED, INTEGER, STRING");
}

TEST(ValidateFeatures, NpyHasNoNamedColumns) {
  const auto job = ParseJob(absl::StrCat("name: 'j' data { train { path: 'd' npy {} } }\n",
                                         "feature { name: 'a' column: 'b' }\n", kModel),
                            "j", {});
  EXPECT_EQ(job.status(),
            absl::InvalidArgumentError("j:2: feature[0].column is for text, and the data are npy"));
  const auto grouped =
      ParseJob(absl::StrCat("name: 'j' data { train { path: 'd' npy {} }\n group: 'b' }\n", kModel),
               "j", {});
  EXPECT_EQ(grouped.status(),
            absl::InvalidArgumentError("j:2: data.group names a column; those of npy have none"));
}

}  // namespace
}  // namespace thermocline
