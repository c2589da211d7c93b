#include "deploy/cli/command_line.h"

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
#include "absl/strings/str_join.h"
#include "common/base/process_limits.h"
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

const std::vector<std::vector<std::string>> kCommands = {
    {"train"},
    {"eval"},
    {"predict"},
    {"generate"},
    {"inspect"},
    {"plan"},
    {"calibrate"},
    {"node"},
    {"logs"},
    {"submit"},
    {"jobs"},
    {"stop"},
    {"stats"},
    {"report"},
    {"checkpoint"},
    {"checkpoint", "list"},
    {"checkpoint", "verify"},
    {"checkpoint", "export"},
    {"checkpoint", "now"},
    {"certificates"},
    {"bench"},
    {"bench", "train"},
    {"help"},
};

std::vector<std::string> Join(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The page of `thermocline help COMMAND`.
std::string Page(const std::vector<std::string>& command) {
  const Outcome page = RunCli(Join({"help"}, command));
  EXPECT_EQ(page.code, kExitDone);
  EXPECT_EQ(page.err, "");
  return page.out;
}

TEST(CommandLine, HelpIsThereForEveryCommand) {
  const std::string overview = Page({});
  EXPECT_THAT(overview, HasSubstr("usage: thermocline [FLAGS] COMMAND"));
  EXPECT_EQ(RunCli({"--help"}).out, overview);
  for (const std::vector<std::string>& command : kCommands) {
    const std::string page = Page(command);
    EXPECT_THAT(page, HasSubstr("usage: thermocline " + absl::StrJoin(command, " ")));
    EXPECT_THAT(overview, HasSubstr("\n  " + command[0] + " "));
    for (const char* flag : {"--help", "-h"}) {
      const Outcome same = RunCli(Join(command, {flag}));
      EXPECT_EQ(same.code, kExitDone);
      EXPECT_EQ(same.out, page);
      EXPECT_EQ(same.err, "");
    }
  }
  EXPECT_THAT(Page({"train"}), HasSubstr("--set FIELD=VALUE"));
  EXPECT_THAT(Page({"checkpoint", "export"}), HasSubstr("--optimizer-state"));
  EXPECT_EQ(RunCli({"bench", "train", "job", "--repeats", "0", "-h"}).out,
            Page({"bench", "train"}));
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
  for (const auto& command : kCommands) texts[absl::StrJoin(command, " ")] = Page(command);
  const std::string root =
      absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"));
  for (const char* page :
       {"README.md", "docs/architecture.md", "docs/checkpoints.md", "docs/cluster.md",
        "docs/formats.md", "docs/operations.md", "docs/own-log.md", "docs/performance.md",
        "docs/running.md", "docs/security.md", "docs/tables.md", "docs/troubleshooting.md"}) {
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
  for (const char* word : {"--version", "version"}) {
    const Outcome version = RunCli({word});
    EXPECT_EQ(version.code, kExitDone);
    EXPECT_EQ(version.out, absl::StrCat("thermocline ", kVersion, "\n"));
  }
}

// The error of a command line that is refused.
std::string ErrorOf(const std::vector<std::string>& arguments) {
  const Outcome outcome = RunCli(arguments);
  EXPECT_EQ(outcome.code, kExitUsage) << absl::StrJoin(arguments, " ");
  EXPECT_EQ(outcome.out, "");
  return outcome.err;
}

TEST(CommandLine, BadUsageIsExitCodeTwo) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("usage: thermocline "));
  EXPECT_EQ(ErrorOf({"trian", "eval"}),
            "thermocline: unknown command 'trian' (did you mean 'train'?); see thermocline help\n");
  EXPECT_THAT(ErrorOf({"help", "stat"}), HasSubstr("did you mean 'stats'?"));
  EXPECT_THAT(ErrorOf({"checkpoint", "lits", "x"}),
              HasSubstr("unknown command 'lits' (did you mean 'list'?); see thermocline help "
                        "checkpoint\n"));
  EXPECT_THAT(ErrorOf({"checkpoint"}),
              HasSubstr("a command is missing: list, verify, export, now; see thermocline help "));
  EXPECT_EQ(ErrorOf({"train", "job", "--run_dri=x"}),
            "thermocline: unknown flag --run-dri (did you mean '--run-dir'?); see thermocline help "
            "train\n");
  // The unknown flag is why the path is missing.
  EXPECT_THAT(ErrorOf({"checkpoint", "list", "--jsno"}), HasSubstr("did you mean '--json'?"));
  EXPECT_THAT(ErrorOf({"checkpoint", "list"}), HasSubstr("PATH is required"));
  EXPECT_THAT(ErrorOf({"train", "--run-dir"}), HasSubstr("--run-dir needs a value: DIR;"));
  EXPECT_THAT(ErrorOf({"train", "--run-dir=a", "--run-dir=b"}),
              HasSubstr("--run-dir takes one value, not 2;"));
  EXPECT_THAT(ErrorOf({"train", "job", "--insecure=maybe"}), HasSubstr("--insecure = maybe"));
  EXPECT_THAT(ErrorOf({"train"}), HasSubstr("name the job file"));
  EXPECT_THAT(ErrorOf({"train", "a", "--set", "x=1", "b"}), HasSubstr("unexpected argument 'b'"));
  EXPECT_THAT(ErrorOf({"train", "/no/such/job.textproto"}), HasSubstr("/no/such/job.textproto"));
  EXPECT_THAT(ErrorOf({"eval", "job"}), HasSubstr("--checkpoint is required"));
  EXPECT_THAT(ErrorOf({"bench"}), HasSubstr("a command is missing: pull, push, train;"));
  EXPECT_THAT(ErrorOf({"bench", "train", "--nope"}), HasSubstr("unknown flag --nope"));
  EXPECT_THAT(ErrorOf({"stats", "--run-dir", "/no/such/run"}), HasSubstr("/no/such/run"));
  EXPECT_THAT(ErrorOf({"stats", "a:1", "--run-dir", "b"}), HasSubstr("not both"));
  for (const char* command : {"stop", "report"}) {
    EXPECT_THAT(ErrorOf({command, "--run-dir", "run"}),
                HasSubstr(absl::StrCat("unknown flag --run-dir; the run directory stands alone: "
                                       "thermocline ",
                                       command, " DIR")));
  }
}

