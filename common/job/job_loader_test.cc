#include "common/job/job_loader.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kSmallest[] = R"(name: "smallest"
data { format: CRITEO_TSV path: "log.tsv" }
dlrm { bottom: 8 top: 8 }
train { batch_size: 16 learning_rate { base: 0.1 } }
)";

Job Parse(absl::string_view text, const std::vector<std::string>& overrides = {}) {
  auto job = ParseJob(text, "job.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

std::string ErrorOf(absl::string_view text, const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJob(text, "job.textproto", overrides);
  EXPECT_FALSE(job.ok());
  if (job.ok()) return "";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

TEST(ParseJob, FillsInTheDocumentedDefaults) {
  const Job job = Parse(kSmallest);
  EXPECT_EQ(job.seed(), 0u);
  EXPECT_EQ(job.data().num_dense(), 13u);
  EXPECT_EQ(job.data().num_categorical(), 26u);
  EXPECT_EQ(job.data().test_share(), 0.1);
  EXPECT_EQ(job.data().max_bad_lines(), 0u);
  EXPECT_EQ(job.data().read_ahead_batches(), 4u);
  EXPECT_EQ(job.default_table().dim(), 16u);
  EXPECT_EQ(job.default_table().init_scale(), 0.01f);
  EXPECT_EQ(job.default_table().optimizer().kind_case(), Optimizer::kAdagrad);
  EXPECT_EQ(job.default_table().optimizer().adagrad().epsilon(), 1e-10f);
  EXPECT_EQ(job.default_table().optimizer().learning_rate_scale(), 1.0f);
  EXPECT_TRUE(MessageDifferencer::Equals(job.dense_optimizer(), job.default_table().optimizer()));
  EXPECT_EQ(job.train().passes(), 1u);
  EXPECT_EQ(job.train().metrics_every_steps(), 20u);
  EXPECT_EQ(job.train().eval_batch_size(), 4096u);
  EXPECT_EQ(job.train().staleness_steps(), 0u);
  EXPECT_EQ(job.cluster().servers(), 1u);
  EXPECT_EQ(job.cluster().workers(), 1u);
  EXPECT_GE(job.cluster().worker_threads(), 1u);
  EXPECT_EQ(job.cluster().server_threads(), 1u);
  EXPECT_EQ(job.cluster().max_message_bytes(), 4u << 20);
  EXPECT_EQ(job.cluster().channels_per_server(), 2u);
  EXPECT_EQ(job.cluster().startup_timeout_s(), 30u);
  EXPECT_EQ(job.cluster().rpc_timeout_s(), 20u);
  EXPECT_EQ(job.cluster().stall_timeout_s(), 600u);
  EXPECT_EQ(job.cluster().max_server_restarts(), 10u);
  EXPECT_EQ(job.cluster().listen_host(), "127.0.0.1");
}

TEST(ParseJob, MakesFeaturesAndTables) {
  const Job job = Parse(kSmallest);
  ASSERT_EQ(job.feature_size(), 26 + 13);
  ASSERT_EQ(job.table_size(), 26);
  EXPECT_EQ(job.feature(0).name(), "C1");
  EXPECT_EQ(job.feature(25).table(), "C26");
  EXPECT_EQ(job.feature(0).pooling(), SUM);
  EXPECT_EQ(job.feature(0).columns(), 1u);
  EXPECT_EQ(job.table(25).name(), "C26");
  EXPECT_TRUE(MessageDifferencer::Equals(job.table(3).settings(), job.default_table()));
}

TEST(ParseJob, TablesTakeWhatTheyLeaveOutFromTheDefault) {
  const Job job = Parse(absl::string_view(R"(name: "shared"
data { format: CRITEO_TSV path: "log.tsv" }
default_table { dim: 8 init_scale: 0 optimizer { adam { beta1: 0.5 } learning_rate_scale: 2 } }
table { name: "users" settings { optimizer { learning_rate_scale: 3 } } }
feature { name: "viewer" table: "users" }
feature { name: "author" table: "users" pooling: MEAN }
feature { name: "place" }
dense_optimizer { sgd {} }
dlrm { top: 8 }
train { batch_size: 16 learning_rate { base: 0.1 } }
)"));
  ASSERT_EQ(job.table_size(), 2);
  EXPECT_EQ(job.table(0).settings().dim(), 8u);
  EXPECT_EQ(job.table(0).settings().init_scale(), 0.0f);
  EXPECT_EQ(job.table(0).settings().optimizer().adam().beta1(), 0.5f);
  EXPECT_EQ(job.table(0).settings().optimizer().adam().beta2(), 0.999f);
  EXPECT_EQ(job.table(0).settings().optimizer().learning_rate_scale(), 3.0f);
  EXPECT_EQ(job.table(1).name(), "place");
  EXPECT_EQ(job.table(1).settings().optimizer().learning_rate_scale(), 2.0f);
  EXPECT_EQ(job.data().num_categorical(), 3u);
  EXPECT_EQ(job.feature(1).pooling(), MEAN);
  EXPECT_EQ(job.dense_optimizer().kind_case(), Optimizer::kSgd);
}

TEST(ParseJob, HeldOutRowsHaveOneSource) {
  EXPECT_EQ(Parse(kSmallest, {"data.test_path=test.tsv"}).data().test_share(), 0);
  EXPECT_EQ(Parse(kSmallest, {"data.format=DLRM_NPY"}).data().test_share(), 0);
}

TEST(ParseJob, AResolvedJobRoundTripsToItself) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {},
           {"data.format=DLRM_NPY", "cluster.servers=4"},
           {"train.learning_rate.decay.steps=10", "train.learning_rate.base=0.0123456789"},
           {"default_table.optimizer.adam={}", "dense_optimizer.sgd={}"},
           {"default_table.optimizer.row_wise_adagrad.epsilon=1e-7", "seed=18446744073709551615"},
           {"dlrm.bottom=[]", "dlrm.top=[]"},
       }) {
    const Job job = Parse(kSmallest, overrides);
    const Job again = Parse(JobToText(job));
    EXPECT_EQ(JobToText(again), JobToText(job));
    EXPECT_TRUE(MessageDifferencer::Equals(again, job));
  }
}

TEST(ParseJob, UnknownFieldsHaveLineColumnNameAndSuggestion) {
  EXPECT_THAT(ErrorOf("name: \"x\"\ntrain {\n  batchsize: 4\n}\n"),
              StartsWith("job.textproto:3:3: unknown field 'batchsize' in Train (did you mean "
                         "'batch_size'?)"));
  EXPECT_THAT(ErrorOf("nme: \"x\"\n"),
              StartsWith("job.textproto:1:1: unknown field 'nme' in Job (did you mean 'name'?)"));
  const std::string error = ErrorOf("name: \"x\"\ndropout: 0.5\n");
  EXPECT_THAT(error, StartsWith("job.textproto:2:1: unknown field 'dropout' in Job"));
  EXPECT_THAT(error, testing::Not(HasSubstr("did you mean")));
  EXPECT_EQ(ErrorOf("table {\n name: 'x' min_count: 2 }"),
            "job.textproto:2:12: unknown field 'min_count' in Table (it stands in 'settings')");
}

TEST(ParseJob, WrongValuesHaveLineAndField) {
  const std::string wrong_type = ErrorOf("train {\n  batch_size: \"many\"\n}\n");
  EXPECT_THAT(wrong_type, StartsWith("job.textproto:2:"));
  EXPECT_THAT(wrong_type, HasSubstr("field 'batch_size': Expected integer"));
  EXPECT_EQ(ErrorOf("layer { name: 'deep' input: 'numeric' mlp { units: [-4] } }"),
            "job.textproto:1:53: field 'units': Expected integer, got: -");
  const std::string wrong_enum = ErrorOf("data {\n  format: CRITEO_CSV\n}\n");
  EXPECT_THAT(wrong_enum, StartsWith("job.textproto:2:"));
  EXPECT_THAT(ErrorOf("device: GPU"), HasSubstr("(did you mean 'CUDA'?)"));
  EXPECT_THAT(wrong_enum, HasSubstr("field 'format' has no value 'CRITEO_CSV' (did you mean "
                                    "'CRITEO_TSV'?)"));
  EXPECT_THAT(ErrorOf("train {\n  batch_size: -1\n}\n"), HasSubstr("batch_size"));
  EXPECT_EQ(ErrorOf("dlrm {\n initializer: GLOROT }"),
            "job.textproto:2:15: field 'initializer': GLOROT is no stanza, as { ... } is");
  EXPECT_THAT(ErrorOf("train { batch_size: 1\nbatch_size: 2 }\n"),
              HasSubstr("'batch_size' is there twice"));
  EXPECT_THAT(ErrorOf("train {\n  batch_size: 1\n"), StartsWith("job.textproto:3:"));
  EXPECT_THAT(ErrorOf("optimizer { sgd {} }"), HasSubstr("did you mean 'dense_optimizer'?"));
}

TEST(ParseJob, AStanzaThatIsThereTwiceIsNamed) {
  EXPECT_EQ(ErrorOf("train { batch_size: 16 }\ndata { format: CRITEO_TSV }\n"
                    "train { batch_size: 32 }"),
            "job.textproto:3:1: 'train' is there twice");
  EXPECT_EQ(ErrorOf("data { path: 'x' }\ncluster {\n  tls { ca: 'a' } servers: 2\n  tls\n  {\n"
                    "    certificate: 'b' }\n}"),
            "job.textproto:4:3: 'tls' is there twice");
  EXPECT_EQ(ErrorOf("seed: 1\n seed: 2"), "job.textproto:2:2: 'seed' is there twice");
  EXPECT_EQ(ErrorOf("default_table { dim: 4\n  optimizer { sgd {} adam { beta1: 0.5 } } }"),
            "job.textproto:2:22: 'adam' and 'sgd' exclude each other; leave one of them out");
  EXPECT_EQ(
      ErrorOf("feature { column: 'x'\n numeric { transform { log1p {} clip { min: 1 } } } }"),
      "job.textproto:2:33: 'clip' and 'log1p' exclude each other; write a 'transform' for each");
}

TEST(ParseJob, OverridesWinAndAreNamedInErrors) {
  EXPECT_EQ(Parse(kSmallest, {"train.batch_size=32", "train.batch_size=64"}).train().batch_size(),
            64u);
  EXPECT_EQ(ErrorOf(kSmallest, {"train.batch_size=0"}),
            "--set train.batch_size=0: train.batch_size is 0; it must be at least 1");
  EXPECT_THAT(ErrorOf(kSmallest, {"train.batchsize=0"}), HasSubstr("did you mean 'batch_size'?"));
  // The culprit stands in a whole message that was set.
  EXPECT_THAT(ErrorOf(kSmallest, {"train={batch_size: 0}"}),
              StartsWith("--set train={batch_size: 0}: train.batch_size is 0"));
}

TEST(ParseJob, AFlagThatSpoilsAnotherLineIsNamedFirst) {
  const std::string text = absl::StrCat(kSmallest, "cache { budget: '1MiB' prefetch_steps: 6 }\n");
  EXPECT_THAT(ErrorOf(text, {"train.passes=2", "cache.window_steps=4", "seed=3"}),
              StartsWith("--set cache.window_steps=4: job.textproto:5: cache.prefetch_steps "));
  // One that the error names already is the one, also where it is good without another.
  EXPECT_EQ(ErrorOf(kSmallest, {"cluster.workers=2", "train.batch_size=1"}),
            "--set train.batch_size=1: train.batch_size is 1, less than cluster.workers (2)");
  // It is named once.
  EXPECT_THAT(ErrorOf(text, {"cache.prefetch_steps=9"}),
              StartsWith("--set cache.prefetch_steps=9: cache.prefetch_steps "));
  // Nor is one where the file is bad without it, or where several are to blame.
  EXPECT_THAT(ErrorOf("name: 'j'\n", {"seed=3"}), Not(HasSubstr("--set")));
  EXPECT_THAT(ErrorOf(text, {"cache.window_steps=4", "cache.window_steps=3"}),
              StartsWith("job.textproto:5: "));
  const auto job = ParseJob(kSmallest, "job.textproto", {}, {"dlrm"});
  EXPECT_EQ(
      job.status(),
      absl::InvalidArgumentError(
          "--clear dlrm: job.textproto: layer is missing; a job needs a model: dlrm, "
          "wide_deep, deepfm, dcnv2, finalmlp, din, bst, tbsm, mmoe, ple, or layers and a task "
          "of its own"));
}

TEST(ParseJob, ClearedFieldsTakeTheirDefaultsBeforeOverrides) {
  const std::string text =
      absl::StrCat(kSmallest, "cache { budget: '1GiB' window_steps: 4 prefetch_steps: 3 }");
  const auto parse = [&](const std::vector<std::string>& overrides,
                         const std::vector<std::string>& cleared) {
    return ParseJob(text, "job.textproto", overrides, cleared);
  };
  const auto without = parse({}, {"cache"});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(without->has_cache());
  const auto anew = parse({"cache.budget=2GiB"}, {"cache"});
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_EQ(anew->cache().budget(), "2GiB");
  EXPECT_EQ(anew->cache().window_steps(), 8u);
  EXPECT_EQ(parse({}, {"cache.budget"}).status().message(),
            "--clear cache.budget: cache.budget is missing; write a size, such as \"256MiB\"");
  EXPECT_THAT(ErrorOf(kSmallest, {"fae={}"}),
              HasSubstr("fae.budget is missing; write a size, such as \"256MiB\" (`thermocline "
                        "calibrate` says what sizes are worth)"));
  EXPECT_EQ(parse({"train.batch_size=0"}, {"train.batch_size"}).status().message(),
            "--set train.batch_size=0: train.batch_size is 0; it must be at least 1");
}

TEST(ParseJob, GarbageIsAnErrorAndNoCrash) {
  for (const std::string& text : {std::string("\x00\x01\xff", 3), std::string("{"),
                                  std::string("name: \"\xff\""), std::string(1 << 16, '{')}) {
    EXPECT_FALSE(ParseJob(text, "job.textproto", {}).ok());
  }
}

class LoadJobTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = testing::TempDir() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(LoadJobTest, ReadsAFile) {
  const std::string path = Write("load.textproto", kSmallest);
  const auto job = LoadJob(path, {"seed=7"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->name(), "smallest");
  EXPECT_EQ(job->seed(), 7u);
}

TEST_F(LoadJobTest, NamesTheFile) {
  const auto missing = LoadJob("/no/such/job.textproto", {});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/no/such/job.textproto"));
  EXPECT_EQ(LoadJob(testing::TempDir(), {}).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string path = Write("empty.textproto", "");
  EXPECT_THAT(std::string(LoadJob(path, {}).status().message()), StartsWith(path + ": name is"));
}

}  // namespace
}  // namespace thermocline
