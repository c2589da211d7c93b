#include "deploy/cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_override.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int code = 0;
  std::string out, err;
};

Outcome RunCli(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = RunCommandLine(arguments);
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(CommandLine, HelpIsThereForEveryCommand) {
  EXPECT_THAT(RunCli({"help"}).out, HasSubstr("usage: thermocline COMMAND"));
  EXPECT_EQ(RunCli({"--help"}).code, kExitDone);
  for (const Command& command : AllCommands()) {
    EXPECT_THAT(RunCli({"help"}).out, HasSubstr(command.summary));
    const Outcome page = RunCli({"help", command.name});
    EXPECT_EQ(page.code, kExitDone);
    EXPECT_THAT(page.out, HasSubstr("usage: thermocline " + command.name));
    EXPECT_EQ(RunCli({command.name, "--help"}).out, page.out);
    EXPECT_LT(command.summary.size(), 70u);
    for (const FlagSpec& flag : command.flags) EXPECT_THAT(page.out, HasSubstr("--" + flag.name));
  }
}

// The assignments that a text says to give after --set.
std::vector<std::string> AssignmentsIn(const std::string& text) {
  const std::regex flag("--set[ =]'?([^'`\\s]+)");
  std::vector<std::string> assignments;
  for (std::sregex_iterator it(text.begin(), text.end(), flag), end; it != end; ++it) {
    const std::string found = (*it)[1];
    if (found != "FIELD=VALUE" && !absl::EndsWith(found, "=...")) assignments.push_back(found);
  }
  return assignments;
}

TEST(CommandLine, WhatIsSaidToBeSetCanBeSet) {
  std::map<std::string, std::string> texts;
  for (const Command& command : AllCommands()) texts[command.name] = CommandHelp(command);
  const std::string root =
      absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"));
  for (const char* page : {"README.md", "docs/architecture.md", "docs/formats.md",
                           "docs/operations.md", "docs/performance.md"}) {
    std::ifstream file(absl::StrCat(root, "/", page));
    ASSERT_TRUE(file) << page;
    texts[page].assign(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_THAT(AssignmentsIn(texts["train"]), testing::Contains("train.batch_size=512"));
  EXPECT_FALSE(AssignmentsIn(texts["README.md"]).empty());
  for (const auto& [where, text] : texts) {
    for (const std::string& assignment : AssignmentsIn(text)) {
      Job job;
      EXPECT_TRUE(ApplyOverride(assignment, &job).ok()) << where << ": --set " << assignment;
    }
  }
}

TEST(CommandLine, VersionIsOneLine) {
  const Outcome version = RunCli({"--version"});
  EXPECT_EQ(version.code, kExitDone);
  EXPECT_EQ(version.out.rfind("thermocline ", 0), 0u);
}

TEST(CommandLine, BadUsageIsExitCodeTwo) {
  EXPECT_EQ(RunCli({}).code, kExitUsage);
  const Outcome unknown = RunCli({"trian"});
  EXPECT_EQ(unknown.code, kExitUsage);
  EXPECT_THAT(unknown.err, HasSubstr("unknown command 'trian' (did you mean 'train'?)"));
  EXPECT_THAT(RunCli({"help", "stat"}).err, HasSubstr("did you mean 'stats'?"));
  const Outcome flag = RunCli({"train", "job", "--run_dri=x"});
  EXPECT_EQ(flag.code, kExitUsage);
  EXPECT_THAT(flag.err, HasSubstr("did you mean '--run-dir'?"));
  EXPECT_EQ(RunCli({"train"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"train", "a", "b"}).code, kExitUsage);
  const Outcome missing = RunCli({"train", "/no/such/job.textproto"});
  EXPECT_EQ(missing.code, kExitUsage);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/job.textproto"));
  EXPECT_EQ(RunCli({"bench"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"bench", "train", "--nope"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"stats", "--run-dir", "/no/such/run"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"stats", "a:1", "--run-dir", "b"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"stats", "--interval", "0"}).code, kExitUsage);
}

TEST(CommandLine, BenchTrainHasHelp) {
  for (const char* flag : {"--help", "-h"}) {
    const Outcome help = RunCli({"bench", "train", "job", flag});
    EXPECT_EQ(help.code, kExitDone);
    EXPECT_EQ(help.out, RunCli({"help", "bench"}).out);
    EXPECT_EQ(help.err, "");
  }
}

TEST(CommandLine, AProgramThatIsNotBuiltIsSaidHowToMake) {
  // This test runs where the benchmark is not.
  const Outcome bench = RunCli({"bench", "pull"});
  EXPECT_EQ(bench.code, kExitUsage);
  EXPECT_THAT(bench.err, HasSubstr("can't find the program thermocline-bench-pull"));
  EXPECT_THAT(bench.err, HasSubstr("bazel build //tests/benchmarks:thermocline-bench-pull\n"));
}

TEST(CommandLine, StatsOfNobodyIsExitCodeOne) {
  // Port 1 of loopback: nobody listens there.
  const Outcome stats = RunCli({"stats", "127.0.0.1:1"});
  EXPECT_EQ(stats.code, kExitFailed);
  EXPECT_THAT(stats.out, HasSubstr("127.0.0.1:1: "));
}

}  // namespace
}  // namespace thermocline