TEST(CommandLine, ANumberOutOfRangeNamesItsFlag) {
  for (const char* number : {"0", "3601", "three", "1.5", "", "9999999999999999999999"}) {
    EXPECT_EQ(ErrorOf({"stats", "--interval", number}),
              absl::StrCat("thermocline: --interval: '", number,
                           "' is not a whole number in [1, 3600]; see thermocline help stats\n"));
  }
  // Decimal: read as octal it would be 1024, which is in range.
  EXPECT_THAT(ErrorOf({"generate", "folder", "--threads", "02000"}), HasSubstr("'02000'"));
  EXPECT_THAT(ErrorOf({"generate", "folder", "--format", "csv"}),
              HasSubstr("--format: csv not in"));
}

// What `train` says of a job file that is not there names the file and so shows which argument was
// taken for it.
TEST(CommandLine, TakesEveryForm) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--run-dir", "a", "/no/job"},
           {"--run-dir=a", "/no/job"},
           {"--run_dir=a", "--set", "x=1", "/no/job", "--set=y=2"},
           {"--run-dir=", "/no/job"},
           {"--insecure", "--", "/no/job"}}) {
    EXPECT_THAT(ErrorOf(Join({"train"}, arguments)), HasSubstr("/no/job"));
  }
  const std::string error = ErrorOf({"train", "--", "--no-job"});
  EXPECT_THAT(error, HasSubstr("--no-job"));
  EXPECT_THAT(error, testing::Not(HasSubstr("unknown flag")));
  EXPECT_THAT(ErrorOf({"stats", "a:1", "--run-dir=b", "--", "c:2"}), HasSubstr("not both"));
  // A name of a command is an argument behind another command.
  EXPECT_THAT(ErrorOf({"checkpoint", "list", "list"}), HasSubstr("there is no folder 'list'"));
}

