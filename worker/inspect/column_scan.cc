#include "worker/inspect/column_scan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/hash.h"
#include "proto/job.pb.h"
#include "worker/data/column_values.h"

namespace thermocline {
namespace {

constexpr size_t kMinKeysOfColumn = size_t{1} << 10;
constexpr size_t kMaxKeysOfColumn = size_t{1} << 17;

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTexts = 32;
constexpr size_t kMaxTextBytes = 64;
constexpr size_t kTimeSample = 4096;
constexpr double kTestShare = 0.1;
// A list with more values than this is taken for a history.
constexpr uint64_t kLongList = 10;
// If so many values all look like times, the column is a time, whatever its name.
constexpr uint64_t kEnoughTimes = 20;
constexpr int64_t kLongestLogSeconds = int64_t{15} * 365 * 24 * 3600;
constexpr int64_t kLongestOldLogSeconds = int64_t{2} * 365 * 24 * 3600;
constexpr size_t kShortestHex = 4;

// Whether numbers that may be times are near each other, as those of a log are. Before 2000 there
// are few logs, and numbers of nine digits are more often ids.
bool SpansALog(int64_t first, int64_t last) {
  constexpr int64_t kYear2000 = 946'684'800;
  return last > first &&
         last - first < (first < kYear2000 ? kLongestOldLogSeconds : kLongestLogSeconds);
}

KeyReader ReaderOf(Feature::Categorical::Id id) {
  Feature feature;
  feature.mutable_categorical()->set_id(id);
  feature.mutable_categorical()->set_missing(Feature::Categorical::NO_KEY);
  return KeyReader(feature);
}

// Whether a job would read `text` as an id of this kind.
bool IsId(const KeyReader& reader, absl::string_view text) { return reader.Describe(text).empty(); }

bool IsNameOfHistory(absl::string_view column) {
  const std::string name = absl::AsciiStrToLower(column);
  for (const char* part : {"hist", "seq", "recent", "last", "previous", "visited", "clicked"}) {
    if (absl::StrContains(name, part)) return true;
  }
  return false;
}

double Rounded(double value) { return std::round(value * 1e6) / 1e6; }

// JSON has no infinity and no NaN, which sums of huge numbers may give.
double Finite(double value) { return std::isfinite(value) ? value : 0; }

}  // namespace

size_t KeysOfColumn(size_t max_keys, size_t columns) {
  return std::clamp(max_keys / std::max<size_t>(columns, 1), kMinKeysOfColumn, kMaxKeysOfColumn);
}

void Moments::Add(double value) {
  const double before = static_cast<double>(count++);
  const auto n = static_cast<double>(count);
  const double delta = value - mean, step = delta / n;
  sum3 += step * step * delta * before * (n - 2) - 3 * step * sum2;
  sum2 += delta * step * before;
  mean += step;
}

double Moments::Std() const {
  return count == 0 ? 0 : std::sqrt(sum2 / static_cast<double>(count));
}

double Moments::Skewness() const {
  return sum2 <= 0 ? 0 : std::sqrt(static_cast<double>(count)) * sum3 / std::pow(sum2, 1.5);
}

void ColumnScan::AddText(absl::string_view text) {
  ++rows_;
  if (text.empty()) {
    ++missing_;
    return;
  }
  text_bytes_ += text.size();
  if (const auto counted = counted_.find(text); counted != counted_.end()) ++counted->second;
  static const MissingNumbers* const kMissing = new MissingNumbers;
  if (separator_ == 0 && !absl::ascii_isdigit(static_cast<unsigned char>(text[0])) &&
      kMissing->HasText(text)) {
    ++missing_texts_[std::string(text)];
    return;
  }
  if (!has_many_texts_ && text.size() <= kMaxTextBytes) {
    const auto found = texts_.find(text);
    if (found != texts_.end()) {
      NoteText(&*found);
    } else if (texts_.size() < kMaxTexts) {
      NoteText(&*texts_.emplace(text, 0).first);
    } else {
      has_many_texts_ = true;
    }
  } else {
    has_many_texts_ = true;
  }
  if (separator_ == 0) return AddValue(text);
  uint64_t length = 0;
  for (const absl::string_view value : absl::StrSplit(text, separator_)) {
    AddValue(value);
    ++length;
  }
  longest_list_ = std::max(longest_list_, length);
}

void ColumnScan::NoteText(std::pair<const std::string, uint64_t>* text) {
  ++text->second;
  if (last_text_ != nullptr && text != last_text_) ++text_changes_;
  last_text_ = text;
}

void ColumnScan::AddValue(absl::string_view value) {
  static const KeyReader* const kIntegers = new KeyReader(ReaderOf(Feature::Categorical::INTEGER));
  static const KeyReader* const kHexes = new KeyReader(ReaderOf(Feature::Categorical::HEX));
  ++values_;
  keys_.Add(HashText(value));
  shortest_ = std::min(shortest_, value.size());
  longest_ = std::max(longest_, value.size());
  if (hex_ + 1 == values_ && IsId(*kHexes, value)) {
    ++hex_;
    with_letters_ += std::any_of(value.begin(), value.end(), absl::ascii_isalpha) ? 1 : 0;
  }
  if (!times_.empty()) AddTime(value);
  const std::optional<double> number = ParseNumber(value);
  if (!number.has_value()) return;
  ++numbers_;
  AddNumeric(*number);
  if (integers_ + 1 == values_ && IsId(*kIntegers, value)) ++integers_;
}

void ColumnScan::AddNumeric(double number) {
  min_ = moments_.count == 0 ? number : std::min(min_, number);
  max_ = moments_.count == 0 ? number : std::max(max_, number);
  moments_.Add(number);
  log_moments_.Add(std::log1p(std::max(number, 0.0)));
  negatives_ += number < 0 ? 1 : 0;
  small_ += number >= 0 && number < 10 ? 1 : 0;
  whole_ += number == std::trunc(number) ? 1 : 0;
}

void ColumnScan::AddTime(absl::string_view value) {
  const TimeForm* const form = times_.front();
  times_.erase(std::remove_if(times_.begin(), times_.end(),
                              [&](const TimeForm* time) { return !time->parse(value); }),
               times_.end());
  if (times_.empty()) return;
  const int64_t seconds = *times_.front()->parse(value);
  if (values_ == 1 || times_.front() != form) {
    first_time_ = last_time_ = previous_time_ = seconds;
    time_sample_.clear();
    time_draws_ = 0;
  }
  first_time_ = std::min(first_time_, seconds);
  last_time_ = std::max(last_time_, seconds);
  descents_ += seconds < previous_time_ ? 1 : 0;
  previous_time_ = seconds;
  // Reservoir sampling (Vitter's algorithm R).
  const uint64_t place = Mix64(time_draws_) % (time_draws_ + 1);
  ++time_draws_;
  if (time_sample_.size() < kTimeSample) {
    time_sample_.emplace_back(seconds, value);
  } else if (place < kTimeSample) {
    time_sample_[place] = {seconds, std::string(value)};
  }
}

void ColumnScan::AddNumber(double value) {
  is_typed_ = true;
  ++rows_;
  ++values_;
  ++numbers_;
  AddNumeric(value);
}

void ColumnScan::AddKeys(absl::Span<const Key> keys) {
  is_typed_ = true;
  ++rows_;
  if (keys.empty()) ++missing_;
  for (const Key key : keys) {
    ++values_;
    ++integers_;
    keys_.Add(key);
  }
  longest_list_ = std::max<uint64_t>(longest_list_, keys.size());
}

std::pair<std::string, std::string> ColumnScan::Type() const {
  if (is_typed_ && separator_ == 0) {
    return numbers_ > 0 ? std::pair("number", "the file's type")
                        : std::pair("integer", "the file's type");
  }
  if (values_ == 0) return {"empty", "no row has a value"};
  if (separator_ != 0) {
    const double mean = static_cast<double>(values_) / static_cast<double>(rows_ - missing_);
    const bool is_sequence = longest_list_ > kLongList || IsNameOfHistory(name_);
    const std::string counts =
        absl::StrFormat("%.1f values on average, at most %d", mean, longest_list_);
    return {is_sequence ? "sequence" : "list",
            separator_ == kOfLists ? absl::StrCat("the file has lists: ", counts)
                                   : absl::StrFormat("divided by '%c': %s", separator_, counts)};
  }
  const bool may_be_time = values_ >= kEnoughTimes || IsNameOfTime(name_);
  if (!times_.empty() && may_be_time &&
      (!times_.front()->is_number || IsNameOfTime(name_) || SpansALog(first_time_, last_time_))) {
    return {"time", absl::StrCat("every value is ", times_.front()->name)};
  }
  if (AllAre(integers_)) return {"integer", "every value is a decimal integer of 64 bits"};
  if (AllAre(numbers_)) return {"number", "every value is a decimal number"};
  if (AllAre(hex_) && with_letters_ > 0 && shortest_ == longest_ && shortest_ >= kShortestHex) {
    return {"hex", absl::StrCat("every value has ", longest_, " hexadecimal digits")};
  }
  if (numbers_ * 2 < values_) return {"string", "text of no other kind"};
  return {"string", absl::StrCat("most values are numbers, but ", values_ - numbers_, " are not")};
}

Json ColumnScan::NumberFigures() const {
  Json json;
  json["min"] = min_;
  json["max"] = max_;
  json["mean"] = Finite(moments_.mean);
  json["std"] = Finite(moments_.Std());
  json["skewness"] = Rounded(Finite(moments_.Skewness()));
  json["log1p_mean"] = log_moments_.mean;
  json["log1p_std"] = log_moments_.Std();
  const auto count = static_cast<double>(moments_.count);
  json["negative_share"] = Rounded(static_cast<double>(negatives_) / count);
  json["below_10_share"] = Rounded(static_cast<double>(small_) / count);
  json["whole_share"] = Rounded(static_cast<double>(whole_) / count);
  return json;
}

Json ColumnScan::TimeFigures(const TimeForm& form) const {
  Json json;
  json["form"] = form.name;
  json["first"] = FormatTime(first_time_);
  json["last"] = FormatTime(last_time_);
  json["descents"] = descents_;
  json["hour_start"] = form.hour_start;
  std::vector<std::pair<int64_t, std::string>> sample = time_sample_;
  std::sort(sample.begin(), sample.end());
  const auto last = static_cast<double>(sample.size() - 1);
  std::string from = sample[static_cast<size_t>(last * (1 - kTestShare))].second;
  // With the first time all rows would be held out.
  if (from == sample.front().second) from = sample.back().second;
  json["test_from"] = from;
  const auto held_out = std::count_if(sample.begin(), sample.end(), [&](const auto& time) {
    return time.first >= *form.parse(from);
  });
  json["test_share"] = Rounded(static_cast<double>(held_out) / static_cast<double>(sample.size()));
  return json;
}

uint64_t ColumnScan::NumMissingTexts() const {
  uint64_t rows = 0;
  for (const auto& [text, count] : missing_texts_) rows += count;
  return rows;
}

Json ColumnScan::Figures() const {
  const auto [type, why] = Type();
  if (type == "string" && !missing_texts_.empty()) {
    // In a column of text they are values: "NA" is Namibia.
    ColumnScan with_all = *this;
    with_all.missing_texts_.clear();
    with_all.times_.clear();
    for (const auto& [text, count] : missing_texts_) {
      with_all.values_ += count;
      for (uint64_t i = 0; i < count; ++i) with_all.keys_.Add(HashText(text));
      if (!has_many_texts_) with_all.texts_[text] = count;
    }
    return with_all.Figures();
  }
  Json json;
  json["name"] = name_;
  json["type"] = type;
  json["why"] = why;
  if (separator_ != 0) {
    json["separator"] = separator_ == kOfLists ? "" : std::string(1, separator_);
    json["id"] = AllAre(integers_) ? "integer" : "string";
  }
  if (separator_ != 0 || longest_list_ > 1) json["longest_list"] = longest_list_;
  json["rows"] = rows_;
  json["missing"] = missing_ + NumMissingTexts();
  json["values"] = values_;
  if (!is_typed_) json["text_bytes"] = text_bytes_;
  if (keys_.lookups() > 0) {
    const double lookups_per_row = static_cast<double>(values_) / static_cast<double>(rows_);
    std::vector<double> draws = kInspectedBatches;
    for (double& draw : draws) draw *= lookups_per_row;
    const KeyCounts::Summary summary = keys_.Summarize(draws);
    json["distinct"] = std::round(summary.distinct);
    json["distinct_error"] = Rounded(summary.distinct_error);
    json["top_1_percent_share"] = Rounded(summary.top_share);
    json["once_share"] = Rounded(summary.once_share);
    Json& batches = json["distinct_in_batch"] = Json::object();
    for (size_t i = 0; i < kInspectedBatches.size(); ++i) {
      batches[absl::StrCat(kInspectedBatches[i])] = Rounded(summary.distinct_among[i]);
    }
  }
  if (numbers_ > 0 && AllAre(numbers_) && separator_ == 0) json["numbers"] = NumberFigures();
  if (type == "time") json["time"] = TimeFigures(*times_.front());
  if (!has_many_texts_ && !texts_.empty()) {
    Json& texts = json["texts"] = Json::object();
    for (const auto& [text, count] : texts_) texts[text] = count;
    json["text_changes"] = text_changes_;
  } else if (!texts_.empty()) {
    json["example"] = texts_.begin()->first;
    for (const auto& [text, count] : counted_) json["counted"][text] = count;
  }
  return json;
}

}  // namespace thermocline
