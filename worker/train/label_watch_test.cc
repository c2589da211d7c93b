#include "worker/train/label_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/process_limits.h"
#include "common/job/job_loader.h"
#include "worker/data/dataset.h"
#include "worker/data/testing/test_files.h"
#include "worker/session/retry_policy.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/progress.h"

namespace thermocline {
namespace {

// A worker whose slices have the label of "click" alone; the last row of all has that of "buy", or
// none has.
class LabelWatchTest : public testing::Test {
 protected:
  LabelWatch Watch(const std::string& label_of_last, const std::vector<std::string>& flags = {}) {
    const std::string rows = folder_.Write(
        "rows.csv", absl::StrCat("click,buy,id\n1,,a\n0,,b\n1,,c\n1,", label_of_last, ",d\n"));
    auto job =
        ParseJob(absl::StrCat("name: 'j' data { train { path: '", rows, R"(' csv { header: true
        } } split { last_share: 0 } label { column: ["click", "buy"] may_be_missing: true } }
        feature { column: "id" } layer { name: "deep" input: "id" mlp { units: 4 } }
        task { label: "click" input: "deep" } task { label: "buy" input: "deep" }
        train { batch_size: 2 learning_rate { base: 0.1 } passes: 3 })"),
                 "j", flags);
    CHECK(job.ok());
    job_ = *std::move(job);
    auto dataset = Dataset::Open(job_);
    CHECK(dataset.ok());
    dataset_ = *std::move(dataset);
    return {job_, dataset_.get(), &progress_, &checkpoints_};
  }

  static Batch BatchOf(uint32_t pass) {
    Batch batch;
    batch.pass = pass;
    batch.num_tasks = 2;
    batch.size = 1;
    batch.labels = {1, 0};
    batch.weights = {1, 0};
    return batch;
  }

  uint64_t advances() const { return progress_.Stats().phase().advances(); }

  TempFolder folder_;
  WorkerProgress progress_{"j", WorkerRank(0), -1};
  NamedCheckpoints checkpoints_{Step(0)};
  Job job_;
  std::unique_ptr<Dataset> dataset_;
};

TEST_F(LabelWatchTest, LooksThroughAllRowsForALabelThatItHasNotSeen) {
  LabelWatch watch = Watch("0");
  EXPECT_TRUE(watch.Take(BatchOf(0)).ok());
  EXPECT_EQ(advances(), 0u);
  EXPECT_TRUE(watch.Take(BatchOf(1)).ok());
  EXPECT_EQ(advances(), 2u) << "two batches";
  EXPECT_EQ(progress_.Stats().phase().name(), "training");
  EXPECT_TRUE(watch.Take(BatchOf(2)).ok());
  EXPECT_TRUE(watch.End().ok());
  EXPECT_EQ(advances(), 2u) << "once is enough";
}

TEST_F(LabelWatchTest, ALabelThatNoRowHasIsAnErrorOfTheJob) {
  LabelWatch watch = Watch("");
  EXPECT_TRUE(watch.Take(BatchOf(0)).ok());
  const absl::Status status = watch.Take(BatchOf(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "no training row has the label 'buy' (data.label.may_be_missing), so its task learns "
            "nothing: leave the task out, name another label, or give it rows that have it");
  EXPECT_EQ(ExitCodeOf(status), kExitUsage) << "no checkpoint helps";
}

// A task of weight 0 is scored and not learned.
TEST_F(LabelWatchTest, ATaskOfWeightZeroNeedsNoLabel) {
  LabelWatch watch = Watch("", {"task[1].weight=0"});
  EXPECT_TRUE(watch.Take(BatchOf(0)).ok());
  EXPECT_TRUE(watch.Take(BatchOf(1)).ok());
  EXPECT_EQ(advances(), 0u) << "there is nothing to look for";
  EXPECT_TRUE(watch.End().ok());
}

// Else a user who stops the job would wait for as long as a pass may take.
TEST_F(LabelWatchTest, ACheckpointDoesNotWaitForIt) {
  LabelWatch watch = Watch("");
  EXPECT_TRUE(watch.Take(BatchOf(0)).ok());
  EXPECT_TRUE(checkpoints_.Name(Step(4)).ok());
  EXPECT_TRUE(watch.Take(BatchOf(1)).ok());
  EXPECT_EQ(advances(), 0u);
  EXPECT_TRUE(checkpoints_.BeginPush(Step(4)));
  EXPECT_FALSE(watch.Take(BatchOf(2)).ok()) << "at the end of the next pass";
}

TEST_F(LabelWatchTest, AtTheEndNothingIsPutOff) {
  LabelWatch watch = Watch("");
  EXPECT_TRUE(watch.Take(BatchOf(0)).ok());
  EXPECT_TRUE(checkpoints_.Name(Step(4)).ok());
  EXPECT_FALSE(watch.End().ok());
}

}  // namespace
}  // namespace thermocline
