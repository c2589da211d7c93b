#include "deploy/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<FlagSpec> kSpecs = {{"run-dir", "DIR", "where"},
                                      {"watch", "", "redraw"},
                                      {"set", "FIELD=VALUE", "override", true},
                                      {"servers", "N", "how many"}};

std::string ErrorOf(const std::vector<std::string>& arguments) {
  const auto flags = Flags::Parse(kSpecs, arguments);
  EXPECT_FALSE(flags.ok());
  EXPECT_EQ(flags.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(flags.status().message());
}

TEST(Flags, TakesEveryForm) {
  const auto flags = Flags::Parse(kSpecs, {"job", "--run-dir", "a", "--set=x=1", "--set", "y=2",
                                           "--watch", "more", "--", "--watch"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->Get("run-dir"), "a");
  EXPECT_THAT(flags->GetAll("set"), ElementsAre("x=1", "y=2"));
  EXPECT_TRUE(flags->Has("watch"));
  EXPECT_FALSE(flags->Has("servers"));
  EXPECT_EQ(flags->Get("servers", "4"), "4");
  EXPECT_THAT(flags->positional(), ElementsAre("job", "more", "--watch"));
  EXPECT_EQ(Flags::Parse(kSpecs, {"--run_dir=b"})->Get("run-dir"), "b");
  EXPECT_EQ(Flags::Parse(kSpecs, {"--run-dir="})->Get("run-dir", "x"), "");
}

TEST(Flags, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(ErrorOf({"--rundir=x"}),
              HasSubstr("unknown flag --rundir (did you mean '--run-dir'?)"));
  EXPECT_THAT(ErrorOf({"--run-dir"}), HasSubstr("--run-dir needs a value: DIR"));
  EXPECT_THAT(ErrorOf({"--watch=yes"}), HasSubstr("--watch takes no value"));
  EXPECT_THAT(ErrorOf({"--run-dir=a", "--run-dir=b"}), HasSubstr("--run-dir is given twice"));
}

TEST(Flags, ReadsNumbers) {
  const auto flags = Flags::Parse(kSpecs, {"--servers=3"});
  EXPECT_EQ(*flags->GetInt("servers", 1, 1, 10), 3);
  EXPECT_EQ(*flags->GetInt("run-dir", 7, 1, 10), 7);
  EXPECT_THAT(std::string(flags->GetInt("servers", 1, 4, 10).status().message()),
              HasSubstr("--servers is '3'; it must be a whole number in [4, 10]"));
  EXPECT_FALSE(Flags::Parse(kSpecs, {"--servers=three"})->GetInt("servers", 1, 1, 10).ok());
}

}  // namespace
}  // namespace thermocline
