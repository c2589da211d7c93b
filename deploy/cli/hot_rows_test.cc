#include "deploy/cli/hot_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "deploy/report/metrics_log.h"
#include "tests/testing/fake_programs.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class HotRowsTest : public testing::Test {
 protected:
  HotRowsTest() {
    job_.set_name("j");
    job_.mutable_fae()->set_budget("1MiB");
    job_.mutable_calibration()->set_directory("/somewhere/hot");
    EXPECT_EQ(pipe(ends_), 0);
  }
  ~HotRowsTest() override {
    for (const int end : ends_) close(end);
  }

  absl::StatusOr<Json> Find() {
    SignalWatch signals;
    return FindHotRows(job_, fakes_.folder() + "/bin", &signals, ends_[1]);
  }
  std::string Shown() {
    std::string text(4096, '\0');
    const ssize_t got = read(ends_[0], text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

  FakePrograms fakes_;
  Job job_;
  int ends_[2];
};

TEST_F(HotRowsTest, ShowsWhatTheProgramFoundForThisJob) {
  fakes_.Add("thermocline-pack", R"(cat "${2#--job=}" >"$FAKES/job"
      echo '{"event": "progress", "activity": "packing", "rows": 10, "fraction": 0.5}' >&3
      echo '{"event": "done", "hot_rows": 1234, "lookup_share": 0.905, "samples": {"hot": 3, "cold": 1},
             "batches": {"hot": 2, "cold": 1}, "calibrate_s": 0.5, "pack_s": 1.25}' | tr '\n' ' ' >&3
      echo >&3)");
  const auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)["hot_rows"], 1234);
  EXPECT_FALSE(found->contains("event"));
  EXPECT_THAT(fakes_.Text("job"), HasSubstr("directory: \"/somewhere/hot\""));
  const std::string shown = Shown();
  EXPECT_THAT(shown, HasSubstr("packing  10 of about 20 rows"));
  EXPECT_THAT(
      shown, HasSubstr("hot rows: 1,234, 90.5% of the lookups, 75.0% of the samples; 2 hot batches "
                       "and 1 cold ones; counted in 0.5 s, packed in 1.2 s\n"));
}

TEST_F(HotRowsTest, SaysWhereNothingHadToBeDone) {
  EXPECT_EQ(DescribeHotRows({{"hot_rows", 7}, {"reused", true}, {"calibrate_s", 3}}),
            "hot rows: 7; found as they were left before");
}

TEST_F(HotRowsTest, ARunGoesOnWithItsOwnPackAlone) {
  const auto directory = RunDirectory::Create(fakes_.folder() + "/run", "j", absl::Now());
  ASSERT_TRUE(directory.ok()) << directory.status();
  const Json one = {{"digest", "aa"}}, other = {{"digest", "bb"}};
  EXPECT_EQ(KeepPackOfRun(*directory, /*goes_on=*/false, one), absl::OkStatus());
  EXPECT_EQ(KeepPackOfRun(*directory, /*goes_on=*/true, one), absl::OkStatus());
  const absl::Status refused = KeepPackOfRun(*directory, /*goes_on=*/true, other);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("pack aa in"));
  // A run that begins anew, before its first checkpoint.
  EXPECT_EQ(KeepPackOfRun(*directory, /*goes_on=*/false, other), absl::OkStatus());
  EXPECT_EQ(KeepPackOfRun(*directory, /*goes_on=*/true, other), absl::OkStatus());
}

TEST_F(HotRowsTest, TellsABadJobFromOtherFailures) {
  fakes_.Add("thermocline-pack", R"(echo '{"event": "failed", "message": "no hot batch"}' >&3
      exit $(cat "$FAKES/code"))");
  fakes_.Write("code", "2");
  const absl::Status bad_job = Find().status();
  EXPECT_EQ(bad_job, absl::InvalidArgumentError("no hot batch"));
  EXPECT_EQ(ExitCodeOfHotRows(bad_job), 2);
  fakes_.Write("code", "1");
  EXPECT_EQ(ExitCodeOfHotRows(Find().status()), 1);
}

TEST_F(HotRowsTest, ARunThatWasNotPackedSaysWhyAndMayBeginAgain) {
  const std::string path = fakes_.folder() + "/run";
  for (int i = 0; i < 2; ++i) {
    const auto directory = RunDirectory::Create(path, "j", absl::Now());
    ASSERT_TRUE(directory.ok()) << directory.status();
    NoteFailedPacking(*directory, absl::InvalidArgumentError("no hot batch"));
    const MetricsTail tail = ReadMetricsTail(directory->File("metrics.jsonl"));
    ASSERT_TRUE(tail.end.has_value());
    EXPECT_EQ((*tail.end)["status"], "INVALID_ARGUMENT");
    EXPECT_EQ((*tail.end)["reason"], "packing failed: no hot batch");
    NoteFailedPacking(*directory, absl::CancelledError("signal 2"));
    EXPECT_EQ((*ReadMetricsTail(directory->File("metrics.jsonl")).end)["reason"],
              "packing was stopped: signal 2");
  }
}

TEST_F(HotRowsTest, AMissingProgramIsNamed) {
  const absl::Status missing = Find().status();
  EXPECT_THAT(std::string(missing.message()), HasSubstr("thermocline-pack"));
  EXPECT_EQ(ExitCodeOfHotRows(missing), 2);
}

Json Calibration(double hot_rows) {
  return {{"budget_bytes", 4 << 20},
          {"sample_share", 0.05},
          {"threshold", 3},
          {"hot_rows", hot_rows},
          {"estimated_rows", 1200},
          {"lookup_share", 0.905},
          {"hot_sample_share", 0.395},
          {"read_s", 0.5},
          {"estimate_s", 0.25},
          {"count_s", 0.5},
          {"tables", Json::array({{{"name", "C1"},
                                   {"rows", 5000},
                                   {"hot_rows", 1100},
                                   {"whole", false},
                                   {"lookup_share", 0.8},
                                   {"estimated_rows", 1080}},
                                  {{"name", "C2"},
                                   {"rows", 40},
                                   {"hot_rows", 40},
                                   {"whole", true},
                                   {"lookup_share", 1}}})}};
}

TEST(RenderCalibrationsTest, ShowsEachBudgetAndTheTablesOfTheLast) {
  EXPECT_EQ(RenderCalibrations(Json::array({Calibration(1140)})),
            "budget   counted  lookups for a hot row  estimated rows  hot rows  of lookups  of "
            "samples  seconds\n"
            "-----------------------------------------------------------------------------------"
            "---------------\n"
            "4.0 MiB     5.0%                      3           1,200     1,140       90.5%       "
            "39.5%     1.25\n"
            "\nby table, with 4.0 MiB and 5.0% of the rows counted\n"
            "table  rows seen    hot rows  estimate  share of lookups\n"
            "--------------------------------------------------------\n"
            "C1         5,000       1,100     1,080             80.0%\n"
            "C2            40  40 (whole)         -            100.0%\n");
}

TEST(RenderCalibrationsTest, SaysWhyABudgetCannotBe) {
  const Json refused = {{"budget_bytes", 64}, {"error", "no room for a row"}};
  const std::string text = RenderCalibrations(Json::array({refused, Calibration(7)}));
  EXPECT_THAT(text, HasSubstr("64 B: no room for a row\n"));
  EXPECT_EQ(RenderCalibrations(Json::array({refused})), "64 B: no room for a row\n");
}

}  // namespace
}  // namespace thermocline
