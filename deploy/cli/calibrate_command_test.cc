#include "deploy/cli/calibrate_command.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

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
  EXPECT_TRUE(absl::StrContains(text, "64 B: no room for a row\n")) << text;
  EXPECT_EQ(RenderCalibrations(Json::array({refused})), "64 B: no room for a row\n");
}

}  // namespace
}  // namespace thermocline
