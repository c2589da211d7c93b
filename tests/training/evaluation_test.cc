// Evaluations while a job trains do not change its model, score exactly the model of their step,
// and end training on all workers at the same step.
#include "worker/train/evaluation.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "tests/training/small_job.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

// No job here has so many steps.
constexpr Step kNever{1000};

struct Shape {
  int servers, workers;
  std::string cache_budget;  // "": none
  std::string Name() const {
    return absl::StrCat(servers, " servers, ", workers, " workers, cache '", cache_budget, "'");
  }
};

std::vector<Shape> Shapes() {
  return {{1, 1, ""}, {3, 1, ""}, {1, 1, "32KiB"}, {2, 1, "1MiB"}, {2, 2, ""}, {1, 3, ""}};
}

Job JobOf(const Shape& shape, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.end(),
                   {absl::StrCat("cluster.servers=", shape.servers),
                    absl::StrCat("cluster.workers=", shape.workers), "train.passes=2"});
  Job job = MakeSmallJob("adam {}", overrides);
  return shape.cache_budget.empty() ? job : WithCache(job, shape.cache_budget, 5, 3);
}

Outcome Train(const Job& job, EvaluationDecisions* decisions = nullptr, Step start = Step(0)) {
  JobServers servers(job);
  WorkerOptions options;
  options.decisions = decisions;
  options.start_step = start;
  return RunWorkers(job, &servers, options);
}

// The model after `steps` steps, and its evaluation, by a job that knows of no other.
Outcome TrainUpTo(const Shape& shape, int64_t steps) {
  return Train(JobOf(shape, {absl::StrCat("train.max_steps=", steps)}));
}

void ExpectSameEvaluation(const Outcome& outcome, const Outcome& expected) {
  EXPECT_EQ(outcome.workers[0]->evaluation.samples, 300);
  EXPECT_EQ(outcome.workers[0]->evaluation.auc, expected.workers[0]->evaluation.auc);
  EXPECT_EQ(outcome.workers[0]->evaluation.logloss, expected.workers[0]->evaluation.logloss);
}

TEST(EvaluationTest, ChangesNoBitOfTheModel) {
  CaseChoice cases;
  for (const Shape& shape : Shapes()) {
    const Outcome without = Train(JobOf(shape));
    ASSERT_EQ(without.workers[0]->steps, 2 * kSmallJobSteps);
    for (const char* policy : {"evaluate.every_steps=1", "evaluate.every_steps=5",
                               "evaluate.every_steps=12", "evaluate.every_passes=1"}) {
      if (!cases.TakesNext()) continue;
      SCOPED_TRACE(absl::StrCat(shape.Name(), ", ", policy));
      EvaluationDecisions go_on;
      go_on.Take(kNever, false);
      const Outcome with = Train(JobOf(shape, {policy}), &go_on);
      EXPECT_EQ(Hex(with.digest), Hex(without.digest));
      EXPECT_EQ(with.rows, without.rows);
      for (const auto& worker : with.workers) EXPECT_EQ(worker->steps, 2 * kSmallJobSteps);
      ExpectSameEvaluation(with, without);
    }
  }
}

TEST(EvaluationTest, EndsTrainingOnAllWorkersWithTheModelOfItsStep) {
  CaseChoice cases;
  for (const Shape& shape : Shapes()) {
    for (const int64_t steps : {3, 12, 18}) {
      if (!cases.TakesNext()) continue;
      SCOPED_TRACE(absl::StrCat(shape.Name(), ", ", steps, " steps"));
      const Outcome expected = TrainUpTo(shape, steps);
      EvaluationDecisions stop;
      stop.Take(Step(steps - 1), true);
      const Outcome stopped = Train(JobOf(shape, {"evaluate.every_steps=3"}), &stop);
      EXPECT_EQ(Hex(stopped.digest), Hex(expected.digest));
      for (const auto& worker : stopped.workers) EXPECT_EQ(worker->steps, steps);
      EXPECT_EQ(stopped.workers[0]->evaluated_step, Step(steps - 1));
      ExpectSameEvaluation(stopped, expected);
    }
  }
}

TEST(EvaluationTest, EndsTrainingWithAPass) {
  CaseChoice cases;
  for (const Shape& shape : Shapes()) {
    if (!cases.TakesNext()) continue;
    SCOPED_TRACE(shape.Name());
    EvaluationDecisions stop;
    stop.Take(Step(kSmallJobSteps - 1), true);
    const Outcome stopped = Train(JobOf(shape, {"evaluate.every_passes=1"}), &stop);
    const Outcome expected = TrainUpTo(shape, kSmallJobSteps);
    EXPECT_EQ(Hex(stopped.digest), Hex(expected.digest));
    ExpectSameEvaluation(stopped, expected);
  }
}

// A job that was killed between a checkpoint and the evaluation of its step continues with that
// evaluation.
TEST(EvaluationTest, ARunBeginsWithTheEvaluationOfTheStepBefore) {
  for (const char* policy : {"evaluate.every_steps=6", "evaluate.every_passes=1"}) {
    for (const int workers : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(policy, ", ", workers, " workers"));
      const Shape shape = {2, workers, ""};
      Job job = JobOf(shape, {policy});
      JobServers servers(job);
      Job first = job;
      first.mutable_train()->set_max_steps(kSmallJobSteps);
      first.clear_evaluate();
      const Outcome before = RunWorkers(first, &servers);
      EvaluationDecisions stop;
      stop.Take(Step(kSmallJobSteps - 1), true);
      WorkerOptions options;
      options.start_step = Step(kSmallJobSteps);
      options.decisions = &stop;
      const Outcome after = RunWorkers(job, &servers, options);
      EXPECT_EQ(Hex(after.digest), Hex(before.digest));
      for (const auto& worker : after.workers) {
        EXPECT_EQ(worker->steps, kSmallJobSteps);
        EXPECT_EQ(worker->new_samples, 0u);
      }
      ExpectSameEvaluation(after, before);
    }
  }
}

// Workers that could run ahead of worker 0 still end at the same step.
TEST(EvaluationTest, StaleWorkersEndAtTheSameStep) {
  EvaluationDecisions stop;
  stop.Take(Step(7), true);
  const Outcome stopped =
      Train(JobOf({2, 3, ""}, {"train.staleness_steps=4", "evaluate.every_steps=4"}), &stop);
  for (const auto& worker : stopped.workers) {
    EXPECT_EQ(worker->steps, 8);
    EXPECT_LE(worker->stats.max_staleness(), 4u);
  }
  EXPECT_EQ(stopped.workers[0]->evaluation.samples, 300);
}

TEST(EvaluationTest, NeedsHeldOutRows) {
  Job job = JobOf({1, 1, ""}, {"evaluate.every_steps=5"});
  job.mutable_data()->set_test_share(0);
  const absl::Status status = StatusOfRun(job);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "no row of its data is held out")) << status;
}

}  // namespace
}  // namespace thermocline
