#include "deploy/inspect/suggestions.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "common/math/table_memory.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// A column with more values than this is no label.
constexpr size_t kMaxLabelValues = 10;
// A column of integers with so few values is a category, whatever they are.
constexpr double kFewValues = 50;
// Of the values of a count: those below 10, at least.
constexpr double kSmallShare = 0.3;
// Of the rows of a log with more rows than kManyRows: a column with more distinct values than this
// names the row.
constexpr double kUniqueShare = 0.95;
constexpr double kManyRows = 100;
constexpr int kSmallDim = 8, kDim = 16;
constexpr double kSmallTable = 1000;

// "userId" and "USER_ID" as {"user", "id"}.
std::set<std::string> WordsOf(absl::string_view name) {
  std::string spaced;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && absl::ascii_isupper(name[i]) && absl::ascii_islower(name[i - 1]);
    if (begins) spaced += ' ';
    spaced += absl::ascii_isalnum(name[i]) ? absl::ascii_tolower(name[i]) : ' ';
  }
  return absl::StrSplit(spaced, ' ', absl::SkipEmpty());
}

bool HasWord(const std::string& name, const std::set<std::string>& words) {
  const std::set<std::string> own = WordsOf(name);
  return std::any_of(own.begin(), own.end(),
                     [&](const std::string& word) { return words.count(word) > 0; });
}

bool IsNameOfLabel(const std::string& name) {
  static const auto* const kWords = new std::set<std::string>{
      "label",      "labels",   "click",  "clicked", "clicks",   "target", "y",
      "conversion", "event",    "action", "bought",  "purchase", "ctr",    "converted",
      "like",       "behavior", "class",  "liked",   "behaviour"};
  return HasWord(name, *kWords);
}

bool IsNameOfId(const std::string& name) {
  static const auto* const kWords = new std::set<std::string>{
      "id",   "ids",   "user",   "item",     "category", "cat",    "type",    "code",  "zip",
      "site", "app",   "device", "campaign", "model",    "brand",  "shop",    "city",  "region",
      "ad",   "os",    "lang",   "channel",  "country",  "gender", "uid",     "iid",   "sku",
      "pos",  "query", "banner", "slot",     "position", "domain", "product", "store", "session"};
  return HasWord(name, *kWords);
}

bool IsNameOfNumber(const std::string& name) {
  static const auto* const kWords = new std::set<std::string>{
      "count",  "cnt",    "num",     "price",    "cost",     "amount", "age",   "score",
      "rate",   "ratio",  "length",  "duration", "len",      "size",   "total", "avg",
      "mean",   "sum",    "days",    "hours",    "minutes",  "views",  "bid",   "weight",
      "height", "width",  "seconds", "distance", "quantity", "qty",    "value", "revenue",
      "n",      "number", "balance", "income"};
  return HasWord(name, *kWords);
}

// The texts of a column of few values with how often they occur; {}: it has many.
std::vector<std::pair<std::string, uint64_t>> TextsOf(const Json& column) {
  std::vector<std::pair<std::string, uint64_t>> texts;
  if (!column.contains("texts")) return texts;
  for (const auto& [text, count] : column["texts"].items()) {
    texts.emplace_back(text, count.get<uint64_t>());
  }
  return texts;
}

bool IsZeroOne(const Json& column) {
  const auto texts = TextsOf(column);
  return texts.size() == 2 && texts[0].first == "0" && texts[1].first == "1";
}

