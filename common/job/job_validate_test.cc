// Every value that a job can't have, the line it is reported at, and the words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/job/job_loader.h"
#include "common/job/job_source.h"
#include "common/job/model_memory.h"
#include "common/job/resolved_job.h"

namespace thermocline {
namespace {

// Line numbers below refer to this text.
constexpr char kJob[] = R"(name: "a_job-1"
data {
  format: CRITEO_TSV
  path: "log.tsv"
  num_categorical: 2
}
default_table { dim: 8 }
table {
  name: "T"
  settings { dim: 8 }
}
feature { name: "A" table: "T" }
feature { name: "B" }
dlrm {
  bottom: 8
  top: 8
}
train {
  batch_size: 16
  learning_rate { base: 0.1 }
}
cluster { servers: 2 }
)";

std::string ErrorOf(const std::vector<std::string>& overrides) {
  const auto job = ParseJob(kJob, "j", overrides, {}, JobUse::kTrain);
  EXPECT_FALSE(job.ok());
  return job.ok() ? "" : std::string(job.status().message());
}

// Replaces one text of kJob: errors then carry its line.
std::string ErrorWith(const std::string& from, const std::string& to) {
  std::string text = kJob;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto job = ParseJob(text, "j", {});
  EXPECT_FALSE(job.ok()) << to;
  if (job.ok()) return "";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

struct Case {
  std::string from, to, error;
};

class ValidateJobTest : public testing::TestWithParam<Case> {};

TEST_P(ValidateJobTest, ReportsLineAndField) {
  EXPECT_EQ(ErrorWith(GetParam().from, GetParam().to), GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    Values, ValidateJobTest,
    testing::Values(
        Case{"\"a_job-1\"", "\"\"", "j:1: name is empty; it needs a name"},
        Case{"\"a_job-1\"", "\"a/b\"",
             "j:1: name is 'a/b'; letters, digits, '_' and '-' are allowed"},
        Case{"format: CRITEO_TSV", "",
             "j:2: data.format is not set; it is one of CRITEO_TSV, "
             "DLRM_NPY (or describe the files with data.train)"},
        Case{"\"log.tsv\"", "\"\"",
             "j:4: data.path is empty; give it in the job file or with "
             "--data"},
        Case{"num_categorical: 2", "num_categorical: 3",
             "j:5: data.num_categorical is 3, but the features read 2 columns"},
        Case{"num_categorical: 2", "test_share: 1",
             "j:5: data.test_share is 1; it must be in [0, 1)"},
        Case{"num_categorical: 2", "test_share: nan",
             "j:5: data.test_share is nan; it must be in [0, 1)"},
        Case{"num_categorical: 2", "test_share: 0.5 test_path: \"t\"",
             "j:5: data.test_share is set, and data.test_path as well; choose one"},
        Case{"num_categorical: 2", "num_dense: 0",
             "j:15: dlrm.bottom[0] is set, but data.num_dense is 0: it has no input"},
        Case{"num_categorical: 2", "num_dense: 4097",
             "j:5: data.num_dense is 4097; it must be at most 4096"},
        Case{"num_categorical: 2", "read_ahead_batches: 0",
             "j:5: data.read_ahead_batches is 0; it must be at least 1"},
        Case{"num_categorical: 2", "parser_threads: 0",
             "j:5: data.parser_threads is 0; it must be at least 1"},
        Case{"num_categorical: 2", "parser_threads: 257",
             "j:5: data.parser_threads is 257; it must be at most 256"},
        Case{"format: CRITEO_TSV", "format: DLRM_NPY test_path: \"t\"",
             "j:3: data.test_path is for CRITEO_TSV; DLRM_NPY reads test_*.npy"},
        Case{"default_table { dim: 8 }", "default_table { dim: 4097 }",
             "j:7: default_table.dim is 4097; it must be at most 4096"},
        Case{"default_table { dim: 8 }", "default_table { dim: 16 }",
             "j:14: dlrm means layers of which one can't be made: layer[1].input has 'bottom' with "
             "vectors of 8 numbers and 'B' with 16; the dot product of layer 'pairs' needs one "
             "width for all"},
        Case{"default_table { dim: 8 }", "default_table { dim: 8 init_scale: -1 }",
             "j:7: default_table.init_scale is -1; it must be in [0, 1e+06]"},
        Case{"default_table { dim: 8 }",
             "default_table { dim: 8 initializer { normal { std: -1 } } }",
             "j:7: default_table.initializer.normal.std is -1; it must be in [0, 1e+06]"},
        Case{"default_table { dim: 8 }", "default_table { dim: 8 initializer { by_rows {} } }",
             "j:7: default_table.initializer.by_rows.rows is 0; it must be at least 1"},
        Case{"settings { dim: 8 }",
             "settings { dim: 8 init_scale: 1 initializer { constant { value: 1 } } }",
             "j:10: table[0].settings.initializer is set, and table[0].settings.init_scale as "
             "well; choose one"},
        Case{"default_table { dim: 8 }", "default_table { dim: 8 eviction {} }",
             "j:7: default_table.eviction.unused_steps is 0; it must be at least 1"},
        Case{"default_table { dim: 8 }", "default_table { dim: 8 init_scale: inf }",
             "j:7: default_table.init_scale is inf; it must be in [0, 1e+06]"},
        Case{"default_table { dim: 8 }", "default_table { dim: 8 init_scale: 1.1e6 }",
             "j:7: default_table.init_scale is 1.1e+06; it must be in [0, 1e+06]"},
        Case{
            "default_table { dim: 8 }",
            "default_table { dim: 8 storage { rocksdb { memory: \"512M\" } } }",
            "j:7: default_table.storage.rocksdb.memory is '512M'; a size is a whole number and its "
            "unit, B, KiB, MiB, GiB or TiB, such as \"512MiB\""},
        Case{"settings { dim: 8 }", "settings { dim: 8 storage { rocksdb { memory: \"1KiB\" } } }",
             "j:10: table[0].settings.storage.rocksdb.memory is 1024; it must be at least 65536"},
        Case{"cluster { servers: 2 }", "cluster { servers: 2 max_log_size: \"1\" }",
             "j:22: cluster.max_log_size is '1'; a size is a whole number and its unit, B, KiB, "
             "MiB, "
             "GiB or TiB, such as \"512MiB\""},
        Case{"cluster { servers: 2 }", "cluster { servers: 2 max_log_size: \"8388608TiB\" }",
             "j:22: cluster.max_log_size is '8388608TiB'; a size is less than 8192 PiB"},
        Case{"cluster { servers: 2 }", "cluster { servers: 2 max_log_size: \"1KiB\" }",
             "j:22: cluster.max_log_size is 1024; it must be at least 1048576"},
        Case{"cluster { servers: 2 }", "cluster {}\ncheckpoint { keep: 0 }",
             "j:23: checkpoint.keep is 0; it must be at least 1"},
        Case{"cluster { servers: 2 }", "checkpoint { full_every: 0 }",
             "j:22: checkpoint.full_every is 0; it must be at least 1"},
        Case{"cluster { servers: 2 }", "checkpoint { full_every: 1000001 }",
             "j:22: checkpoint.full_every is 1000001; it must be at most 1000000"},
        Case{"cluster { servers: 2 }", "checkpoint { every_steps: 1000000000001 }",
             "j:22: checkpoint.every_steps is 1000000000001; it must be at most 1000000000000"},
        Case{"settings { dim: 8 }", "settings { dim: 8 init_scale: nan }",
             "j:10: table[0].settings.init_scale is nan; it must be in [0, 1e+06]"},
        Case{
            "settings { dim: 8 }\n}\nfeature { name: \"A\" table: \"T\" }\nfeature { name: \"B\" }",
            "}\ntable { name: \"U\"\n settings { dim: 9 } }\n"
            "feature { name: \"A\" table: \"T\" }\nfeature { name: \"U\" }",
            "j:15: dlrm means layers of which one can't be made: layer[1].input has 'bottom' with "
            "vectors of 8 numbers and 'U' with 9; the dot product of layer 'pairs' needs one "
            "width for all"},
        Case{"name: \"T\"", "name: \"\"", "j:9: table[0].name is empty; it needs a name"},
        Case{"name: \"T\"", "name: \"U\"",
             "j:12: feature[0].table is 'T', but there is no such table"},
        Case{"table: \"T\"", "", "j:9: table[0].name is 'T', but no feature reads this table"},
        Case{"\"B\"", "\"A\" table: \"T\"", "j:13: feature[1].name is 'A', as is feature[0].name"},
        Case{"\"B\"", "\"\"", "j:13: feature[1].name is empty; it needs a name"},
        Case{"\"B\"", "\"B\" columns: 2",
             "j:13: feature[1].columns is 2; in CRITEO_TSV a bag is one column, its values "
             "separated by commas"},
        Case{"\"B\"", "\"B\" columns: 0", "j:13: feature[1].columns is 0; it must be at least 1"},
        Case{"bottom: 8", "bottom: 8\n bottom: 0",
             "j:16: dlrm.bottom[1] is 0; it must be at least 1"},
        Case{"top: 8", "top: 65537", "j:16: dlrm.top[0] is 65537; it must be at most 65536"},
        Case{"batch_size: 16", "batch_size: 0",
             "j:19: train.batch_size is 0; it must be at least 1"},
        Case{"batch_size: 16", "", "j:18: train.batch_size is 0; it must be at least 1"},
        Case{"batch_size: 16", "batch_size: 16777217",
             "j:19: train.batch_size is 16777217; it must be at most 16777216"},
        Case{"batch_size: 16", "batch_size: 16 passes: 0",
             "j:19: train.passes is 0; it must be at least 1"},
        Case{"batch_size: 16", "batch_size: 16 max_steps: 1000000000001",
             "j:19: train.max_steps is 1000000000001; it must be at most 1000000000000"},
        Case{"batch_size: 16", "batch_size: 16 staleness_steps: 1025",
             "j:19: train.staleness_steps is 1025; it must be at most 1024"},
        Case{"batch_size: 16", "batch_size: 16 staleness_steps: 4000000000",
             "j:19: train.staleness_steps is 4000000000; it must be at most 1024"},
        Case{"batch_size: 16", "batch_size: 16 eval_batch_size: 16777217",
             "j:19: train.eval_batch_size is 16777217; it must be at most 16777216"},
        Case{"batch_size: 16", "batch_size: 16 metrics_every_steps: 0",
             "j:19: train.metrics_every_steps is 0; it must be at least 1"},
        Case{"batch_size: 16", "batch_size: 16 eval_batch_size: 0",
             "j:19: train.eval_batch_size is 0; it must be at least 1"},
        Case{"servers: 2", "workers: 17",
             "j:19: train.batch_size is 16, less than cluster.workers (17)"}));

INSTANTIATE_TEST_SUITE_P(
    LearningRate, ValidateJobTest,
    testing::Values(
        Case{"base: 0.1", "", "j:20: train.learning_rate.base is 0; it must be finite and above 0"},
        Case{"base: 0.1", "base: -1",
             "j:20: train.learning_rate.base is -1; it must be finite and above 0"},
        Case{"base: 0.1", "base: inf",
             "j:20: train.learning_rate.base is inf; it must be finite and above 0"},
        Case{"base: 0.1", "base: nan",
             "j:20: train.learning_rate.base is nan; it must be finite and above 0"},
        Case{"base: 0.1", "base: 1 warmup_steps: 1000000000001",
             "j:20: train.learning_rate.warmup_steps is 1000000000001; it must be at most "
             "1000000000000"},
        Case{"base: 0.1", "base: 1 decay { steps: 1000000000001 }",
             "j:20: train.learning_rate.decay.steps is 1000000000001; it must be at most "
             "1000000000000"},
        Case{"base: 0.1", "base: 1 decay { steps: 1 start_step: 1000000000001 }",
             "j:20: train.learning_rate.decay.start_step is 1000000000001; it must be at most "
             "1000000000000"},
        Case{"base: 0.1", "base: 1 decay {}",
             "j:20: train.learning_rate.decay.steps is 0; it must be at least 1"},
        Case{"base: 0.1", "base: 1 decay { steps: 1 power: 0 }",
             "j:20: train.learning_rate.decay.power is 0; it must be finite and above 0"},
        Case{"base: 0.1", "base: 1 decay { steps: 1 end: 2 }",
             "j:20: train.learning_rate.decay.end is 2; it must be in [0, base]"},
        Case{"base: 0.1", "base: 1 warmup_steps: 9 decay { steps: 1 start_step: 8 }",
             "j:20: train.learning_rate.decay.start_step is 8, within the 9 steps of the "
             "warm-up"}));

INSTANTIATE_TEST_SUITE_P(
    Cluster, ValidateJobTest,
    testing::Values(
        Case{"servers: 2", "servers: 0 workers: 2",
             "j:22: cluster.workers is 2; with cluster.servers: 0 the only worker holds the rows"},
        Case{"servers: 2", "servers: 0 durability: LOG_ASYNC",
             "j:22: cluster.durability is LOG_ASYNC; with cluster.servers: 0 the rows die with the "
             "worker, and a push log would save nothing; checkpoints do"},
        Case{"servers: 2", "workers: 0", "j:22: cluster.workers is 0; it must be at least 1"},
        Case{"servers: 2", "servers: 1025",
             "j:22: cluster.servers is 1025; it must be at most 1024"},
        Case{"servers: 2", "worker_threads: 0",
             "j:22: cluster.worker_threads is 0; it must be at least 1"},
        Case{"servers: 2", "server_threads: 0",
             "j:22: cluster.server_threads is 0; it must be at least 1"},
        Case{"servers: 2", "max_message_bytes: 1000",
             "j:22: cluster.max_message_bytes is 1000; it must be at least 65536"},
        Case{"servers: 2", "channels_per_server: 0",
             "j:22: cluster.channels_per_server is 0; it must be at least 1"},
        Case{"servers: 2", "startup_timeout_s: 0",
             "j:22: cluster.startup_timeout_s is 0; it must be at least 1"},
        Case{"servers: 2", "rpc_timeout_s: 0",
             "j:22: cluster.rpc_timeout_s is 0; it must be at least 1"},
        Case{"servers: 2", "host_wait_s: 0",
             "j:22: cluster.host_wait_s is 0; it must be at least 1"},
        Case{"servers: 2", "node_lease_s: 30",
             "j:22: cluster.node_lease_s is 30; it must be at most 29"},
        Case{"servers: 2", "handler_threads: 1",
             "j:22: cluster.handler_threads is 1; it must be at least 2"},
        Case{"servers: 2", "max_held_pulls: 0",
             "j:22: cluster.max_held_pulls is 0; it must be at least 1"},
        Case{"servers: 2", "max_pending_size: \"1000KiB\"",
             "j:22: cluster.max_pending_size is 1024000; it must be at least 1048576"},
        Case{"servers: 2", "stall_timeout_s: 86401",
             "j:22: cluster.stall_timeout_s is 86401; it must be at most 86400"},
        Case{"servers: 2", "tls { certificate: \"c\" ca: \"a\" }",
             "j:22: cluster.tls.private_key is empty; TLS needs certificate, private_key and ca"},
        Case{"servers: 2", "tls { private_key: \"c\" ca: \"a\" }",
             "j:22: cluster.tls.certificate is empty; TLS needs certificate, private_key and ca"},
        Case{"servers: 2", "tls { certificate: \"c\" private_key: \"a\" }",
             "j:22: cluster.tls.ca is empty; TLS needs certificate, private_key and ca"},
        Case{"servers: 2", "tls { automatic: true ca: \"a\" }",
             "j:22: cluster.tls has files and also automatic or directory; choose one"},
        Case{"servers: 2", "tls { directory: \"d\" ca: \"a\" }",
             "j:22: cluster.tls has files and also automatic or directory; choose one"},
        Case{"servers: 2", "listen_host: \"0.0.0.0\"",
             "j:22: cluster.listen_host is 0.0.0.0, beyond loopback; give cluster.tls, or set "
             "cluster.insecure to send everything in plain text"},
        Case{"servers: 2", "http { }",
             "j:22: cluster.http.address is ''; host:port is an address: 127.0.0.1:0 takes a free "
             "port"},
        Case{
            "servers: 2", "http { address: \"localhost\" }",
            "j:22: cluster.http.address is 'localhost'; host:port is an address: 127.0.0.1:0 takes "
            "a free port"},
        Case{"servers: 2", "http { address: \"localhost:65536\" }",
             "j:22: cluster.http.address is 'localhost:65536'; host:port is an address: "
             "127.0.0.1:0 takes a free port"},
        Case{
            "servers: 2", "http { address: \"0.0.0.0:80\" }",
            "j:22: cluster.http.address is 0.0.0.0:80, beyond loopback: who sees the requests sees "
            "the token; give cluster.tls (--set cluster.tls.automatic=true makes certificates), or "
            "set cluster.http.insecure to send everything in plain text"},
        Case{"servers: 2", "http { address: \"[::1]:0\" allowed_host: \"a:80\" }",
             "j:22: cluster.http.allowed_host is 'a:80'; a name without a port is"}));

TEST(ValidateJob, OptimizerValuesAreFoundWhereTheyWereWritten) {
  const std::string table = ErrorWith(
      "settings { dim: 8 }", "settings { dim: 8\n optimizer {\n adagrad { epsilon: -1 } } }");
  EXPECT_EQ(table.rfind("j:12: table[0].settings.optimizer: epsilon is -1;", 0), 0u) << table;
  const std::string dense =
      ErrorWith("dlrm {", "dense_optimizer { adam {}\n learning_rate_scale: -1 }\ndlrm {");
  EXPECT_EQ(dense.rfind("j:15: dense_optimizer: learning_rate_scale is -1;", 0), 0u) << dense;
  const std::string clip =
      ErrorWith("settings { dim: 8 }",
                "settings { dim: 8\n optimizer { sgd {}\n cow_clip {\n ratio: -2 } } }");
  EXPECT_EQ(clip.rfind("j:13: table[0].settings.optimizer: cow_clip.ratio is -2;", 0), 0u) << clip;
}

TEST(ValidateJob, OptimizersThatRowsDenseParametersOrPlacementsCannotHaveAreNamed) {
  const struct {
    std::vector<std::string> overrides;
    const char* error;
  } cases[] = {
      {{"default_table.optimizer={adam_w {}}"}, "adam_w is set; it is for dense_optimizer alone"},
      {{"table[0].settings.optimizer.clip_global_norm=2"},
       "clip_global_norm is 2; it is for dense_optimizer alone"},
      {{"dense_optimizer={sgd {} clip_norm: 3}"},
       "dense_optimizer: clip_norm is 3; it is for rows alone"},
      {{"dense_optimizer={sgd {} cow_clip {}}"},
       "dense_optimizer: cow_clip is set; it is for rows alone"},
      {{"dense_optimizer.clip_global_norm=2", "cluster.workers=3"},
       "dense_optimizer.clip_global_norm is 2; it needs one worker, and cluster.workers is 3"},
      {{"dense_optimizer.clip_global_norm=2", "train.staleness_steps=1"},
       "dense_optimizer.clip_global_norm is 2; it needs steps in sync, and train.staleness_steps "
       "is 1"},
      {{"default_table.optimizer.cow_clip={}", "cache.budget=1GiB",
        "table[0].settings.placement=DEVICE"},
       "table[0].settings.placement is DEVICE, but table 'T' has optimizer.cow_clip: servers alone "
       "count the lookups that it needs, so no worker can hold its rows"},
      {{"table[0].settings.optimizer.cow_clip={}", "fae.budget=1GiB"},
       "table[0].settings.optimizer.cow_clip is set; with `fae` workers update hot rows, and "
       "servers alone count the lookups that it needs"},
  };
  for (const auto& c : cases) {
    const std::string error = ErrorOf(c.overrides);
    EXPECT_NE(error.find(c.error), std::string::npos) << error << "\nis not: " << c.error;
  }
  // Dense parameters take the rows' optimizer without what is for rows alone.
  const auto job =
      ParseJob(kJob, "j",
               {"default_table.optimizer={momentum {} clip_value: 4 clip_norm: 3 cow_clip {}}",
                "dense_optimizer.clip_global_norm=2", "cache.budget=1GiB"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->dense_optimizer().has_momentum());
  EXPECT_EQ(job->dense_optimizer().clip_value(), 4);
  EXPECT_EQ(job->dense_optimizer().clip_global_norm(), 2);
  EXPECT_EQ(job->table(0).settings().optimizer().clip_norm(), 3);
  // The cache leaves such tables to the servers.
  EXPECT_FALSE(HoldsRows(ResolveTables(*job), 0));
}

// 127 features and one more make 128 bags of a sample: 2^24 samples have 2^31 of them.
TEST(ValidateJob, BatchesWhoseBagsOrLookupsCannotBeNumbered) {
  const std::vector<std::string> many = {"feature=[]", "table=[]", "data.num_categorical=127"};
  const auto with = [&many](std::vector<std::string> more) {
    more.insert(more.begin(), many.begin(), many.end());
    return more;
  };
  EXPECT_EQ(ErrorOf(with({"train.batch_size=16777216"})),
            "--set train.batch_size=16777216: train.batch_size is 16777216, which gives a worker "
            "batches of 16777216 samples; with 127 features of 127 columns it takes at most "
            "16777215");
  EXPECT_EQ(ErrorOf(with({"train.eval_batch_size=16777216", "cluster.workers=2"})),
            "--set train.eval_batch_size=16777216: train.eval_batch_size is 16777216, which gives "
            "a worker batches of 16777216 samples; with 127 features of 127 columns it takes at "
            "most 16777215");
  EXPECT_TRUE(ParseJob(kJob, "j", with({"train.batch_size=16777215"})).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", with({"train.batch_size=16777216", "cluster.workers=2"})).ok());
  EXPECT_EQ(ErrorOf({"data.format=DLRM_NPY", "data.num_categorical=4096", "feature[0].columns=4095",
                     "feature[1].table=T", "train.batch_size=300000"}),
            "--set train.batch_size=300000: train.batch_size is 300000, which gives a worker "
            "batches of 300000 samples; with 2 features of 4096 columns it takes at most 262143");
}

// A step has a row of dim 4 for its own vector, and 16 for the layer that is read beside it: 8,192
// samples of 16,000 steps have 131 million steps, and 2.2 billion rows.
TEST(ValidateJob, StepsHaveRowsForWhatIsReadBesideThem) {
  const auto message = [](const std::string& input) {
    return std::string(ParseJob(R"(name: 'j'
        data { train { path: "p" csv { header: true } } label { column: "click" } }
        default_table { dim: 4 }
        feature { column: ["x", "y"] numeric {} } feature { column: "item" categorical {} }
        feature { column: "past" table: "item" sequence { max_length: 16000 } }
        sequence { name: "events" of: "past" }
        layer { name: "wide" input: "numeric" mlp { units: 64 } }
        layer { name: "steps" input: )" +
                                    input + R"( mlp { units: 4 } }
        layer { name: "mean" input: "steps" pool { mode: MEAN } }
        task { input: ["mean", "wide", "categorical"] }
        train { batch_size: 8192 learning_rate { base: 1 } })",
                                "j", {})
                           .status()
                           .message());
  };
  EXPECT_EQ(message("'events'"), "");
  EXPECT_THAT(
      message("['wide', 'events']"),
      testing::HasSubstr("batches of 8192 samples; with 2 features of 2 columns it takes at "
                         "most 7655, where each list of a sequence has its max_length"));
}

TEST(ValidateJob, LimitsAreWithinReach) {
  EXPECT_TRUE(ParseJob(kJob, "j",
                       {"train.staleness_steps=1024", "default_table.init_scale=1e6",
                        "train.max_steps=1000000000000", "cluster.stall_timeout_s=0"})
                  .ok());
}

TEST(ValidateJob, AShareOfNpyRowsMayBeHeldOut) {
  const auto job = ParseJob(kJob, "j", {"data.format=DLRM_NPY", "data.test_share=0.25"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->data().test_share(), 0.25);
  EXPECT_EQ(ParseJob(kJob, "j", {"data.format=DLRM_NPY"})->data().test_share(), 0);
}

TEST(ValidateJob, DuplicateTables) {
  EXPECT_EQ(ErrorWith("feature { name: \"B\" }", "table { name: \"T\" }\nfeature { name: \"B\" }"),
            "j:13: table[1].name is 'T', as is table[0].name");
}

TEST(ValidateJob, AMisspeltTableGetsASuggestion) {
  EXPECT_EQ(ErrorWith("table {\n  name: \"T\"", "table {\n  name: \"Tables\""),
            "j:12: feature[0].table is 'T', but there is no such table");
  EXPECT_EQ(ErrorWith("name: \"A\" table: \"T\" }\nfeature { name: \"B\"",
                      "name: \"A\" table: \"T\" }\nfeature { name: \"B\" table: \"t\""),
            "j:13: feature[1].table is 't', but there is no such table (did you mean 'T'?)");
}

TEST(ValidateJob, NeedsAModel) {
  EXPECT_EQ(ErrorWith("dlrm {\n  bottom: 8\n  top: 8\n}", ""),
            "j: layer is missing; a job needs a model: dlrm, wide_deep, deepfm, dcnv2, finalmlp, "
            "din, bst, tbsm, mmoe, ple, or "
            "layers and a task of its own");
}

// The error of kJob with another model, without its place in the file.
std::string ErrorOfModel(const std::vector<std::string>& model) {
  const auto job = ParseJob(kJob, "j", model, {"dlrm"});
  const std::string error(job.status().message());
  const size_t place = error.find(": ");
  return place == std::string::npos ? error : error.substr(place + 2);
}

TEST(ValidateJob, ModelsOfLayers) {
  EXPECT_EQ(ErrorOfModel({"deepfm={deep:8}"}), "");
  EXPECT_EQ(ErrorOfModel({"wide_deep={deep:8 wide_optimizer{ftrl{l1:-1}}}"}),
            "wide_deep.wide_optimizer: l1 is -1; it must be in [0, 1e+30]");
  EXPECT_EQ(ErrorOfModel({"wide_deep={deep:8 wide_optimizer{adam_w{}}}"}),
            "wide_deep.wide_optimizer: adam_w is set; it is for dense_optimizer alone");
  const std::string layer = "layer={name:'w' input:['categorical','numeric'] first_order{";
  EXPECT_THAT(
      ErrorOfModel({layer + "optimizer{weight_decay:1}}}", "task={label:'label' input:'w'}"}),
      testing::StartsWith("layer[0].first_order.optimizer: no optimizer is set (sgd,"));
  EXPECT_THAT(
      ErrorOfModel({layer + "initializer{normal{std:-1}}}}", "task={label:'label' input:'w'}"}),
      testing::StartsWith("layer[0].first_order.initializer.normal.std is -1"));
  EXPECT_EQ(
      ErrorOfModel({"deepfm={deep:8}", "default_table.dim=4096", "table[0].settings.dim=4096"}),
      "table[0].settings.dim is 4096; with first-order weights it must be in [1, 4095]");
}

class ScriptJobTest : public testing::Test {
 protected:
  // The changed kJob, with a script in the place of its model.
  static absl::StatusOr<Job> Parse(const std::vector<std::string>& overrides,
                                   const std::vector<std::string>& cleared = {"dlrm"}) {
    std::vector<std::string> all = {"worker.command=['python3', 'train.py']"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return ParseJob(kJob, "j", all, cleared, JobUse::kTrain);
  }
};

TEST_F(ScriptJobTest, WhatAScriptDoesNotHaveIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"dense_optimizer={sgd{}}",
       "dense_optimizer is set; a script (`worker`) has its own optimizer"},
      {"cluster.workers=2", "cluster.workers is 2; with a script (`worker`) it must be 1"},
      {"fae.budget=1MiB", "fae is set; a script (`worker`) has no hot and cold batches"},
      {"device=CUDA",
       "device is CUDA; the worker of a script (`worker`) keeps its rows in the host's memory, and "
       "the script computes where it wants to"},
      {"worker.threads=0", "worker.threads is 0; it must be at least 1"},
      {"worker.threads=1000000", "worker.threads is 1000000; it must be at most 1024"},
      {"worker.memory=0", "worker.memory is "},
      {"worker.memory=much", "worker.memory is "},
      {"worker.command=['']",
       "worker.command is empty; write a program, such as [\"python3\", \"train.py\"]"},
      {"evaluate={every_steps:10 own_metric:'hit rate'}",
       "evaluate.own_metric is 'hit rate'; letters, digits, '_' and '-' are allowed"},
      {"evaluate={every_steps:10 minimize:true}",
       "evaluate.minimize is set; it goes with evaluate.own_metric"}};
  for (const auto& [change, error] : cases) {
    const auto job = Parse({"data.test_share=0.1", change});
    EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument) << change;
    EXPECT_THAT(std::string(job.status().message()), testing::HasSubstr(error)) << change;
  }
  EXPECT_THAT(ErrorOf({"data.test_share=0.1", "evaluate={every_steps:10 own_metric:'x'}"}),
              testing::HasSubstr("evaluate.own_metric is set; only a script (`worker`) has metrics "
                                 "of its own"));
  EXPECT_THAT(std::string(Parse({}, {}).status().message()),
              testing::HasSubstr("worker is set, and dlrm as well; choose one"));
}

TEST_F(ScriptJobTest, ItsDefaultsAreFilledIn) {
  const auto job =
      Parse({"data.test_share=0.1", "evaluate={every_steps:10 own_metric:'hit_rate'}"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->worker().memory(), "2GiB");
  EXPECT_EQ(job->device(), Job::CPU);
  EXPECT_FALSE(job->has_dense_optimizer());
  const auto again = ParseJob(JobToText(*job), "j", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), job->SerializeAsString());
}

TEST(ValidateJob, ThePageIsBeyondLoopbackWithTlsOrExplicitly) {
  EXPECT_TRUE(ParseJob(kJob, "j", {"cluster.http.address=localhost:0"}).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", {"cluster.http.address=[::1]:8080"}).ok());
  const std::string beyond = "cluster.http.address=10.1.2.3:8080";
  EXPECT_NE(ErrorOf({beyond, "cluster.insecure=true"}), "");  // It is of processes.
  EXPECT_TRUE(ParseJob(kJob, "j", {beyond, "cluster.http.insecure=true"}).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", {beyond, "cluster.tls.automatic=true"}).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", {beyond, "cluster.tls.directory=d"}).ok());
  EXPECT_TRUE(ParseJob(kJob, "j",
                       {"cluster.http={address: 'a:1' insecure: true allowed_host: "
                        "['Proxy.example', '[::1]', '10.0.0.1']}"})
                  .ok());
}

TEST(ValidateJob, BeyondLoopbackIsAllowedWithTlsOrExplicitly) {
  EXPECT_TRUE(ParseJob(kJob, "j", {"cluster.listen_host=10.1.2.3", "cluster.insecure=true"}).ok());
  EXPECT_TRUE(ParseJob(kJob, "j",
                       {"cluster.listen_host=10.1.2.3",
                        "cluster.tls={certificate: 'c' private_key: 'k' ca: 'a'}"})
                  .ok());
  EXPECT_TRUE(
      ParseJob(kJob, "j", {"cluster.listen_host=10.1.2.3", "cluster.tls.directory=d"}).ok());
  EXPECT_TRUE(
      ParseJob(kJob, "j", {"cluster.listen_host=10.1.2.3", "cluster.tls.automatic=true"}).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", {"cluster.listen_host=localhost"}).ok());
  EXPECT_NE(ErrorOf({"cluster.listen_host=127.evil.example"}), "");
}

TEST(ValidateJob, OneColumnAtLeast) {
  const std::vector<std::string> dense = {"data.num_categorical=0", "feature=[]", "table=[]"};
  const std::vector<std::string> sparse = {"data.num_dense=0", "dlrm.bottom=[]"};
  const auto with = [](std::vector<std::string> changes, const std::vector<std::string>& more) {
    changes.insert(changes.end(), more.begin(), more.end());
    return changes;
  };
  EXPECT_TRUE(ParseJob(kJob, "j", dense).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", sparse).ok());
  EXPECT_EQ(ErrorOf(with(dense, sparse)),
            "--set data.num_dense=0: data.num_dense is 0, and data.num_categorical as well: there "
            "is nothing to train on");
  EXPECT_EQ(ErrorOf(with(dense, {"cache.budget=1MiB"})),
            "--set cache.budget=1MiB: cache.budget is set, but there are no categorical columns");
  EXPECT_EQ(ErrorOf({"feature[0].padding_id=-1"}),
            "--set feature[0].padding_id=-1: feature[0].padding_id is for DLRM_NPY; in CRITEO_TSV "
            "a bag has no padding");
  EXPECT_TRUE(ParseJob(kJob, "j", {"feature[0].padding_id=-1", "data.format=DLRM_NPY"}).ok());
}

TEST(ValidateJob, ACacheIsFilledInAndItsDistancesFit) {
  const auto job = ParseJob(kJob, "j", {"cache.budget=1GiB"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->cache().window_steps(), 8u);
  EXPECT_EQ(PrefetchSteps(job->cache()), 2u);
  EXPECT_FALSE(ParseJob(kJob, "j", {})->has_cache());

  EXPECT_EQ(ErrorOf({"cache.window_steps=4"}),
            "--set cache.window_steps=4: j: cache.budget is missing; write a size, such as "
            "\"256MiB\"");
  EXPECT_EQ(ErrorOf({"cache.budget=1KiB"}),
            "--set cache.budget=1KiB: cache.budget is 1024; it must be at least 65536");
  EXPECT_EQ(ErrorOf({"cache.budget=1GiB", "cache.window_steps=0"}),
            "--set cache.window_steps=0: cache.window_steps is 0; it must be at least 1");
  EXPECT_EQ(ErrorOf({"cache.budget=1GiB", "cache.prefetch_steps=8"}),
            "--set cache.prefetch_steps=8: cache.prefetch_steps is 8; it must be less than "
            "cache.window_steps, which is 8");
  const std::vector<std::string> copies = {"cache.budget=1GiB", "cluster.workers=2",
                                           "train.staleness_steps=3"};
  EXPECT_EQ(ParseJob(kJob, "j", copies, {}, JobUse::kTrain).status().message(),
            "--set train.staleness_steps=3: train.staleness_steps is 3; with `cache` and several "
            "workers it must be 0");
  // Earlier builds trained it, and their runs can be read.
  EXPECT_TRUE(ParseJob(kJob, "j", copies).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", {"cache.budget=1GiB", "train.staleness_steps=3"}).ok());
}

TEST(ValidateJob, PlacementsNeedACacheThatCanFollowThem) {
  const std::string remote = "table[0].settings.placement=REMOTE";
  const std::string device = "table[0].settings.placement=DEVICE";
  const std::string cache = "cache.budget=1GiB";
  EXPECT_EQ(ErrorOf({remote}), "--set " + remote +
                                   ": table[0].settings.placement is REMOTE, but the job has no "
                                   "`cache`");
  EXPECT_EQ(ErrorOf({"default_table.placement=DEVICE"}),
            "--set default_table.placement=DEVICE: default_table.placement is DEVICE, but the job "
            "has no `cache`");
  EXPECT_TRUE(ParseJob(kJob, "j", {"table[0].settings.placement=CACHED"}).ok());
  for (const std::string& placement : {remote, device}) {
    EXPECT_TRUE(ParseJob(kJob, "j", {cache, placement}).ok());
    EXPECT_NE(
        ErrorOf({cache, "cache.policy=STATIC", placement}).find("where cache.policy is STATIC"),
        std::string::npos);
  }
  const std::string why = ": its servers decide which keys have a row, so no worker can hold them";
  EXPECT_EQ(ErrorOf({cache, device, "default_table.min_count=3"}),
            "--set " + device +
                ": table[0].settings.placement is DEVICE, but table 'T' has min_count 3" + why);
  EXPECT_EQ(
      ErrorOf({cache, "default_table.placement=DEVICE", "table[0].settings.eviction.max_rows=9"}),
      "--set default_table.placement=DEVICE: default_table.placement is DEVICE, but table "
      "'T' has eviction" +
          why);
  EXPECT_TRUE(ParseJob(kJob, "j", {cache, remote, "default_table.min_count=3"}).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", {cache, device, "default_table.min_count=1"}).ok());
}

TEST(ValidateJob, OnlyAPrefetchThatSomebodyGaveIsHeldAgainstAnotherWindow) {
  const auto resolved = ParseJob(kJob, "j", {"cache.budget=1GiB"});
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  for (const uint32_t window : {1, 2, 3, 8}) {
    const auto changed = ParseJob(JobToText(*resolved), "run/job.textproto",
                                  {absl::StrCat("cache.window_steps=", window)});
    ASSERT_TRUE(changed.ok()) << changed.status();
    EXPECT_EQ(PrefetchSteps(changed->cache()), std::min(2u, window - 1));
  }
  const auto given = ParseJob(kJob, "j", {"cache.budget=1GiB", "cache.prefetch_steps=2"});
  ASSERT_TRUE(given.ok()) << given.status();
  const auto refused =
      ParseJob(JobToText(*given), "run/job.textproto", {"cache.window_steps=1"}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(refused.message()),
      testing::MatchesRegex("--set cache.window_steps=1: run/job.textproto:[0-9]+: "
                            "cache.prefetch_steps is 2; it must be less than cache.window_steps, "
                            "which is 1"));
}

TEST(ValidateJob, TheCpuMultipliesInFloat32AndBfloat16) {
  EXPECT_EQ(ErrorOf({"device=CPU", "dlrm.precision=TF32"}),
            "--set dlrm.precision=TF32: dlrm.precision is TF32; device CPU knows FLOAT32 and "
            "BFLOAT16");
  EXPECT_TRUE(ParseJob(kJob, "j", {"device=CPU", "precision=BFLOAT16"}).ok());
  EXPECT_TRUE(ParseJob(kJob, "j", {"device=CUDA", "dlrm.precision=TF32"}).ok());
}

TEST(ValidateJob, APolicyForCheckpointsIsFilledIn) {
  const auto job = ParseJob(kJob, "j", {"checkpoint.every_steps=10"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->checkpoint().every_steps(), 10u);
  EXPECT_TRUE(job->checkpoint().at_end());
  EXPECT_EQ(job->checkpoint().keep(), 3u);
  EXPECT_EQ(job->checkpoint().full_every(), 8u);
  EXPECT_EQ(job->checkpoint().max_rollbacks(), 10u);
  EXPECT_EQ(job->checkpoint().directory(), "");
  EXPECT_EQ(job->cluster().max_log_size(), "8GiB");
  EXPECT_EQ(job->cluster().max_pending_size(), "4GiB");
  EXPECT_EQ(job->cluster().handler_threads(), 2u);
  EXPECT_EQ(job->cluster().max_held_pulls(), 4096u);
  EXPECT_EQ(job->cluster().node_lease_s(), 20u);
  EXPECT_EQ(job->cluster().host_timeout_s(), 30u);
  EXPECT_EQ(job->cluster().host_wait_s(), 300u);
}

TEST(ValidateJob, WithoutAPolicyTheTrainedModelIsKept) {
  const auto job = ParseJob(kJob, "j", {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(WritesCheckpoints(*job));
  EXPECT_TRUE(job->checkpoint().at_end());
  EXPECT_EQ(job->checkpoint().every_steps(), 0u);
  EXPECT_EQ(job->checkpoint().max_rollbacks(), 0u) << "a loss ends it";
  const auto again = ParseJob(JobToText(*job), "j", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), job->SerializeAsString());
  EXPECT_EQ(ParseJob(kJob, "j", {"checkpoint={}"})->checkpoint().max_rollbacks(), 10u);

  for (const char* rest : {"", "checkpoint.every_steps=10"}) {
    std::vector<std::string> overrides = {"checkpoint.none=true", "evaluate.every_steps=5"};
    if (*rest != '\0') overrides.emplace_back(rest);
    const auto none = ParseJob(kJob, "j", overrides);
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_FALSE(WritesCheckpoints(*none));
    EXPECT_FALSE(none->evaluate().keep_best());
    EXPECT_FALSE(WritesCheckpoints(*ParseJob(JobToText(*none), "j", {})));
  }
}

TEST(MaxPendingSizeTest, WhatTheDenseParametersAlwaysTakeHasToFit) {
  const std::vector<std::string> large = {"dlrm.bottom=[1024, 1024]",
                                          "cluster.max_pending_size=1MiB"};
  EXPECT_THAT(ErrorOf(large),
              testing::MatchesRegex("--set cluster.max_pending_size=1MiB: cluster.max_pending_size "
                                    "is 1048576 bytes, but the dense parameters that the worker "
                                    "pushes at checkpoints and at the end take [0-9]{7} bytes of "
                                    "one server; give it more, or the job more servers"));
  std::vector<std::string> of_two = large;
  of_two.push_back("cluster.workers=2");
  EXPECT_THAT(ErrorOf(of_two),
              testing::HasSubstr("that the workers push at checkpoints and at the end take "));
  of_two.push_back("train.staleness_steps=1");
  EXPECT_THAT(ErrorOf(of_two), testing::HasSubstr("that the workers push in each step take "));
  std::vector<std::string> many_servers = large;
  many_servers.push_back("cluster.servers=64");
  EXPECT_TRUE(ParseJob(kJob, "j", many_servers, {}, JobUse::kTrain).ok());
  // A job that has trained on more servers is still read, to score or to export it.
  EXPECT_TRUE(ParseJob(kJob, "j", large).ok());
}

// A job file of a run directory spells out every table: there default_table says nothing any more.
TEST(DefaultTableTest, AFlagThatNoTableWouldSeeIsRefused) {
  const auto written = ParseJob(kJob, "j", {"default_table.init_scale=0.5"});  // B takes it.
  ASSERT_TRUE(written.ok()) << written.status();
  const std::string resolved = JobToText(*written);
  for (const char* change : {"dim=4", "init_scale=0.25", "optimizer.sgd={}",
                             "storage.rocksdb.memory=1GiB", "optimizer={adam{}}"}) {
    const std::string flag = absl::StrCat("default_table.", change);
    const auto job = ParseJob(resolved, "run/job.textproto", {flag});
    EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument) << flag;
    EXPECT_THAT(std::string(job.status().message()),
                testing::StartsWith(absl::StrCat(
                    "--set ", flag, " would change nothing: run/job.textproto spells it out")));
    // What is hinted at instead is accepted.
    std::vector<std::string> hinted;
    for (const absl::string_view part :
         absl::StrSplit(job.status().message(), absl::ByString("--set '"))) {
      hinted.emplace_back(part.substr(0, part.find('\'')));
    }
    ASSERT_GT(hinted.size(), 1u) << job.status();
    hinted.erase(hinted.begin());
    const auto changed = ParseJob(resolved, "run/job.textproto", hinted);
    // The file's layers stand for the preset with the dims that it had.
    if (absl::StartsWith(change, "dim")) {
      EXPECT_THAT(std::string(changed.status().message()),
                  testing::HasSubstr("needs one width for all"));
    } else {
      EXPECT_TRUE(changed.ok()) << changed.status();
    }
  }
  const auto cleared = ParseJob(resolved, "j", {}, {"default_table"});
  EXPECT_EQ(cleared.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(cleared.status().message()),
              testing::StartsWith("--clear default_table would change nothing"));
  // Where a table is silent again, the default is its.
  const auto again =
      ParseJob(resolved, "j", {"default_table.init_scale=0.25"}, {"table", "feature"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->table(0).settings().init_scale(), 0.25f);
}

// The table has a dim of its own, and no optimizer.
TEST(DefaultTableTest, EachFieldIsLookedAtByItself) {
  std::string text = kJob;
  const std::string of_b = "feature { name: \"B\" }";
  text.replace(text.find(of_b), of_b.size(), "feature { name: \"B\" table: \"T\" }");
  EXPECT_TRUE(ParseJob(text, "j", {"default_table.optimizer={sgd{}}"}).ok());
  const auto job = ParseJob(text, "j", {"default_table.dim=16"});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EvaluateTest, SaysWhenAndHasHeldOutRows) {
  EXPECT_EQ(ErrorOf({"evaluate={}"}),
            "--set evaluate={}: evaluate says neither every_steps nor every_passes; set one");
  EXPECT_EQ(ErrorOf({"evaluate.every_passes=1", "evaluate.every_steps=5"}),
            "--set evaluate.every_passes=1: evaluate.every_passes is set, and "
            "evaluate.every_steps as well; choose one");
  EXPECT_THAT(
      ErrorOf({"evaluate.every_steps=5", "evaluate.keep_best=true", "checkpoint.none=true"}),
      testing::HasSubstr("evaluate.keep_best needs checkpoints; checkpoint.none is true"));
  EXPECT_EQ(ErrorOf({"evaluate={every_steps: 5}", "data.test_share=0"}),
            "--set evaluate={every_steps: 5}: evaluate needs held-out rows: set data.test_path, or "
            "data.test_share above 0");
}

TEST(EvaluateTest, TheBestIsKeptWhereThereAreCheckpoints) {
  EXPECT_TRUE(ParseJob(kJob, "j", {"evaluate.every_steps=5"})->evaluate().keep_best());
  EXPECT_TRUE(
      ParseJob(kJob, "j", {"evaluate.every_steps=5", "checkpoint={}"})->evaluate().keep_best());
  EXPECT_FALSE(ParseJob(kJob, "j", {"evaluate={every_steps: 5 keep_best: false}", "checkpoint={}"})
                   ->evaluate()
                   .keep_best());
  EXPECT_FALSE(ParseJob(kJob, "j", {"checkpoint={}"})->has_evaluate());
}

}  // namespace
}  // namespace thermocline
