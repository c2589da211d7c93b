#include "deploy/inspect/label.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "deploy/inspect/column_names.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// A column with more values than this is no label, unless --positive says which
// are a 1.
constexpr size_t kMaxLabelValues = 10;
// Rows in no order change their label so many times more often than those that are sorted by it.
constexpr double kSorted = 20;
constexpr size_t kMaxListed = 8;  // Columns, or texts, that a message lists.

std::string ColumnName(const Json& column) { return column["name"].get<std::string>(); }

// The texts of a column of few values with how often they occur; {}: it has
// many.
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

// The text that is a 1, of two of which one says yes and the other no; "":
// others.
std::string YesOf(const Json& column) {
  static const auto* const kYes =
      new std::set<std::string>{"1", "1.0", "true", "t", "yes", "y", "+1"};
  static const auto* const kNo =
      new std::set<std::string>{"0", "0.0", "false", "f", "no", "n", "-1", "-1.0"};
  const auto texts = TextsOf(column);
  if (texts.size() != 2) return "";
  for (const size_t i : {0, 1}) {
    if (kYes->count(absl::AsciiStrToLower(texts[i].first)) == 0) continue;
    if (kNo->count(absl::AsciiStrToLower(texts[1 - i].first)) > 0) return texts[i].first;
  }
  return "";
}

// "'F' (400), 'M' (600)"
std::string DescribeTexts(const Json& column) {
  const auto texts = TextsOf(column);
  if (texts.empty()) return "many values";
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(texts.size(), kMaxListed); ++i) {
    parts.push_back(absl::StrCat("'", texts[i].first, "' (", FormatCount(texts[i].second), ")"));
  }
  if (texts.size() > kMaxListed) parts.push_back("...");
  return absl::StrJoin(parts, ", ");
}

bool MayBeLabel(const Json& column) {
  const size_t values = TextsOf(column).size();
  return values >= 2 && values <= kMaxLabelValues && !column.contains("separator") &&
         column["type"] != "time" && !IsNameOfIndex(ColumnName(column));
}

std::string Ask(const std::vector<const Json*>& candidates) {
  constexpr char kHow[] =
      "--label NAME says which column is the label, and --positive TEXT,TEXT "
      "which of its texts "
      "are a 1";
  if (candidates.empty()) return absl::StrCat("no column looks like a label; ", kHow);
  std::vector<std::string> parts;
  for (const Json* column : candidates) {
    if (parts.size() == kMaxListed) {
      parts.push_back(absl::StrCat("and ", candidates.size() - kMaxListed, " more"));
      break;
    }
    parts.push_back(absl::StrCat(ColumnName(*column), " with ", DescribeTexts(*column)));
  }
  return absl::StrCat(candidates.size() == 1
                          ? "one column may be the label, but is no plain one of 0 and 1: "
                          : "several columns may be the label: ",
                      absl::StrJoin(parts, "; "), ". ", kHow);
}

// The label, and why; null: what to ask.
std::pair<const Json*, std::string> GuessLabel(const Json& figures) {
  std::vector<const Json*> named, of_many, others;
  for (const Json& column : figures["columns"]) {
    const LabelName name = ClassifyLabelName(ColumnName(column));
    // Files of npy have one.
    if (figures["format"] == "npy" && ColumnName(column) == "label") {
      return {&column, "the file of labels"};
    }
    if (!MayBeLabel(column)) {
      if (name == LabelName::kYes && !column.contains("separator")) of_many.push_back(&column);
    } else if (name == LabelName::kYes) {
      named.push_back(&column);
    } else if (TextsOf(column).size() == 2 || name == LabelName::kHasWord) {
      others.push_back(&column);
    }
  }
  if (!named.empty()) {
    const bool is_plain = !YesOf(*named[0]).empty();
    if (named.size() > 1 || !is_plain) return {nullptr, Ask(named)};
    return {named[0], IsZeroOne(*named[0]) ? "its name, and it has 0 and 1"
                                           : "its name, and one of its two values says yes"};
  }
  others.insert(others.begin(), of_many.begin(), of_many.end());
  if (others.size() != 1 || YesOf(*others[0]).empty()) return {nullptr, Ask(others)};
  return {others[0], "a guess: no other column has two values"};
}