// The texts that are a 1: of two values the one that says yes, else all but the most frequent.
std::vector<std::string> GuessPositive(const Json& column) {
  static const auto* const kYes =
      new std::set<std::string>{"1", "1.0", "true", "t", "yes", "y", "+1", "click", "clicked"};
  auto texts = TextsOf(column);
  std::stable_sort(texts.begin(), texts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (texts.size() == 2 && kYes->count(absl::AsciiStrToLower(texts[0].first)) > 0) {
    return {texts[0].first};
  }
  std::vector<std::string> positive;
  for (size_t i = 1; i < texts.size(); ++i) positive.push_back(texts[i].first);
  std::sort(positive.begin(), positive.end());
  return positive;
}

bool MayBeLabel(const Json& column) {
  const size_t values = TextsOf(column).size();
  return values >= 2 && values <= kMaxLabelValues && !column.contains("separator");
}

// How likely a column is the label, and why; 0: it is none.
std::pair<int, std::string> JudgeLabel(const Json& column) {
  if (!MayBeLabel(column)) return {0, ""};
  const std::string name = column["name"].get<std::string>();
  if (IsZeroOne(column)) {
    return IsNameOfLabel(name) ? std::pair(5, "its name, and it has 0 and 1")
                               : std::pair(3, "the first column of 0 and 1");
  }
  if (IsNameOfLabel(name)) return {4, "its name, and it has few values"};
  const auto texts = TextsOf(column);
  uint64_t most = 0, all = 0;
  for (const auto& [text, count] : texts) {
    most = std::max(most, count);
    all += count;
  }
  if (column["type"] == "string" && most * 2 > all) {
    return {2, "it has few values, and one of them in most rows; a guess"};
  }
  return {0, ""};
}

// Fills "label".
absl::Status AddLabel(const LabelChoice& choice, Json* figures) {
  const Json& columns = (*figures)["columns"];
  const Json* label = nullptr;
  int best = 0;
  std::string why;
  std::vector<std::string> names;
  for (const Json& column : columns) {
    const std::string name = column["name"].get<std::string>();
    names.push_back(name);
    if (!choice.column.empty()) {
      if (name == choice.column) label = &column;
      continue;
    }
    // Files of npy have one.
    const auto [likely, reason] = (*figures)["format"] == "npy" && name == "label"
                                      ? std::pair(9, std::string("the file of labels"))
                                      : JudgeLabel(column);
    if (likely <= best) continue;
    best = likely;
    label = &column;
    why = reason;
  }
  if (!choice.column.empty() && label == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("--label names '", choice.column,
                                                   "', but there is no such column",
                                                   DidYouMean(choice.column, names)));
  }
  if (label == nullptr) return absl::OkStatus();
  const std::string name = (*label)["name"].get<std::string>();
  if (!choice.column.empty()) why = "--label names it";
  Json json = {{"column", name}};
  const double rows = (*label)["rows"].get<double>() - (*label)["missing"].get<double>();
  if ((*figures)["format"] == "npy") {
    json["rate"] = (*label)["numbers"]["mean"];
  } else {
    const auto texts = TextsOf(*label);
    if (texts.empty() && choice.positive.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the column '", name,
                       "' has more values than a label has; --positive "
                       "TEXT,TEXT says which are a 1"));
    }
    if (texts.size() == 1 && choice.positive.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the column '", name, "' is '", texts[0].first,
                                                     "' in all rows: there is nothing to learn"));
    }
    std::vector<std::string> positive = choice.positive;
    if (positive.empty())
      positive = IsZeroOne(*label) ? std::vector<std::string>{"1"} : GuessPositive(*label);
    uint64_t ones = 0;
    for (const auto& [text, count] : texts) {
      if (std::count(positive.begin(), positive.end(), text) > 0) ones += count;
    }
    if (!IsZeroOne(*label) || !choice.positive.empty()) json["positive"] = positive;
    if (!texts.empty() && rows > 0) json["rate"] = static_cast<double>(ones) / rows;
  }
  json["why"] = why;
  (*figures)["label"] = std::move(json);
  return absl::OkStatus();
}

// ---- uses

using Use = std::pair<const char*, std::string>;  // What for, and why.

