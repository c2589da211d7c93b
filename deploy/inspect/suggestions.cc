#include "deploy/inspect/suggestions.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/math/table_memory.h"
#include "deploy/inspect/column_names.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// A column of integers with so few values is a category, whatever they are.
constexpr double kFewValues = 50;
// At least this share of a count's values is below 10.
constexpr double kSmallShare = 0.3;
// In a log with more rows than kManyRows, a column names the row if its distinct values are more
// than this share of the rows.
constexpr double kUniqueShare = 0.95;
constexpr double kManyRows = 100;
constexpr int kSmallDim = 8, kDim = 16;
constexpr double kSmallTable = 1000;

// ---- uses

using Use = std::pair<const char*, std::string>;  // What for, and why.

Use UseOfInteger(const Json& column) {
  const std::string name = column["name"].get<std::string>();
  // With two values, a row for each says as much as a number could.
  if (column["distinct"] == 2) {
    const Json& numbers = column["numbers"];
    const bool is_flag = numbers["min"] == 0 && numbers["max"] == 1;
    return {kUseCategorical,
            is_flag ? "0 and 1; leave it out if it is another label" : "two values"};
  }
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

// Whether numbers, some of which are written with a point or an exponent, are ids that were floats
// once.
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
    const bool is_dense =
        format == "npy" ? type == "number" : column["name"].get<std::string>()[0] == 'I';
    return {is_dense ? kUseNumeric : kUseCategorical, "the format says so"};
  }
  if (IsNameOfIndex(column["name"].get<std::string>())) {
    return {kUseNone, "it is the index that a data frame writes beside its columns"};
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

// ---- columns that say what the label is

// "in 500 of 500 rows"
std::string Share(const Json& implied) {
  const auto rows = implied["rows"].get<uint64_t>();
  return absl::StrCat("in ", FormatCount(rows - implied["but"].get<uint64_t>()), " of ",
                      FormatCount(rows), " rows");
}

// How `column` says what `other` is, if the figures have it.
const Json* ImplicationOf(const Json& column, const Json& other) {
  if (!column.contains("implies")) return nullptr;
  for (const Json& implied : column["implies"]) {
    if (implied["column"] == other["name"]) return &implied;
  }
  return nullptr;
}

// The greater of a column's two texts, of which "implies" speaks.
std::string GreaterText(const Json& column) { return std::prev(column["texts"].end()).key(); }

// Why a column, which is no label, would leak one to the model: where the one is 1, the other
// nearly always is. "": it doesn't.
std::string LeakOf(const Json& column, const Json& figures, const std::vector<Json>& labels) {
  if (!column.contains("texts")) return "";
  for (const Json& label : labels) {
    for (const Json& of_label : figures["columns"]) {
      if (of_label["name"] != label["column"] || !of_label.contains("texts")) continue;
      const auto positive = label.value("positive", std::vector<std::string>{"1"});
      const std::string name = column["name"].get<std::string>();
      const std::string of = label["column"].get<std::string>();
      const Json* const implies = ImplicationOf(column, of_label);
      const Json* const is_implied = ImplicationOf(of_label, column);
      if (implies == nullptr && is_implied == nullptr) continue;
      if (std::count(positive.begin(), positive.end(), GreaterText(of_label)) == 0) continue;
      const std::string text = GreaterText(column);
      return absl::StrCat(
          implies != nullptr
              ? absl::StrCat("where it is '", text, "', the label ", of, " is 1 ", Share(*implies))
              : absl::StrCat("where the label ", of, " is 1, it is '", text, "' ",
                             Share(*is_implied)),
          ": another label, or known only after it (--label ", of, ",", name, " has both)");
    }
  }
  return "";
}

}  // namespace

absl::Status AddSuggestions(const LabelChoice& choice, Json* figures) {
  const absl::Status status = AddLabels(choice, figures);
  if (!status.ok()) return status;
  const std::string format = (*figures)["format"].get<std::string>();
  const std::vector<Json> labels = LabelsOf(*figures);
  double largest = 0;
  for (Json& column : (*figures)["columns"]) {
    const bool is_label = std::any_of(labels.begin(), labels.end(), [&](const Json& label) {
      return label["column"] == column["name"];
    });
    Use use = is_label ? Use{kUseLabel, ""} : UseOf(column, format);
    if (use.first == kUseCategorical || use.first == kUseNumeric) {
      const std::string leak = LeakOf(column, *figures, labels);
      if (!leak.empty()) use = {kUseNone, leak};
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
