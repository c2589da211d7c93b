#include "common/job/job_override.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/job.pb.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string Apply(absl::string_view assignment, Job* job) {
  const auto path = ApplyOverride(assignment, job);
  if (path.ok()) return "";
  EXPECT_EQ(path.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(path.status().message());
}

TEST(ApplyOverride, SetsScalarsOfEveryKind) {
  Job job;
  EXPECT_EQ(Apply("name=a job", &job), "");
  EXPECT_EQ(Apply("seed=18446744073709551615", &job), "");
  EXPECT_EQ(Apply("train.batch_size=2048", &job), "");
  EXPECT_EQ(Apply("data.test_share=0.25", &job), "");
  EXPECT_EQ(Apply("data.format=DLRM_NPY", &job), "");
  EXPECT_EQ(Apply("data.path=/tmp/x=y\\z \"q\"", &job), "");
  EXPECT_EQ(Apply("cluster.insecure=true", &job), "");
  EXPECT_EQ(job.name(), "a job");
  EXPECT_EQ(job.seed(), 18446744073709551615u);
  EXPECT_EQ(job.train().batch_size(), 2048u);
  EXPECT_EQ(job.data().test_share(), 0.25);
  EXPECT_EQ(job.data().format(), Data::DLRM_NPY);
  EXPECT_EQ(job.data().path(), "/tmp/x=y\\z \"q\"");
  EXPECT_TRUE(job.cluster().insecure());
}

TEST(ApplyOverride, AnOptionalFieldSetToItsZeroIsSet) {
  Job job;
  EXPECT_EQ(Apply("data.test_share=0", &job), "");
  EXPECT_TRUE(job.data().has_test_share());
}

TEST(ApplyOverride, TakesQuotedText) {
  Job job;
  EXPECT_EQ(Apply("name=\"quoted\"", &job), "");
  EXPECT_EQ(job.name(), "quoted");
  EXPECT_EQ(Apply("name=", &job), "");
  EXPECT_EQ(job.name(), "");
}

TEST(ApplyOverride, ReplacesListsAndTheirElements) {
  Job job;
  job.mutable_dlrm()->add_bottom(1);
  EXPECT_EQ(Apply("dlrm.bottom=[512, 256, 64]", &job), "");
  EXPECT_THAT(job.dlrm().bottom(), ElementsAre(512, 256, 64));
  EXPECT_EQ(Apply("dlrm.bottom[1]=100", &job), "");
  EXPECT_THAT(job.dlrm().bottom(), ElementsAre(512, 100, 64));
  EXPECT_EQ(Apply("dlrm.bottom[3]=32", &job), "");  // one past the end appends
  EXPECT_THAT(job.dlrm().bottom(), ElementsAre(512, 100, 64, 32));
  EXPECT_EQ(Apply("dlrm.bottom=8", &job), "");
  EXPECT_THAT(job.dlrm().bottom(), ElementsAre(8));
  EXPECT_EQ(Apply("dlrm.bottom=64,32", &job), "");
  EXPECT_THAT(job.dlrm().bottom(), ElementsAre(64, 32));
  EXPECT_THAT(Apply("dlrm.bottom[0]=64,32", &job), HasSubstr("'64,32' is not one value"));
  EXPECT_EQ(Apply("dlrm.bottom=[]", &job), "");
  EXPECT_EQ(job.dlrm().bottom_size(), 0);
}

TEST(ApplyOverride, ReachesIntoRepeatedMessages) {
  Job job;
  EXPECT_EQ(Apply("table[0].name=users", &job), "");
  EXPECT_EQ(Apply("table[0].settings.dim=32", &job), "");
  EXPECT_EQ(Apply("feature[0]={name: 'u' table: 'users'}", &job), "");
  ASSERT_EQ(job.table_size(), 1);
  EXPECT_EQ(job.table(0).name(), "users");
  EXPECT_EQ(job.table(0).settings().dim(), 32u);
  ASSERT_EQ(job.feature_size(), 1);
  EXPECT_EQ(job.feature(0).table(), "users");
}

TEST(ApplyOverride, SwitchesTheOptimizer) {
  Job job;
  job.mutable_default_table()->mutable_optimizer()->mutable_adagrad();
  EXPECT_EQ(Apply("default_table.optimizer.adam.beta1=0.8", &job), "");
  EXPECT_EQ(job.default_table().optimizer().kind_case(), Optimizer::kAdam);
  EXPECT_EQ(Apply("default_table.optimizer.sgd={}", &job), "");
  EXPECT_EQ(job.default_table().optimizer().kind_case(), Optimizer::kSgd);
}