Use UseOfInteger(const Json& column) {
  const std::string name = column["name"].get<std::string>();
  if (IsNameOfNumber(name)) return {kUseNumeric, "its name"};
  if (IsNameOfId(name)) return {kUseCategorical, "its name"};
  if (column["distinct"].get<double>() <= kFewValues) return {kUseCategorical, "few values"};
  const Json& numbers = column["numbers"];
  if (numbers["min"].get<double>() < -1) return {kUseNumeric, "it has negative values"};
  if (numbers["below_10_share"].get<double>() >= kSmallShare) {
    return {kUseNumeric, "most values are small: a count"};
  }
  return {kUseCategorical, "its values look like ids"};
}

// Of numbers, some of which are written with a point or an exponent: ids that went through floats.
bool HasWholeIds(const Json& column) {
  const Json& numbers = column["numbers"];
  if (!numbers.contains("whole_share") || numbers["whole_share"] != 1) return false;
  return UseOfInteger(column).first == kUseCategorical &&
         (IsNameOfId(column["name"].get<std::string>()) ||
          column["distinct"].get<double>() > kFewValues);
}

Use UseOf(const Json& column, const std::string& format) {
  const std::string type = column["type"].get<std::string>();
  if (type == "empty") return {kUseNone, "no row has a value"};
  if (format == "npy" || format == "criteo_tsv") {
    const bool is_dense = column["name"].get<std::string>()[0] == 'I';
    return {is_dense ? kUseNumeric : kUseCategorical, "the format says so"};
  }
  const double distinct = column["distinct"].get<double>();
  const auto values = column["values"].get<double>();
  if (distinct == 1 && column["missing"] == 0) return {kUseNone, "it is the same in all rows"};
  if (type == "time") {
    if (column["time"]["hour_start"].get<int>() >= 0) return {kUseHour, "the hour of the day"};
    return {kUseNone, "a time that comes does not come again"};
  }
  const bool is_id = type == "number" && HasWholeIds(column);
  if (type == "number" && !is_id) {
    const bool is_whole = column["numbers"].value("whole_share", 0.0) == 1;
    return {kUseNumeric, is_whole ? "whole numbers, written as floats" : "numbers with fractions"};
  }
  if (type == "list" || type == "sequence") return {kUseCategorical, "a list of ids"};
  if (values > kManyRows && distinct > kUniqueShare * values) {
    return {kUseNone, "it has another value in nearly every row: it names the row"};
  }
  if (type == "integer") return UseOfInteger(column);
  if (is_id) {
    return {kUseCategorical, absl::StrCat("all are whole numbers, written as floats; ",
                                          UseOfInteger(column).second)};
  }
  return {kUseCategorical, "text"};
}

}  // namespace

absl::Status AddSuggestions(const LabelChoice& choice, Json* figures) {
  const absl::Status status = AddLabel(choice, figures);
  if (!status.ok()) return status;
  const std::string format = (*figures)["format"].get<std::string>();
  double largest = 0;
  for (Json& column : (*figures)["columns"]) {
    Use use = {kUseLabel, ""};
    if (!figures->contains("label") || (*figures)["label"]["column"] != column["name"]) {
      use = UseOf(column, format);
    }
    column["use"] = use.first;
    if (!use.second.empty()) column["use_why"] = use.second;
    if (use.first == kUseCategorical) {
      largest = std::max(largest, column["distinct"].get<double>());
    }
  }
  TableLayout layout;
  layout.dim = largest < kSmallTable ? kSmallDim : kDim;
  (*figures)["dim"] = layout.dim;
  for (Json& column : (*figures)["columns"]) {
    if (column["use"] != kUseCategorical) continue;
    // A row for missing values, too.
    const auto rows = static_cast<uint64_t>(column["distinct"].get<double>()) +
                      (column["missing"].get<uint64_t>() > 0 ? 1 : 0);
    column["table_bytes"] = TableMemoryBytes(layout, rows);
  }
  return absl::OkStatus();
}

}  // namespace thermocline