TEST(CommandLine, AProgramThatIsNotBuiltIsSaidHowToMake) {
  // This test runs where the benchmark is not.
  const Outcome bench = RunCli({"bench", "pull"});
  EXPECT_EQ(bench.code, kExitUsage);
  EXPECT_THAT(bench.err, HasSubstr("can't find the program thermocline-bench-pull"));
  EXPECT_THAT(bench.err, HasSubstr("bazel build //tests/benchmarks:thermocline-bench-pull\n"));
}

TEST(CommandLine, InspectAndPlanSayWhatIsWrongWithTheirFlags) {
  EXPECT_THAT(ErrorOf({"inspect"}), HasSubstr("FILE is required; see thermocline help inspect"));
  EXPECT_THAT(ErrorOf({"inspect", "log", "--rows", "0"}), HasSubstr("--rows: '0' is not a whole"));
  EXPECT_THAT(ErrorOf({"inspect", "log", "--positive", "1"}),
              HasSubstr("--positive needs --label"));
  EXPECT_THAT(ErrorOf({"inspect", "log", "--separator", "::"}), HasSubstr("is not one character"));
  EXPECT_THAT(ErrorOf({"inspect", "log", "--job", "/"}), HasSubstr("'/' exists"));
  // This test runs where the program is not.
  EXPECT_THAT(ErrorOf({"inspect", "log"}), HasSubstr("can't find the program thermocline-inspect"));
  EXPECT_THAT(ErrorOf({"plan"}), HasSubstr("name the job file"));
  for (const char* command : {"plan", "submit"}) {
    EXPECT_THAT(ErrorOf({command, "job", "--scan", "--figures", "f"}),
                HasSubstr("--figures: give it or --scan, not both"));
  }
  EXPECT_THAT(ErrorOf({"plan", "job", "--samples-per-s", "fast"}), HasSubstr("--samples-per-s"));
}

TEST(CommandLine, SubmitWantsAnEngineAndHosts) {
  EXPECT_THAT(ErrorOf({"submit", "job"}), HasSubstr("--engine slurm or --engine ssh"));
  EXPECT_THAT(ErrorOf({"submit", "job", "--engine", "pbs"}), HasSubstr("'pbs' is neither"));
  EXPECT_THAT(ErrorOf({"submit", "job", "--engine=slurm"}), HasSubstr("--nodes N"));
  EXPECT_THAT(ErrorOf({"submit", "job", "--engine=slurm", "--hosts=a,b"}),
              HasSubstr("Slurm chooses hosts"));
  EXPECT_THAT(ErrorOf({"submit", "--engine=slurm", "--nodes=2"}), HasSubstr("name the job file"));
  EXPECT_THAT(ErrorOf({"submit", "job", "--nodes", "0"}), HasSubstr("--nodes: '0' is not a whole"));
  EXPECT_THAT(ErrorOf({"stop"}), HasSubstr("TARGET is required"));
  EXPECT_THAT(ErrorOf({"stop", "no-such-job"}), HasSubstr("neither a run directory nor"));
}

TEST(CommandLine, StatsOfAServerThatDoesNotAnswerIsExitCodeOne) {
  // No server listens on port 1.
  const Outcome stats = RunCli({"stats", "127.0.0.1:1"});
  EXPECT_EQ(stats.code, kExitFailed);
  EXPECT_THAT(stats.out, HasSubstr("127.0.0.1:1: "));
}

}  // namespace
}  // namespace thermocline
