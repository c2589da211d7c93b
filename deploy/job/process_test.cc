#include "deploy/job/process.h"

#include <gtest/gtest.h>

namespace thermocline {
namespace {

constexpr ProcessRole kServer = ProcessRole::kServer;
constexpr ProcessRole kWorker = ProcessRole::kWorker;

ProcessFailure Killed(ProcessRole role) {
  return {role, "p", {std::nullopt, "was killed by signal 9 (Killed)", ""}};
}
ProcessFailure Exited(ProcessRole role, int code) { return {role, "p", {code, "exited", ""}}; }

TEST(ProcessTest, LossesAreNotCausedByTheJob) {
  EXPECT_FALSE(JobCausedAny({Killed(kWorker)}));
  EXPECT_FALSE(JobCausedAny({Killed(kServer)}));
  EXPECT_FALSE(JobCausedAny({Exited(kServer, 1)}));  // Its disk failed, say.
  EXPECT_FALSE(JobCausedAny({Exited(kWorker, 3)}));
  EXPECT_FALSE(JobCausedAny({Exited(kWorker, 4)}));  // Its data can't be read for now.
  EXPECT_FALSE(JobCausedAny({Exited(kWorker, 5)}));  // Its script failed.
  EXPECT_FALSE(JobCausedAny({Killed(kServer), Exited(kWorker, 3), Killed(kWorker)}));
}

TEST(ProcessTest, AScriptFailsAloneOrForALoss) {
  EXPECT_TRUE(OnlyScriptsFailed({Exited(kWorker, 5)}));
  EXPECT_TRUE(OnlyScriptsFailed({Exited(kWorker, 5), Exited(kWorker, 5)}));
  EXPECT_TRUE(OnlyScriptsFailed({Exited(kWorker, 5), Exited(kWorker, 3)}));  // It lost the other.
  EXPECT_FALSE(OnlyScriptsFailed({Exited(kWorker, 5), Killed(kWorker)}));
  EXPECT_FALSE(OnlyScriptsFailed({Killed(kServer), Exited(kWorker, 5)}));
  EXPECT_FALSE(OnlyScriptsFailed({Exited(kServer, 1), Exited(kWorker, 5)}));  // Its disk failed.
  EXPECT_FALSE(OnlyScriptsFailed({Exited(kWorker, 5), Exited(kWorker, 4)}));
  EXPECT_FALSE(OnlyScriptsFailed({Exited(kServer, 5)}));
  EXPECT_FALSE(OnlyScriptsFailed({Exited(kWorker, 3)}));
  EXPECT_FALSE(OnlyScriptsFailed({}));
}

TEST(ProcessTest, WhatTheJobCausesBeatsALoss) {
  EXPECT_TRUE(JobCausedAny({Exited(kWorker, 1)}));  // Bad data, NaN.
  EXPECT_TRUE(JobCausedAny({Exited(kWorker, 2)}));  // Bad flags.
  EXPECT_TRUE(JobCausedAny({Exited(kServer, 2)}));
  EXPECT_TRUE(JobCausedAny({Killed(kServer), Exited(kWorker, 1)}));
}

TEST(ProcessTest, Texts) {
  const std::vector<ProcessFailure> failures = {
      {kServer, "server 0", {std::nullopt, "was killed by signal 9 (Killed)", "was killed\n  | a"}},
      {kWorker, "worker 1", {3, "exited with code 3", "exited with code 3"}}};
  EXPECT_EQ(DescribeFailures(failures),
            "server 0 was killed by signal 9 (Killed), worker 1 exited with code 3");
  EXPECT_EQ(FailureStatus(failures),
            absl::AbortedError("server 0 was killed\n  | a\nworker 1 exited with code 3"));
  EXPECT_EQ(FailureStatus({{kWorker, "worker 1", {2, "exited", "exited", "no row has the label"}}}),
            absl::InvalidArgumentError("no row has the label\n  | worker 1 exited"));
  EXPECT_EQ(ProcessName(kWorker, 7), "worker 7");
}

// The launcher sees the end of one process as that of two.
TEST(ProcessTest, AnEmbeddedServerEndsAsItsWorker) {
  Cluster cluster;
  cluster.set_servers(0);
  cluster.set_workers(1);
  ProcessTable table(1, cluster);
  ASSERT_EQ(table.servers.size(), 1u);
  const ProcessEnd killed = {std::nullopt, "was killed by signal 9 (Killed)", ""};
  table.servers[0].end = killed;
  EXPECT_EQ(DescribeFailures(table.Failures()), "worker 0 was killed by signal 9 (Killed)");
  table.workers[0].end = killed;
  EXPECT_EQ(DescribeFailures(table.Failures()), "worker 0 was killed by signal 9 (Killed)");
  table.workers[0].end = ProcessEnd{0, "is done", ""};
  EXPECT_EQ(DescribeFailures(table.Failures()), "worker 0 was killed by signal 9 (Killed)");
  table.servers[0].end.reset();
  EXPECT_TRUE(table.Failures().empty());
}

TEST(ProcessTest, ReasonsComeFirstAndOnce) {
  const auto failed = [](const std::string& name, const std::string& reason) {
    return ProcessFailure{kWorker, name, {1, "exited with code 1 (x)", "exited; its log", reason}};
  };
  const ProcessFailure lost = {kWorker, "worker 2", {3, "exited with code 3", "lost a server"}};
  EXPECT_EQ(FailureStatus({lost, failed("worker 3", "a.csv:2: no id"), failed("worker 4", "NaN"),
                           failed("worker 5", "a.csv:2: no id")}),
            absl::AbortedError("a.csv:2: no id\n  | worker 3 exited; its log\n"
                               "  | worker 5 exited; its log\nNaN\n"
                               "  | worker 4 exited; its log\nworker 2 lost a server"));
}

}  // namespace
}  // namespace thermocline
