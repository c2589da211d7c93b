// Every model is trained by the same steps: what is promised of DLRM holds for the other presets,
// whose rows have first-order weights, and whose layers drop units.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/training/reference_trainer.h"
#include "tests/training/small_job.h"
#include "tests/training/static_job.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

Outcome TrainModel(const Job& job, JobServers* servers = nullptr, int64_t start_step = 0) {
  JobServers own(job);
  WorkerOptions options;
  options.start_step = Step(start_step);
  const Outcome outcome = RunWorkers(job, servers != nullptr ? servers : &own, options);
  for (const auto& worker : outcome.workers) EXPECT_TRUE(worker.ok()) << worker.status();
  return outcome;
}

class ModelsTest : public testing::TestWithParam<SmallModel> {
 protected:
  static Job Make(const std::vector<std::string>& overrides) {
    return MakeSmallJobOf(GetParam(), overrides);
  }
  static std::string ReferenceDigest(const std::vector<std::string>& overrides) {
    const absl::StatusOr<ReferenceResult> reference = TrainReference(Make(overrides));
    EXPECT_TRUE(reference.ok()) << reference.status();
    return Hex(reference->digest);
  }
};

TEST_P(ModelsTest, HaveTheReferencesBitsForAnyServersAndThreads) {
  const std::string reference = ReferenceDigest({});
  for (const int servers : {1, 3}) {
    for (const int threads : {1, 3}) {
      const Job job = Make({absl::StrCat("cluster.servers=", servers),
                            absl::StrCat("cluster.worker_threads=", threads)});
      EXPECT_EQ(Hex(TrainModel(job).digest), reference) << servers << " servers, " << threads;
    }
  }
  // The last step has 3 rows: two of the workers have none.
  const std::vector<std::string> of_five = {"cluster.workers=5", "data.test_share=0.198"};
  EXPECT_EQ(Hex(TrainModel(Make(of_five)).digest), ReferenceDigest(of_five));
}

TEST_P(ModelsTest, ACacheChangesNoBit) {
  const Job job = Make({"cluster.servers=2", "checkpoint.every_steps=5"});
  const std::string uncached = Hex(TrainModel(job).digest);
  for (const char* budget : {"30000B", "1MiB"}) {
    const Outcome cached = TrainModel(WithCache(job, budget, 4, 2));
    EXPECT_EQ(Hex(cached.digest), uncached) << budget;
    EXPECT_GT(cached.workers[0]->stats.cache().hits(), 0u);
  }
  EXPECT_EQ(Hex(TrainModel(WithStaticCache(job, "1MiB", 4, 2, /*least_lookups=*/6)).digest),
            uncached);
  const Job shared = Make({"cluster.workers=3", "cluster.servers=2"});
  EXPECT_EQ(Hex(TrainModel(WithCache(shared, "64KiB", 4, 2)).digest),
            Hex(TrainModel(shared).digest));
}

TEST_P(ModelsTest, GoOnWithTheSameBits) {
  const Job job = Make({"cluster.servers=2"});
  const std::string whole = Hex(TrainModel(job).digest);
  JobServers servers(job);
  Job first = job;
  first.mutable_train()->set_max_steps(7);
  TrainModel(first, &servers);
  EXPECT_EQ(Hex(TrainModel(job, &servers, 7).digest), whole);
}

TEST_P(ModelsTest, EvaluationsAmidTheRunChangeNothing) {
  const Job job = Make({"cluster.servers=2"});
  const Outcome without = TrainModel(job);
  const Outcome with = TrainModel(Make({"cluster.servers=2", "evaluate={every_steps:5}"}));
  EXPECT_EQ(Hex(with.digest), Hex(without.digest));
  EXPECT_EQ(with.workers[0]->evaluation.logloss, without.workers[0]->evaluation.logloss);
}

// Logistic regression over categories: all its weights are first-order ones of rows.
TEST(ModelOfRowsAloneTest, HasTheSameBitsHoweverItIsTrained) {
  const auto make = [](const std::vector<std::string>& cluster) {
    std::vector<std::string> overrides = {"layer={name:'w' input:'categorical' first_order{}}",
                                          "task={input:'w'}"};
    overrides.insert(overrides.end(), cluster.begin(), cluster.end());
    return MakeJobOfColumns(0, 3, overrides, {"dlrm"});
  };
  const Outcome one = TrainModel(make({}));
  EXPECT_GT(one.rows, 0u);
  EXPECT_EQ(Hex(TrainModel(make({"cluster.servers=3"})).digest), Hex(one.digest));
  EXPECT_EQ(Hex(TrainModel(WithCache(make({}), "64KiB", 4, 2)).digest), Hex(one.digest));
  const Job two = make({"cluster.workers=2", "cluster.servers=2"});
  EXPECT_EQ(Hex(TrainModel(WithCache(two, "64KiB", 4, 2)).digest), Hex(TrainModel(two).digest));
}

TEST(SeveralTasksTest, HaveTheReferencesBitsHoweverTheyAreTrained) {
  const absl::StatusOr<ReferenceResult> reference = TrainReference(MakeJobOfTasks({}));
  ASSERT_TRUE(reference.ok()) << reference.status();
  const Outcome one = TrainModel(MakeJobOfTasks({"cluster.servers=2"}));
  EXPECT_EQ(Hex(one.digest), Hex(reference->digest));
  EXPECT_EQ(Hex(TrainModel(WithCache(MakeJobOfTasks({}), "64KiB", 4, 2)).digest), Hex(one.digest));
  const Job two = MakeJobOfTasks({"cluster.workers=2", "cluster.servers=2"});
  const std::string of_two = Hex(TrainModel(two).digest);
  EXPECT_EQ(Hex(TrainModel(WithCache(two, "64KiB", 4, 2)).digest), of_two);
  EXPECT_EQ(of_two, Hex(TrainReference(two)->digest));
  // Each task's weight counts.
  EXPECT_NE(Hex(TrainModel(MakeJobOfTasks({"task[1].weight=0.25"})).digest), Hex(one.digest));

  const EvaluationResult& scored = one.workers[0]->evaluation;
  ASSERT_EQ(scored.tasks.size(), 2u);
  EXPECT_EQ(scored.task, "y");
  EXPECT_EQ(scored.auc, scored.tasks[0].auc);
  EXPECT_EQ(scored.samples, 300);
  EXPECT_EQ(scored.tasks[0].samples, 300);
  EXPECT_EQ(scored.tasks[1].label, "z");
  EXPECT_LT(scored.tasks[1].samples, 250) << "a third of the rows have no label";
  EXPECT_GT(scored.tasks[1].samples, 150);
  const double share = static_cast<double>(scored.tasks[1].samples) / 300;
  EXPECT_NEAR(scored.loss, scored.tasks[0].logloss + 0.5 * share * scored.tasks[1].logloss, 1e-12);
  const WorkerStats& stats = one.workers[0]->stats;
  ASSERT_EQ(stats.task_losses_size(), 2);
  EXPECT_GT(stats.loss(), stats.task_losses(0).loss());
}

TEST(SeveralTasksTest, ALabelThatAllRowsLackEndsTheJob) {
  const Job job = MakeJobOfTasks({}, "none");
  const JobServers servers(job);
  const absl::Status status = StatusOfRun(job);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::StartsWith("no training row has the label 'none' "));
}

INSTANTIATE_TEST_SUITE_P(Presets, ModelsTest, testing::ValuesIn(kSmallModels),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace thermocline