std::string Clear(absl::string_view path, Job* job) {
  const absl::Status status = ClearField(path, job);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(ClearField, TakesOutValuesMessagesAndLists) {
  Job job;
  job.set_seed(7);
  job.mutable_train()->set_passes(3);
  job.mutable_train()->set_batch_size(16);
  job.mutable_cache()->set_budget("1GiB");
  job.mutable_dlrm()->add_bottom(8);
  job.add_table()->set_name("a");
  TableSettings* settings = job.add_table()->mutable_settings();
  settings->set_dim(4);
  settings->mutable_storage()->mutable_rocksdb()->set_memory("1MiB");
  for (const char* path :
       {"seed", "train.passes", "cache", "dlrm.bottom", "table[1].settings.storage.rocksdb"}) {
    EXPECT_EQ(Clear(path, &job), "");
  }
  EXPECT_EQ(job.seed(), 0u);
  EXPECT_FALSE(job.train().has_passes());
  EXPECT_EQ(job.train().batch_size(), 16u);
  EXPECT_FALSE(job.has_cache());
  EXPECT_EQ(job.dlrm().bottom_size(), 0);
  EXPECT_EQ(settings->storage().tier_case(), Storage::TIER_NOT_SET);
  EXPECT_EQ(settings->dim(), 4u);
  EXPECT_EQ(Clear("table", &job), "");
  EXPECT_EQ(job.table_size(), 0);
}

TEST(ClearField, OfWhatIsNotThereMakesNothing) {
  Job job;
  EXPECT_EQ(Clear("cache", &job), "");
  EXPECT_EQ(Clear("cache.budget", &job), "");
  EXPECT_EQ(Clear("train.learning_rate.decay.power", &job), "");
  EXPECT_EQ(job.ByteSizeLong(), 0u);
}

TEST(ClearField, NamesThePathInErrors) {
  Job job;
  job.add_table()->set_name("a");
  EXPECT_EQ(Clear("cach", &job), "--clear cach: a job has no field 'cach' (did you mean 'cache'?)");
  EXPECT_EQ(Clear("cache=", &job),
            "--clear cache=: a job has no field 'cache=' (did you mean 'cache'?)");
  EXPECT_THAT(Clear("", &job), HasSubstr("has no field ''"));
  EXPECT_EQ(
      Clear("table[0]", &job),
      "--clear table[0]: an element can't be taken out of its list; clear the list, or set it "
      "anew");
  EXPECT_EQ(Clear("table[1].settings", &job), "--clear table[1].settings: table[1]: there are 1");
  EXPECT_THAT(Clear("table.settings", &job), HasSubstr("say which one"));
  EXPECT_EQ(job.table_size(), 1);
}

TEST(ApplyOverride, NamesTheAssignmentInErrors) {
  Job job;
  EXPECT_EQ(Apply("train.batchsize=1", &job),
            "--set train.batchsize=1: train has no field 'batchsize' (did you mean 'batch_size'?)");
  EXPECT_THAT(Apply("trian.batch_size=1", &job), HasSubstr("did you mean 'train'?"));
  EXPECT_THAT(Apply("train.batch_size=many", &job),
              HasSubstr("--set train.batch_size=many: train.batch_size: Expected integer"));
  EXPECT_THAT(Apply("train.batch_size=-1", &job), HasSubstr("train.batch_size"));
  EXPECT_THAT(Apply("train.batch_size=4294967296", &job), HasSubstr("train.batch_size"));
  EXPECT_THAT(Apply("data.format=DLRM_NYP", &job), HasSubstr("did you mean 'DLRM_NPY'?"));
  for (const char* gpu : {"device=GPU", "device=gpu"}) {
    EXPECT_THAT(Apply(gpu, &job), HasSubstr("did you mean 'CUDA'?"));
  }
  EXPECT_THAT(Apply("train.batch_size", &job), HasSubstr("write path.to.field=value"));
  EXPECT_THAT(Apply("=5", &job), HasSubstr("write path.to.field=value"));
  EXPECT_THAT(Apply("name.first=x", &job), HasSubstr("'name' is a value"));
  EXPECT_THAT(Apply("table.name=x", &job), HasSubstr("table[0]"));
  EXPECT_THAT(Apply("seed[0]=1", &job), HasSubstr("single field"));
  EXPECT_THAT(Apply("table[2].name=x", &job), EndsWith("there are 0"));
  EXPECT_THAT(Apply("task[1].weight=2", &job),
              EndsWith("there are 0; those of a preset stand in the job.textproto of a run"));
  EXPECT_THAT(Apply("table[x].name=x", &job), HasSubstr("name[0]"));
  EXPECT_THAT(Apply("dlrm.top[5]=1", &job), HasSubstr("past the end"));
  EXPECT_THAT(Apply("dlrm.top[0]=[1, 2]", &job), HasSubstr("not one value"));
  EXPECT_THAT(Apply("seed=1 name: 'x'", &job), HasSubstr("more than one value"));
}

}  // namespace
}  // namespace thermocline
