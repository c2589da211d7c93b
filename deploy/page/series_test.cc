#include "deploy/page/series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "deploy/page/thinned_list.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::ordered_json;

// A line each step, whose figure is the step.
void AddSteps(int64_t first, int64_t last, Series* series) {
  for (int64_t step = first; step <= last; ++step) {
    const auto x = static_cast<double>(step);
    series->Begin({x, x / 10, x * 8});
    series->Put("x", x, true);
    series->Put("rate", 0.5, false);
  }
}

TEST(ShortNumber, HasSixDigits) {
  EXPECT_EQ(ShortNumber(0.123456789).dump(), "0.123457");
  EXPECT_EQ(ShortNumber(-1234.56789).dump(), "-1234.57");
  EXPECT_EQ(ShortNumber(1.23456789e-9).dump(), "1.23457e-09");
  EXPECT_EQ(ShortNumber(12345678.9).dump(), "12345700");
  EXPECT_EQ(ShortNumber(3.0).dump(), "3");
  EXPECT_EQ(ShortNumber(245760000).dump(), "245760000");
  EXPECT_EQ(ShortNumber(0).dump(), "0");
  EXPECT_EQ(ShortNumber(std::nan("")).dump(), "null");
  EXPECT_EQ(ShortNumber(std::nullopt).dump(), "null");
}

TEST(Series, AShortOneIsKeptAsItIs) {
  Series series;
  AddSteps(1, 3, &series);
  EXPECT_EQ(series.ToJson().dump(),
            R"({"lines_per_point":1,"step":[1,2,3],"t":[0.1,0.2,0.3],"samples":[8,16,24],)"
            R"("mean":{"x":[1,2,3],"rate":[0.5,0.5,0.5]}})");
}

TEST(Series, AnEmptyOneHasItsAxes) {
  EXPECT_EQ(Series().ToJson().dump(), R"({"lines_per_point":1,"step":[],"t":[],"mean":{}})");
}

TEST(Series, ALongOneKeepsMeansAndExtremes) {
  Series series;
  AddSteps(1, 2000, &series);
  EXPECT_EQ(series.lines_per_point(), 1u);
  AddSteps(2001, 10000, &series);
  EXPECT_EQ(series.lines_per_point(), 8u);
  const Json json = series.ToJson();
  EXPECT_EQ(series.size(), 1250u);
  EXPECT_EQ(json["step"][0], 8);
  EXPECT_EQ(json["mean"]["x"][0], 4.5);
  EXPECT_EQ(json["min"]["x"][0], 1);
  EXPECT_EQ(json["max"]["x"][0], 8);
  EXPECT_EQ(json["step"].back(), 10000);
  EXPECT_EQ(json["max"]["x"].back(), 10000);
  EXPECT_FALSE(json["min"].contains("rate"));
}

TEST(Series, OneHighLineIsNotLost) {
  Series series;
  for (int step = 1; step <= 100000; ++step) {
    series.Begin({static_cast<double>(step), 0, std::nullopt});
    series.Put("loss", step == 77777 ? 1e6 : 0.5, true);
  }
  const Json highs = series.ToJson()["max"]["loss"];
  EXPECT_EQ(std::count(highs.begin(), highs.end(), Json(1000000)), 1);
}

TEST(Series, WhatIsNotFiniteIsLeftOut) {
  Series series;
  series.Begin({1, 1, std::nullopt});
  series.Put("loss", std::nan(""), true);
  series.Begin({2, 2, std::nullopt});
  series.Put("loss", 0.5, true);
  series.Put("auc", std::numeric_limits<double>::infinity(), true);
  EXPECT_EQ(series.ToJson()["mean"].dump(), R"({"loss":[null,0.5]})");
}

TEST(Series, StepsMadeAgainReplaceLostOnes) {
  Series series;
  AddSteps(1, 9000, &series);  // 8 lines a point.
  EXPECT_EQ(series.FirstBeyond(4003), 500u);
  series.Truncate(series.FirstBeyond(4003));
  EXPECT_EQ(series.place(series.size() - 1).step, 4000);
  AddSteps(4004, 4011, &series);
  const Json json = series.ToJson();
  EXPECT_EQ(json["step"].back(), 4011);
  EXPECT_EQ(json["min"]["x"].back(), 4004);
  EXPECT_EQ(json["step"].size(), 501u);
}

TEST(Series, AGoBackBehindItsEndDropsNothing) {
  Series series;
  AddSteps(1, 5, &series);
  EXPECT_EQ(series.FirstBeyond(5), 5u);
  series.Truncate(9);
  EXPECT_EQ(series.size(), 5u);
}

TEST(Series, FiguresHaveALimit) {
  Series series;
  series.Begin({1, 1, std::nullopt});
  for (int i = 0; i < 1000; ++i) series.Put("figure " + std::to_string(i), i, true);
  EXPECT_EQ(series.ToJson()["mean"].size(), Series::kMaxFigures);
}

TEST(ThinnedList, KeepsTheFirstAndTheLastEvenly) {
  ThinnedList<int> list(8);
  for (int i = 0; i < 100; ++i) list.Add(i);
  EXPECT_THAT(list.Items(), ElementsAre(0, 16, 32, 48, 64, 80, 96, 99));
  EXPECT_EQ(*list.last(), 99);
  EXPECT_EQ(list.count(), 100u);
}

TEST(ThinnedList, NeverHasMoreThanItsLimit) {
  for (int limit = 2; limit < 12; ++limit) {
    ThinnedList<int> list(limit);
    for (int i = 0; i < 300; ++i) {
      list.Add(i);
      const std::vector<int> items = list.Items();
      ASSERT_LE(items.size(), static_cast<size_t>(limit)) << i;
      ASSERT_EQ(items.front(), 0);
      ASSERT_EQ(items.back(), i) << limit;
    }
  }
}

TEST(ThinnedList, TakesItemsBack) {
  ThinnedList<int> list(8);
  for (int i = 0; i < 100; ++i) list.Add(i);
  list.TakeBack([](int item) { return item > 50; });
  EXPECT_THAT(list.Items(), ElementsAre(0, 16, 32, 48));
  list.Add(51);
  EXPECT_EQ(*list.last(), 51);
  list.TakeBack([](int) { return true; });
  EXPECT_EQ(list.last(), nullptr);
}

}  // namespace
}  // namespace thermocline
