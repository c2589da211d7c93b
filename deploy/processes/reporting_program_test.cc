#include "deploy/processes/reporting_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class ReportingProgramTest : public testing::Test {
 protected:
  // Runs a shell script that reports to its descriptor 3.
  absl::StatusOr<Json> Run(const std::string& script, const std::string& job = "") {
    ProgramCommand command;
    command.path = absl::StrCat(testing::TempDir(), "/",
                                testing::UnitTest::GetInstance()->current_test_info()->name());
    std::ofstream(command.path) << "#!/bin/sh\n" << script << "\n";
    EXPECT_EQ(chmod(command.path.c_str(), 0755), 0);
    command.arguments = {"--a=b c"};
    command.job = job;
    command.activity = "scoring";
    SignalWatch signals;
    ReportingProgram::Observer observer;
    observer.on_progress = [this](const PhaseProgress& progress) {
      progress_.push_back(absl::StrCat(progress.name, " ", progress.done, "/", progress.total, " ",
                                       progress.unit, " ", progress.seconds));
    };
    observer.on_warning = [this](absl::string_view text) {
      warnings_.emplace_back(text);
      if (text == "stop") raise(SIGINT);
    };
    return ReportingProgram(&signals, observer).Run(command);
  }

  std::vector<std::string> progress_, warnings_;
};

TEST_F(ReportingProgramTest, ReturnsItsLastWordsAndShowsTheOthers) {
  const auto done = Run(R"(
      echo '{"event": "progress", "rows": 10, "fraction": 0.25, "seconds": 1.5}' >&3
      printf '{"event": "warning", ' >&3; printf '"text": "slow"}\nno JSON\n[1]\n' >&3
      echo '{"event": "progress", "rows": "many", "fraction": null}' >&3
      echo "{\"event\": \"done\", \"rows\": 40, \"flags\": \"$*\"}" >&3)");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ((*done)["rows"], 40);
  EXPECT_EQ((*done)["flags"], "--progress_fd=3 --a=b c");
  EXPECT_THAT(progress_, ElementsAre("scoring 10/40 rows 1.5", "scoring 0/0 rows 0"));
  EXPECT_THAT(warnings_, ElementsAre("slow"));
}

TEST_F(ReportingProgramTest, SaysWhatItDoesNow) {
  const auto done = Run(R"(
      echo '{"event": "progress", "activity": "packing", "rows": 10, "fraction": 0.5}' >&3
      echo '{"event": "done"}' >&3)");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(progress_, ElementsAre("packing 10/20 rows 0"));
}

TEST_F(ReportingProgramTest, GivesItTheJobInAFile) {
  const auto done =
      Run(R"(echo "{\"event\": \"done\", \"job\": \"$(cat "${2#--job=}")\"}" >&3)", "name: x");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ((*done)["job"], "name: x");
}

TEST_F(ReportingProgramTest, TellsBadInputFromOtherFailures) {
  const std::string failed =
      R"(echo '{"event": "failed", "message": "no such column"}' >&3; exit )";
  const auto usage = Run(failed + "2");
  EXPECT_EQ(usage.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(usage.status().message(), "no such column");
  const auto other = Run(failed + "1");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(other.status().message(), "no such column");
}

TEST_F(ReportingProgramTest, NamesTheEndOfAProgramThatSaidNothing) {
  const auto quiet = Run("echo first; echo a flag is wrong >&2; exit 2");
  EXPECT_EQ(quiet.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(quiet.status().message(),
            "NamesTheEndOfAProgramThatSaidNothing exited with code 2 (a flag is wrong)");
  const auto killed = Run("echo first; echo it is lost >&2; kill -ABRT $$");
  EXPECT_EQ(killed.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(killed.status().message(), HasSubstr("was killed by signal 6"));
  EXPECT_THAT(killed.status().message(), HasSubstr("\n  | first\n  | it is lost"));
}

// What it found counts only if it ended well: its file may not be whole.
TEST_F(ReportingProgramTest, ADoneProgramHasToEndWell) {
  const auto done = Run(R"(echo '{"event": "done"}' >&3; exit 1)");
  EXPECT_EQ(done.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Run("exit 0").status().code(), absl::StatusCode::kUnavailable);
}

// The request goes to this thread: others, that earlier tests have left, may not block the signal.
TEST_F(ReportingProgramTest, ARequestToStopEndsIt) {
  const auto stopped = Run(R"(echo '{"event": "warning", "text": "stop"}' >&3; exec sleep 600)");
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stopped.status().message(), "stopped by signal 2 (Interrupt)");
}

TEST_F(ReportingProgramTest, AMissingProgramIsNamed) {
  SignalWatch signals;
  const auto missing = ReportingProgram(&signals, {}).Run({"/no/such/program", {}, "", ""});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace thermocline
