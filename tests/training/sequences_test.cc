// Models that read lists step by step are trained by the same steps as others: with the same bits
// for any number of servers and threads, with a cache, and after a resume (with hot batches:
// fae_test.cc).
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/training/reference_trainer.h"
#include "tests/training/small_job.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

class SequencesTest : public testing::TestWithParam<SequenceModel> {
 protected:
  static Job Make(const std::vector<std::string>& overrides) {
    return MakeSequenceJob(GetParam().fields, overrides);
  }
  static std::string Train(const Job& job) {
    JobServers servers(job);
    return Hex(RunWorkers(job, &servers).digest);
  }
  static std::string Reference(const std::vector<std::string>& overrides) {
    const absl::StatusOr<ReferenceResult> reference = TrainReference(Make(overrides));
    EXPECT_TRUE(reference.ok()) << reference.status();
    return Hex(reference->digest);
  }
};

TEST_P(SequencesTest, HaveTheReferencesBitsHoweverTheyAreTrained) {
  const std::string reference = Reference({});
  EXPECT_EQ(Train(Make({})), reference);
  const Job spread = Make({"cluster.servers=3", "cluster.worker_threads=3"});
  EXPECT_EQ(Train(spread), reference);
  EXPECT_EQ(Train(WithCache(spread, "64KiB", 4, 2)), reference);
  const std::vector<std::string> of_three = {"cluster.workers=3", "cluster.servers=2"};
  const std::string several = Reference(of_three);
  EXPECT_EQ(Train(Make(of_three)), several);
  EXPECT_EQ(Train(WithCache(Make(of_three), "128KiB", 4, 2)), several);
}

TEST_P(SequencesTest, GoOnWithTheSameBits) {
  const Job job = Make({"cluster.servers=2"});
  const std::string whole = Train(job);
  JobServers servers(job);
  Job first = job;
  first.mutable_train()->set_max_steps(7);
  RunWorkers(first, &servers);
  WorkerOptions options;
  options.start_step = Step(7);
  EXPECT_EQ(Hex(RunWorkers(job, &servers, options).digest), whole);
}

INSTANTIATE_TEST_SUITE_P(Models, SequencesTest, testing::ValuesIn(kSequenceModels),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace thermocline
