#include "deploy/inspect/label.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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
      "--label NAME says which column is the label (NAME,NAME: several), and --positive TEXT,TEXT "
      "which of its texts are a 1";
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

// The columns that --label names. One whose name has commas is a column all the same.
absl::StatusOr<std::vector<const Json*>> FindLabels(const std::string& names, const Json& columns) {
  std::vector<std::string> there;
  for (const Json& column : columns) {
    if (ColumnName(column) == names) return std::vector<const Json*>{&column};
    there.push_back(ColumnName(column));
  }
  std::vector<const Json*> labels;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, ','))) {
    const auto at = std::find(there.begin(), there.end(), name);
    if (at == there.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--label names '", name, "', but there is no such column", DidYouMean(name, there)));
    }
    labels.push_back(&columns[at - there.begin()]);
    if (std::count(labels.begin(), labels.end(), labels.back()) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("--label names '", name, "' twice"));
    }
  }
  return labels;
}

// Returns the labels of npy files, which are their first columns.
absl::StatusOr<std::vector<const Json*>> NpyLabels(const std::string& names, const Json& figures) {
  std::vector<const Json*> labels;
  std::vector<std::string> there;
  for (size_t c = 0; c < figures["label_columns"].get<size_t>(); ++c) {
    labels.push_back(&figures["columns"][c]);
    there.push_back(ColumnName(*labels.back()));
    if (!labels.back()->contains("numbers")) {
      return absl::InvalidArgumentError(absl::StrCat("no row has a value of ", there.back()));
    }
  }
  const std::string all = absl::StrJoin(there, ",");
  if (names.empty() || names == all) return labels;
  return absl::InvalidArgumentError(
      absl::StrCat("--label names '", names, "', and the file of labels has ", all,
                   ": name all of its columns in this order, or leave --label out"));
}

// The texts of a label that are a 1. Where there are several labels, --positive may name texts that
// occur in others. Errors: kInvalidArgument
absl::StatusOr<std::vector<std::string>> PositiveOf(const LabelChoice& choice, const Json& label,
                                                    bool is_only) {
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
  std::vector<std::string> positive;
  for (const std::string& text : choice.positive) {
    const auto occurs = [&](const auto& other) { return other.first == text; };
    const bool is_there = !texts.empty()
                              ? std::any_of(texts.begin(), texts.end(), occurs)
                              : label.contains("counted") && label["counted"].value(text, 0) > 0;
    if (is_there) positive.push_back(text);
    if (!is_there && is_only) {
      return error("has ", DescribeTexts(label), ", and no row has '", text,
                   "', which --positive names");
    }
  }
  if (!positive.empty()) return positive;
  return error("has ", DescribeTexts(label), ", and no text that --positive names");
}

// Adds a warning to `figures` where hardly any row has another label than the one before it.
//   name: of the label, where there are several
void WarnIfSorted(const Json& label, const std::string& name, double rate, Json* figures) {
  if (!label.contains("text_changes")) return;
  const double rows = label["rows"].get<double>() - label["missing"].get<double>();
  const auto changes = label["text_changes"].get<uint64_t>();
  if (static_cast<double>(changes) * kSorted >= 2 * rate * (1 - rate) * rows) return;
  (*figures)["warnings"].push_back(absl::StrCat(
      "the rows are sorted by the label", name, ", which changes ", FormatCount(changes),
      " times in ", FormatCount(static_cast<uint64_t>(rows)),
      " rows: held-out rows, and batches, may all have the same; shuffle the file (shuf), or hold "
      "rows out by a column's value"));
}

// The figures of one label. Errors: kInvalidArgument
absl::StatusOr<Json> FiguresOf(const LabelChoice& choice, const Json& label, bool is_only) {
  Json json = {{"column", ColumnName(label)}};
  ASSIGN_OR_RETURN(const std::vector<std::string> positive, PositiveOf(choice, label, is_only));
  const Json& counts = label.contains("texts") ? label["texts"] : label["counted"];
  double ones = 0;
  for (const std::string& text : positive) ones += counts[text].get<double>();
  const double rows = label["rows"].get<double>() - label["missing"].get<double>();
  if (ones == rows) {
    return absl::InvalidArgumentError(absl::StrCat("with --positive, the column '",
                                                   ColumnName(label),
                                                   "' is 1 in all rows: there is nothing to "
                                                   "learn"));
  }
  if (!IsZeroOne(label) || !choice.positive.empty()) json["positive"] = positive;
  json["rate"] = ones / rows;
  return json;
}

}  // namespace

absl::Status AddLabels(const LabelChoice& choice, Json* figures) {
  const bool is_npy = (*figures)["format"] == "npy";
  std::vector<const Json*> labels;
  std::string why = is_npy ? "the file of labels" : "--label names it";
  if (is_npy) {
    ASSIGN_OR_RETURN(labels, NpyLabels(choice.columns, *figures));
  } else if (!choice.columns.empty()) {
    ASSIGN_OR_RETURN(labels, FindLabels(choice.columns, (*figures)["columns"]));
  } else {
    labels.resize(1);
    std::tie(labels[0], why) = GuessLabel(*figures);
    if (labels[0] == nullptr) (*figures)["label_question"] = why;
    if (labels[0] == nullptr) return absl::OkStatus();
  }
  const bool is_only = labels.size() == 1;
  std::vector<Json> found;
  for (const Json* const label : labels) {
    Json json = {{"column", ColumnName(*label)}};
    if (is_npy) {
      json["rate"] = (*label)["numbers"]["mean"];
    } else {
      ASSIGN_OR_RETURN(json, FiguresOf(choice, *label, is_only));
    }
    const std::string name = is_only ? "" : absl::StrCat(" '", ColumnName(*label), "'");
    WarnIfSorted(*label, name, json["rate"].get<double>(), figures);
    json["why"] = why;
    found.push_back(std::move(json));
  }
  for (const std::string& text : choice.positive) {
    const auto has = [&](const Json& label) {
      const auto positive = label.value("positive", std::vector<std::string>());
      return std::count(positive.begin(), positive.end(), text) > 0;
    };
    if (is_npy || std::any_of(found.begin(), found.end(), has)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--positive names '", text, "', which no label has"));
  }
  (*figures)["label"] = found[0];
  for (size_t i = 1; i < found.size(); ++i) (*figures)["more_labels"].push_back(found[i]);
  return absl::OkStatus();
}

std::vector<Json> LabelsOf(const Json& figures) {
  std::vector<Json> labels;
  if (figures.contains("label")) labels.push_back(figures.at("label"));
  for (const Json& label : figures.value("more_labels", Json::array())) labels.push_back(label);
  return labels;
}

}  // namespace thermocline
