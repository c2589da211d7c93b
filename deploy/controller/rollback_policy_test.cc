#include "deploy/controller/rollback_policy.h"

#include <gtest/gtest.h>

namespace thermocline {
namespace {

ProcessFailure Killed(ProcessRole role) {
  return {role, "p", "was killed by signal 9 (Killed)", absl::nullopt};
}
ProcessFailure Exited(ProcessRole role, int code) { return {role, "p", "exited", code}; }

constexpr ProcessRole kServer = ProcessRole::kServer;
constexpr ProcessRole kWorker = ProcessRole::kWorker;

TEST(RollbackPolicy, LossesAreNoVerdicts) {
  EXPECT_TRUE(RollbackMayHelp({Killed(kWorker)}));
  EXPECT_TRUE(RollbackMayHelp({Killed(kServer)}));
  EXPECT_TRUE(RollbackMayHelp({Exited(kServer, 1)}));  // Its disk failed, say.
  EXPECT_TRUE(RollbackMayHelp({Exited(kWorker, 3)}));
  EXPECT_TRUE(RollbackMayHelp({Killed(kServer), Exited(kWorker, 3), Killed(kWorker)}));
}

TEST(RollbackPolicy, WhatTheJobBringsAboutComesAgain) {
  EXPECT_FALSE(RollbackMayHelp({Exited(kWorker, 1)}));  // Bad data, NaN.
  EXPECT_FALSE(RollbackMayHelp({Exited(kWorker, 2)}));  // Bad flags.
  EXPECT_FALSE(RollbackMayHelp({Exited(kServer, 2)}));
  EXPECT_FALSE(RollbackMayHelp({Killed(kServer), Exited(kWorker, 1)}));
}

TEST(StallPolicy, OnceAndAgainOnlyWhereTheJobGotFurther) {
  StallPolicy policy;
  EXPECT_TRUE(policy.RollbackMayHelp(Step(57)));
  EXPECT_TRUE(policy.RollbackMayHelp(Step(58)));
  EXPECT_FALSE(policy.RollbackMayHelp(Step(58)));
  StallPolicy from_the_start;
  EXPECT_TRUE(from_the_start.RollbackMayHelp(kNoStep));
  EXPECT_FALSE(from_the_start.RollbackMayHelp(kNoStep));
  StallPolicy earlier;
  EXPECT_TRUE(earlier.RollbackMayHelp(Step(57)));
  EXPECT_FALSE(earlier.RollbackMayHelp(Step(50)));
}

TEST(RollbackPolicy, OneLine) {
  EXPECT_EQ(DescribeFailures({{kServer, "server 0", "was killed by signal 9 (Killed)", {}},
                              {kWorker, "worker 1", "exited with code 3", 3}}),
            "server 0 was killed by signal 9 (Killed), worker 1 exited with code 3");
}

}  // namespace
}  // namespace thermocline
