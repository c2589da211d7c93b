#include "worker/inspect/time_forms.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"

namespace thermocline {
namespace {

// Plausible times of logs are from 1990 to 2100; counts of seconds, which look like other integers,
// have to be from 1990 to 2040.
constexpr int kFirstYear = 1990, kLastYear = 2100;
constexpr int64_t kFirstCount = 631'152'000, kLastCount = 2'208'988'800;

// Returns the decimal number of `digits` digits at `start`; -1 if other characters are there.
int DigitsAt(absl::string_view text, size_t start, size_t digits) {
  if (start + digits > text.size()) return -1;
  int value = 0;
  for (const char c : text.substr(start, digits)) {
    if (!absl::ascii_isdigit(c)) return -1;
    value = value * 10 + (c - '0');
  }
  return value;
}

std::optional<int64_t> Seconds(int year, int month, int day, int hour, int minute, int second) {
  if (year < kFirstYear || year > kLastYear) return std::nullopt;
  if (month < 1 || day < 1 || hour < 0 || minute < 0 || second < 0) return std::nullopt;
  const absl::CivilSecond civil(year, month, day, hour, minute, second);
  // Others are normalized: a day 31 of June is the first of July.
  if (civil.month() != month || civil.day() != day || civil.hour() != hour ||
      civil.minute() != minute || civil.second() != second) {
    return std::nullopt;
  }
  return absl::ToUnixSeconds(absl::FromCivil(civil, absl::UTCTimeZone()));
}

std::optional<int64_t> ParseYyyymmdd(absl::string_view text) {
  if (text.size() != 8) return std::nullopt;
  return Seconds(DigitsAt(text, 0, 4), DigitsAt(text, 4, 2), DigitsAt(text, 6, 2), 0, 0, 0);
}

std::optional<int64_t> ParseYyyymmddhh(absl::string_view text) {
  if (text.size() != 10) return std::nullopt;
  return Seconds(DigitsAt(text, 0, 4), DigitsAt(text, 4, 2), DigitsAt(text, 6, 2),
                 DigitsAt(text, 8, 2), 0, 0);
}

std::optional<int64_t> ParseYyyymmddhhmmss(absl::string_view text) {
  if (text.size() != 14) return std::nullopt;
  return Seconds(DigitsAt(text, 0, 4), DigitsAt(text, 4, 2), DigitsAt(text, 6, 2),
                 DigitsAt(text, 8, 2), DigitsAt(text, 10, 2), DigitsAt(text, 12, 2));
}

std::optional<int64_t> ParseYymmddhh(absl::string_view text) {
  if (text.size() != 8) return std::nullopt;
  const int year = DigitsAt(text, 0, 2);
  if (year < 0) return std::nullopt;
  return Seconds(2000 + year, DigitsAt(text, 2, 2), DigitsAt(text, 4, 2), DigitsAt(text, 6, 2), 0,
                 0);
}

bool HasDashes(absl::string_view text) {
  return text.size() >= 10 && text[4] == '-' && text[7] == '-';
}

std::optional<int64_t> ParseIsoDate(absl::string_view text) {
  if (text.size() != 10 || !HasDashes(text)) return std::nullopt;
  return Seconds(DigitsAt(text, 0, 4), DigitsAt(text, 5, 2), DigitsAt(text, 8, 2), 0, 0, 0);
}

// The text after the seconds (".25", "Z", "+01:00") is left out. Fractions do not change the order
// of seconds, and a log has one zone throughout.
std::optional<int64_t> ParseIsoTime(absl::string_view text) {
  if (text.size() < 16 || text.size() > 35 || !HasDashes(text)) return std::nullopt;
  if ((text[10] != ' ' && text[10] != 'T') || text[13] != ':') return std::nullopt;
  int second = 0;
  if (text.size() >= 19 && text[16] == ':') second = DigitsAt(text, 17, 2);
  return Seconds(DigitsAt(text, 0, 4), DigitsAt(text, 5, 2), DigitsAt(text, 8, 2),
                 DigitsAt(text, 11, 2), DigitsAt(text, 14, 2), second);
}

// digits: since 2001-09-09; before that there is one less.
std::optional<int64_t> ParseCount(absl::string_view text, size_t digits, int64_t unit) {
  if (text.size() != digits && text.size() != digits - 1) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (!absl::ascii_isdigit(c)) return std::nullopt;
    value = value * 10 + (c - '0');
  }
  value /= unit;
  if (value < kFirstCount || value >= kLastCount) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseSeconds(absl::string_view text) { return ParseCount(text, 10, 1); }
std::optional<int64_t> ParseMillis(absl::string_view text) { return ParseCount(text, 13, 1000); }

constexpr TimeForm kForms[] = {
    {"YYYY-MM-DD", ParseIsoDate, -1, false},
    {"YYYY-MM-DD hh:mm", ParseIsoTime, 11, false},
    {"YYYYMMDDhhmmss", ParseYyyymmddhhmmss, 8, false},
    {"YYYYMMDDhh", ParseYyyymmddhh, 8, false},
    {"YYYYMMDD", ParseYyyymmdd, -1, false},
    {"YYMMDDhh", ParseYymmddhh, 6, false},
    {"seconds since 1970", ParseSeconds, -1, true},
    {"milliseconds since 1970", ParseMillis, -1, true},
};

}  // namespace

std::vector<const TimeForm*> AllTimeForms() {
  std::vector<const TimeForm*> forms;
  for (const TimeForm& form : kForms) forms.push_back(&form);
  return forms;
}

std::string FormatTime(int64_t seconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(seconds), absl::UTCTimeZone());
}

bool IsNameOfTime(absl::string_view column) {
  const std::string name = absl::AsciiStrToLower(column);
  for (const char* part : {"time", "date", "hour"}) {
    if (absl::StrContains(name, part)) return true;
  }
  const std::vector<std::string> words = absl::StrSplit(name, absl::ByAnyChar("_-. "));
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "ts" || word == "day" || word == "dt" || word == "when" || word == "at";
  });
}

}  // namespace thermocline
