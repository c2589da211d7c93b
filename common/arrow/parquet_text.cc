#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/arrow/parquet.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

constexpr int64_t kSecondsPerDay = 86400;
// Beyond these a float is written with an exponent.
constexpr double kLeastPlain = 1e-5;
constexpr double kMostPlain = 1e15;

template <typename T>
void AppendNumber(T value, std::string* text) {
  char buffer[32];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  text->append(buffer, end.ptr - buffer);
}

template <typename T>
void AppendReal(T value, std::string* text) {
  const double magnitude = std::abs(static_cast<double>(value));
  if (magnitude != 0 && !(magnitude >= kLeastPlain && magnitude < kMostPlain)) {
    AppendNumber(value, text);  // "1e+16", "nan"
    return;
  }
  char buffer[64];
  const std::to_chars_result end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  text->append(buffer, end.ptr - buffer);
}

void AppendPadded(int64_t number, int width, std::string* text) {
  const std::string digits = absl::StrCat(number);
  for (int i = static_cast<int>(digits.size()); i < width; ++i) text->push_back('0');
  text->append(digits);
}

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Howard Hinnant's civil_from_days: the proleptic Gregorian date of a day since 1970-01-01.
void AppendDate(int64_t days, std::string* text) {
  const int64_t z = days + 719468;
  const int64_t era = FloorDiv(z, 146097);
  const int64_t day_of_era = z - era * 146097;
  const int64_t year_of_era =
      (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const int64_t day_of_year =
      day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t month_from_march = (5 * day_of_year + 2) / 153;
  const int64_t month = month_from_march < 10 ? month_from_march + 3 : month_from_march - 9;
  const int64_t year = year_of_era + era * 400 + (month <= 2 ? 1 : 0);
  if (year < 0) text->push_back('-');
  AppendPadded(std::abs(year), 4, text);
  text->push_back('-');
  AppendPadded(month, 2, text);
  text->push_back('-');
  AppendPadded(day_of_year - (153 * month_from_march + 2) / 5 + 1, 2, text);
}

void AppendTimestamp(int64_t value, int64_t units_per_second, std::string* text) {
  const int64_t seconds = FloorDiv(value, units_per_second);
  const int64_t fraction = value - seconds * units_per_second;
  const int64_t days = FloorDiv(seconds, kSecondsPerDay);
  const int64_t of_day = seconds - days * kSecondsPerDay;
  AppendDate(days, text);
  text->push_back(' ');
  AppendPadded(of_day / 3600, 2, text);
  text->push_back(':');
  AppendPadded(of_day / 60 % 60, 2, text);
  text->push_back(':');
  AppendPadded(of_day % 60, 2, text);
  if (fraction == 0) return;
  text->push_back('.');
  AppendPadded(fraction, static_cast<int>(absl::StrCat(units_per_second).size()) - 1, text);
}

}  // namespace

void AppendParquetText(const ParquetColumn& column, const ParquetValues& values, size_t i,
                       std::string* text) {
  switch (column.kind) {
    case ParquetColumn::Kind::kInteger:
    case ParquetColumn::Kind::kBool:
      return AppendNumber(values.integers[i], text);
    case ParquetColumn::Kind::kUnsigned:
      return AppendNumber(static_cast<uint64_t>(values.integers[i]), text);
    case ParquetColumn::Kind::kFloat:
      return AppendReal(static_cast<float>(values.reals[i]), text);
    case ParquetColumn::Kind::kDouble:
      return AppendReal(values.reals[i], text);
    case ParquetColumn::Kind::kText: {
      const absl::string_view value = values.text(i);
      text->append(value.data(), value.size());
      return;
    }
    case ParquetColumn::Kind::kDate:
      return AppendDate(values.integers[i], text);
    case ParquetColumn::Kind::kTimestamp:
      return AppendTimestamp(values.integers[i], column.units_per_second, text);
    case ParquetColumn::Kind::kUnsupported:
      break;
  }
  CHECK(false);
}

}  // namespace thermocline