absl::StatusOr<const Json*> FindLabel(const std::string& name, const Json& columns) {
  std::vector<std::string> names;
  for (const Json& column : columns) {
    if (ColumnName(column) == name) return &column;
    names.push_back(ColumnName(column));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--label names '", name, "', but there is no such column", DidYouMean(name, names)));
}

// The texts of a label that are a 1. Errors: kInvalidArgument
absl::StatusOr<std::vector<std::string>> PositiveOf(const LabelChoice& choice, const Json& label) {
  const auto error = [&](auto... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("the column '", ColumnName(label), "' ", parts...));
  };
  const auto texts = TextsOf(label);
  if (texts.size() == 1) {
    return error("is '", texts[0].first, "' in all rows: there is nothing to learn");
  }
  if (choice.positive.empty()) {
    const std::string yes = YesOf(label);
    if (!yes.empty()) return std::vector<std::string>{yes};
    return error("has ", DescribeTexts(label),
                 ", not 0 and 1; --positive TEXT,TEXT says which are a 1");
  }
  for (const std::string& text : choice.positive) {
    const auto occurs = [&](const auto& other) { return other.first == text; };
    const bool is_there = !texts.empty()
                              ? std::any_of(texts.begin(), texts.end(), occurs)
                              : label.contains("counted") && label["counted"].value(text, 0) > 0;
    if (!is_there) {
      return error("has ", DescribeTexts(label), ", and no row has '", text,
                   "', which --positive names");
    }
  }
  return choice.positive;
}

// Adds a warning to `figures` where hardly any row has another label than the one before it.
void WarnIfSorted(const Json& label, double rate, Json* figures) {
  if (!label.contains("text_changes")) return;
  const double rows = label["rows"].get<double>() - label["missing"].get<double>();
  const auto changes = label["text_changes"].get<uint64_t>();
  if (static_cast<double>(changes) * kSorted >= 2 * rate * (1 - rate) * rows) return;
  (*figures)["warnings"].push_back(absl::StrCat(
      "the rows are sorted by the label, which changes ", FormatCount(changes), " times in ",
      FormatCount(static_cast<uint64_t>(rows)),
      " rows: held-out rows, and batches, may all have the same; shuffle the file (shuf), or hold "
      "rows out by a column's value"));
}

}  // namespace

absl::Status AddLabel(const LabelChoice& choice, Json* figures) {
  const Json* label = nullptr;
  std::string why = "--label names it";
  if (choice.column.empty()) {
    std::tie(label, why) = GuessLabel(*figures);
    if (label == nullptr) (*figures)["label_question"] = why;
    if (label == nullptr) return absl::OkStatus();
  } else {
    ASSIGN_OR_RETURN(label, FindLabel(choice.column, (*figures)["columns"]));
  }
  Json json = {{"column", ColumnName(*label)}};
  if ((*figures)["format"] == "npy") {
    json["rate"] = (*label)["numbers"]["mean"];
  } else {
    ASSIGN_OR_RETURN(const std::vector<std::string> positive, PositiveOf(choice, *label));
    const Json& counts = label->contains("texts") ? (*label)["texts"] : (*label)["counted"];
    double ones = 0;
    for (const std::string& text : positive) ones += counts[text].get<double>();
    const double rows = (*label)["rows"].get<double>() - (*label)["missing"].get<double>();
    if (ones == rows) {
      return absl::InvalidArgumentError(absl::StrCat("with --positive, the column '",
                                                     ColumnName(*label),
                                                     "' is 1 in all rows: there is nothing to "
                                                     "learn"));
    }
    if (!IsZeroOne(*label) || !choice.positive.empty()) json["positive"] = positive;
    json["rate"] = ones / rows;
  }
  WarnIfSorted(*label, json["rate"].get<double>(), figures);
  json["why"] = why;
  (*figures)["label"] = std::move(json);
  return absl::OkStatus();
}

}  // namespace thermocline
