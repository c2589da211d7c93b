#include "worker/inspect/time_forms.h"

#include <gtest/gtest.h>

namespace thermocline {
namespace {

// The first form that a text has; "" none.
std::string FormOf(const std::string& text) {
  for (const TimeForm* form : AllTimeForms()) {
    if (form->parse(text).has_value()) return form->name;
  }
  return "";
}

TEST(TimeForms, AreToldApart) {
  EXPECT_EQ(FormOf("2014-10-21"), "YYYY-MM-DD");
  EXPECT_EQ(FormOf("2014-10-21 07:30"), "YYYY-MM-DD hh:mm");
  EXPECT_EQ(FormOf("2014-10-21T07:30:59.25Z"), "YYYY-MM-DD hh:mm");
  EXPECT_EQ(FormOf("20141021073059"), "YYYYMMDDhhmmss");
  EXPECT_EQ(FormOf("2014102107"), "YYYYMMDDhh");
  EXPECT_EQ(FormOf("20141021"), "YYYYMMDD");
  EXPECT_EQ(FormOf("14102107"), "YYMMDDhh");
  EXPECT_EQ(FormOf("1511658000"), "seconds since 1970");
  EXPECT_EQ(FormOf("874724710"), "seconds since 1970");
  EXPECT_EQ(FormOf("874724710999"), "milliseconds since 1970");
  EXPECT_EQ(FormOf("1511658000123"), "milliseconds since 1970");
}

TEST(TimeForms, OthersAreNone) {
  for (const char* text :
       {"", "7", "2014-13-01", "2014-02-30", "20140230", "14102124", "05db9164", "9999999999",
        "500000000", "2014/10/21", "2014-10-21 7:30", "99999999"}) {
    EXPECT_EQ(FormOf(text), "") << text;
  }
}

TEST(TimeForms, CountSecondsInUtc) {
  const TimeForm* first = AllTimeForms().front();
  EXPECT_EQ(first->parse("1990-01-02"), 631238400);
  EXPECT_EQ(FormatTime(1414008000), "2014-10-22 20:00:00");
}

TEST(TimeForms, KnowNames) {
  for (const char* name : {"timestamp", "event_time", "Hour", "birthdate", "ts", "day"}) {
    EXPECT_TRUE(IsNameOfTime(name)) << name;
  }
  for (const char* name : {"user", "cats", "dayton", "item_id"}) {
    EXPECT_FALSE(IsNameOfTime(name)) << name;
  }
}

}  // namespace
}  // namespace thermocline
