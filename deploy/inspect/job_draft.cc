#include "deploy/inspect/job_draft.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/model/presets.h"
#include "deploy/inspect/suggestions.h"
#include "deploy/report/format.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kTestShare = 0.1;
// Beyond this skewness a number's logarithm is the better input.
constexpr double kSkewed = 2;
// Times out of order: a share of the rows beyond which the last rows are not the latest.
constexpr double kOutOfOrder = 0.01;
// A share of ids that occur once from which min_count is worth a thought.
constexpr double kManyOnce = 0.5;
constexpr uint64_t kMaxSequence = 50;
constexpr char kSequence[] = "history";  // The name of the one that din, bst and tbsm read.
constexpr size_t kCommentWidth = 110;
// Beyond so many inputs a cross layer's matrix is of low rank.
constexpr int kWideCross = 1024;

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::CEscape(text), "\"");
}

// A short number, for people.
std::string Short(double value) { return absl::StrFormat("%.6g", value); }
// The shortest number that is read back as the same double.
std::string Exact(double value) { return Json(value).dump(); }

std::string Percent(double share) {
  return share > 0 && share < 0.01 ? absl::StrFormat("%.2g%%", 100 * share)
                                   : absl::StrFormat("%.0f%%", 100 * share);
}

// Without what would end a comment's line.
std::string OneLine(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return absl::ascii_iscntrl(c); }, ' ');
  return text;
}

// Letters, digits, '_' and '-' of `text`; not in `taken`, where it is added.
std::string NameOf(const std::string& text, std::set<std::string>* taken) {
  std::string name;
  for (const char c : text) {
    name += absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ? c : '_';
  }
  name.resize(std::min<size_t>(name.size(), 60));
  if (name.empty()) name = "column";
  std::string unique = name;
  for (int i = 2; !taken->insert(unique).second; ++i) unique = absl::StrCat(name, "_", i);
  return unique;
}

// Names in quotes; three or more that count on, C1, C2, ..., as "C1..C26".
std::vector<std::string> WithRanges(const std::vector<std::string>& names) {
  const auto follows = [](const std::string& name, const std::string& next) {
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    uint32_t number = 0;
    return absl::SimpleAtoi(name.substr(digits), &number) && (name[digits] != '0' || number == 0) &&
           next == absl::StrCat(name.substr(0, digits), number + 1);
  };
  std::vector<std::string> entries;
  for (size_t begin = 0; begin < names.size();) {
    size_t end = begin + 1;
    while (end < names.size() && follows(names[end - 1], names[end])) ++end;
    if (end - begin < 3) end = begin + 1;
    entries.push_back(
        Quoted(end - begin == 1 ? names[begin] : absl::StrCat(names[begin], "..", names[end - 1])));
    begin = end;
  }
  return entries;
}

// "a" for one name in quotes, ["a", "b"] for several.
std::string List(const std::vector<std::string>& names) {
  return names.size() == 1 ? names[0] : absl::StrCat("[", absl::StrJoin(names, ", "), "]");
}

class Draft {
 public:
  Draft(const Json& figures, const std::vector<std::string>& paths, const std::string& file,
        const std::string& model)
      : figures_(figures),
        paths_(paths),
        file_(file),
        model_(model),
        // What was not read may be anything: ids are hashed as text, and numbers may be missing.
        is_partial_(!figures.at("complete").get<bool>()),
        is_npy_(figures.at("format") == "npy") {}

  absl::StatusOr<std::string> Write() {
    if (!figures_.contains("label")) {
      return absl::FailedPreconditionError(FigureText(figures_, "label_question"));
    }
    FindSplit();
    FindHistories();
    if (ReadsSteps() && histories_.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(model_,
                       " compares the rows' own values with lists of those before, and no list of "
                       "values in the order of time has the name of another column in its own, as "
                       "'hist_item' has 'item'. Where histories are named otherwise, draft another "
                       "--model, give the feature of each the `table` of its own column, and write "
                       "`sequence` and ",
                       model_, " by hand (docs/own-log.md, Histories, step by step)"));
    }
    for (const Json& column : figures_.at("columns")) Count(column);
    AddHead();
    AddData();
    if (ListsFeatures()) AddFeatures();
    if (numeric_ + categorical_ == 0) {
      return absl::FailedPreconditionError("no column but the label is of use as a feature");
    }
    if (model_ == "deepfm" && categorical_ < 2) {
      return absl::FailedPreconditionError(absl::StrCat(
          categorical_ == 0 ? "no column is" : "only one column is",
          " of use as a categorical feature, and deepfm multiplies the vectors of two; "
          "--model wide_deep needs none"));
    }
    AddModel();
    return text_;
  }

 private:
  template <typename... Parts>
  void Line(const Parts&... parts) {
    absl::StrAppend(&text_, absl::StrCat(parts...), "\n");
  }

  // A column of times whose rows are not in its order splits them.
  void FindSplit() {
    for (const Json& column : figures_.at("columns")) {
      if (split_ != nullptr || column.at("type") != "time") continue;
      time_ = &column;
      const Json& time = column.at("time");
      const double out_of_order = Figure(time, "descents") / Figure(column, "rows");
      const double share = Figure(time, "test_share");
      if (out_of_order > kOutOfOrder && column.at("missing") == 0 && share > 0 && share < 0.5) {
        split_ = &column;
      }
    }
  }

  bool ReadsSteps() const { return model_ == "din" || model_ == "bst" || model_ == "tbsm"; }

  // A column of lists and the one that has a value of the same kind in each row.
  struct History {
    const Json* list = nullptr;
    const Json* own = nullptr;
  };

  void FindHistories() {
    if (!ReadsSteps()) return;
    const Json& columns = figures_.at("columns");
    const auto is_input = [](const Json& column) { return column.at("use") == kUseCategorical; };
    for (const Json& list : columns) {
      if (!is_input(list) || list.at("type") != "sequence") continue;
      // Lists that are read together have as many values as each other.
      const Json& first = histories_.empty() ? list : *histories_[0].list;
      if (list.at("values") != first.at("values")) continue;
      for (const Json& own : columns) {
        if (!is_input(own) || own.contains("separator")) continue;
        if (!IsHistoryOf(FigureText(list, "name"), FigureText(own, "name"))) continue;
        if (HistoryWith(own) != nullptr) continue;
        histories_.push_back({&list, &own});
        break;
      }
    }
  }

  // "hist_item", "item_history" and "last_items" of "item".
  static bool IsHistoryOf(const std::string& list, const std::string& own) {
    std::vector<std::string> words = absl::StrSplit(list, '_');
    const std::set<std::string> time = {"hist",     "history", "past",     "last", "prev",
                                        "previous", "list",    "sequence", "seq"};
    const size_t before = words.size();
    words.erase(std::remove_if(words.begin(), words.end(),
                               [&](const std::string& word) { return time.count(word) > 0; }),
                words.end());
    const std::string rest = absl::StrJoin(words, "_");
    return words.size() < before && (rest == own || rest == own + "s");
  }

  const History* HistoryWith(const Json& column) const {
    for (const History& history : histories_) {
      if (history.list == &column || history.own == &column) return &history;
    }
    return nullptr;
  }

  void AddHead() {
    Line("# Drafted by `thermocline inspect` from ", is_partial_ ? "the first " : "",
         FormatCount(figures_.at("rows")), " rows of ", OneLine(paths_[0]),
         paths_.size() > 1 ? absl::StrCat(" and ", paths_.size() - 1, " more") : "", ".");
    Line("# It trains as it is; look at what it guessed, and change it:");
    for (const Json& warning : figures_.value("warnings", Json::array())) {
      Line("# WARNING: ", OneLine(warning.get<std::string>()));
    }
    Line("#");
    Line("#   thermocline train ", OneLine(file_));
    Line("#   thermocline plan ", OneLine(file_));
    std::set<std::string> none;
    const std::string stem = std::filesystem::path(file_).stem().string();
    Line("name: ", Quoted(NameOf(stem, &none)));
    Line("seed: 1\n");
  }

  // Files of npy without lists or names have columns C1, C2, ..., which no stanza need list.
  bool ListsFeatures() const {
    if (!is_npy_) return true;
    int sparse = 0;
    for (const Json& column : figures_.at("columns")) {
      if (column.at("use") != kUseCategorical) continue;
      if (column.contains("separator")) return true;
      if (FigureText(column, "name") != absl::StrCat("C", ++sparse)) return true;
    }
    return false;
  }

  void AddBadLines() {
    const auto bad = figures_.at("malformed_rows").get<uint64_t>();
    const uint64_t unlabelled = RowsWithout(Labels()).first;
    if (bad + unlabelled == 0) return;
    Line("  max_bad_lines: ", 2 * (bad + unlabelled) + 10, "  # found: ", bad, " malformed, ",
         unlabelled, " without a label",
         figures_.contains("first_malformed")
             ? absl::StrCat("; ", OneLine(FigureText(figures_, "first_malformed")))
             : "");
  }

  // The labels that the job names. `mmoe` and `ple` learn all, the others the first; npy has all.
  std::vector<Json> Labels() const {
    std::vector<Json> labels = LabelsOf(figures_);
    if (!is_npy_ && model_ != "mmoe" && model_ != "ple") labels.resize(1);
    return labels;
  }

  // The fewest rows without a value of one of these labels, and whether there are such of any.
  std::pair<uint64_t, bool> RowsWithout(const std::vector<Json>& labels) const {
    uint64_t fewest = std::numeric_limits<uint64_t>::max(), most = 0;
    for (const Json& label : labels) {
      for (const Json& column : figures_.at("columns")) {
        if (column.at("name") != label.at("column")) continue;
        const auto missing = column.at("missing").get<uint64_t>();
        fewest = std::min(fewest, missing);
        most = std::max(most, missing);
      }
    }
    // Rows of npy without any label are malformed already.
    return {is_npy_ ? 0 : fewest, most > 0};
  }

  void AddData() {
    Line("data {\n  train {");
    for (const std::string& path : paths_) Line("    path: ", Quoted(path));
    const std::string format = FigureText(figures_, "format");
    format == "csv" ? AddCsv() : Line("    ", format, " {}");
    Line("  }");
    if (is_npy_) Line("  num_dense: ", numeric_);
    if (!ListsFeatures()) Line("  num_categorical: ", categorical_);
    if (!figures_.value("has_test_rows", false)) AddSplit();
    AddLabels();
    AddBadLines();
    if (!is_npy_) {
      Line("  # Rows that stand in no order of their own may change places:");
      Line("  # shuffle { block_rows: 100000 }");
    }
    Line("}\n");
  }

  void AddCsv() {
    const bool has_header = figures_.at("header").get<bool>();
    Line("    csv {");
    if (figures_.at("separator") != ",") {
      Line("      separator: ", Quoted(FigureText(figures_, "separator")));
    }
    if (!figures_.at("quotes").get<bool>()) Line("      quotes: false");
    if (has_header) {
      Line("      header: true");
    } else {
      std::vector<std::string> names;
      for (const Json& column : figures_.at("columns")) {
        if (!column.contains("from_folder")) names.push_back(Quoted(FigureText(column, "name")));
      }
      Line("      column: [", absl::StrJoin(names, ", "), "]");
    }
    Line("    }");
  }

  void AddSplit() {
    if (split_ != nullptr) {
      const Json& time = split_->at("time");
      Line("  # The rows are not in the order of time: the latest ",
           Percent(Figure(time, "test_share")), " are held out.");
      Line("  split { column: ", Quoted(FigureText(*split_, "name")),
           " test_from: ", Quoted(FigureText(time, "test_from")), " }");
      Line("  # or the last rows, wherever they are in time: split { last_share: ", kTestShare,
           " }");
      return;
    }
    Line("  split { last_share: ", kTestShare, " }  # the last rows are held out",
         time_ != nullptr ? ", which are the latest" : "");
    if (time_ != nullptr) {
      Line("  # or by time: split { column: ", Quoted(FigureText(*time_, "name")),
           " test_from: ", Quoted(FigureText(time_->at("time"), "test_from")), " }");
    }
  }

  void AddLabels() {
    const std::vector<Json> labels = Labels();
    if (is_npy_ && labels.size() == 1) return;  // It has no other name than `label`.
    std::vector<std::string> columns, reasons;
    std::set<std::string> positive;
    bool has_texts = false;  // Whether there is one with others than 0 and 1.
    for (const Json& label : labels) {
      const std::string name = FigureText(label, "column");
      columns.push_back(Quoted(name));
      reasons.push_back(absl::StrCat(labels.size() > 1 ? OneLine(name) + ": " : "",
                                     FigureText(label, "why"), "; ", Percent(Figure(label, "rate")),
                                     " are 1"));
      has_texts = has_texts || label.contains("positive");
      for (const Json& text : label.value("positive", Json::array({"1"}))) {
        positive.insert(Quoted(text.get<std::string>()));
      }
    }
    std::string line = absl::StrCat("  label { column: ", List(columns));
    if (has_texts) absl::StrAppend(&line, " positive: [", absl::StrJoin(positive, ", "), "]");
    const bool may_be_missing = labels.size() > 1 && RowsWithout(labels).second;
    if (may_be_missing) absl::StrAppend(&line, " may_be_missing: true");
    Line(line, " }  # ", absl::StrJoin(reasons, "; "));
    for (const Json& label : LabelsOf(figures_)) {
      const std::string name = FigureText(label, "column");
      if (std::count(columns.begin(), columns.end(), Quoted(name)) > 0) continue;
      Line("  # ", OneLine(name), " is a label, too; mmoe and ple learn several.");
    }
  }

  void Count(const Json& column) {
    numeric_ += column.at("use") == kUseNumeric ? 1 : 0;
    categorical_ += column.at("use") == kUseCategorical || column.at("use") == kUseHour ? 1 : 0;
  }

  // Columns whose features differ in nothing but their names share a stanza. Those of one kind stay
  // in the order of the data, which decides what the model's inputs are.
  void AddFeatures() {
    const Json& columns = figures_.at("columns");
    std::set<std::string> taken = TakenNames();
    std::vector<std::string> names;  // The features' names; an hour has another than its column.
    for (const Json& column : columns) {
      const std::string use = FigureText(column, "use");
      const std::string own = use == kUseHour ? "hour_of_day" : FigureText(column, "name");
      // A list of npy has its name in those of its files.
      names.push_back(use == kUseLabel || !WhyLeftOut(column).empty() ? ""
                      : is_npy_                                       ? own
                                                                      : NameOf(own, &taken));
      feature_names_[&column] = names.back();
    }
    for (size_t c = 0; c < columns.size(); ++c) {
      if (columns[c].at("use") == kUseNumeric && !is_npy_) AddNumeric(columns[c], names[c]);
    }
    for (size_t c = 0; c < columns.size(); ++c) {
      if (columns[c].at("use") == kUseCategorical && !names[c].empty())
        AddToGroup(columns[c], names[c]);
      if (columns[c].at("use") == kUseHour) AddHour(columns[c], names[c]);
    }
    EndGroup();
    AddSequence();
    for (const Json& column : columns) {
      const std::string why = WhyLeftOut(column);
      if (why.empty()) continue;
      const std::string name = FigureText(column, "name");
      Line("# Left out: ", name.empty() ? "the column without a name" : OneLine(name), ", ", why,
           ".");
    }
    Line("");
  }

  // Why no feature reads a column; "": one does, or it is a label.
  std::string WhyLeftOut(const Json& column) const {
    if (column.at("use") == kUseNone) return FigureText(column, "use_why");
    // Lists of npy are sequences, which these models read together.
    const bool is_other =
        is_npy_ && ReadsSteps() && column.contains("separator") && HistoryWith(column) == nullptr;
    return is_other ? absl::StrCat("a list that is none of the history which ", model_, " reads")
                    : "";
  }

  // A feature in a line: its column, its name where the column's own will not do, and what it is.
  void AddFeature(const std::string& column, const std::string& name, const std::string& what) {
    const std::string own_name =
        name == column && !is_npy_ ? "" : absl::StrCat("name: ", Quoted(name), " ");
    const std::string own_column = is_npy_ ? "" : absl::StrCat("column: ", Quoted(column), " ");
    Line("feature { ", own_name, own_column, what, what.empty() ? "}" : " }");
  }

  std::string MissingOf(const Json& column) const {
    const double share = Figure(column, "missing") / Figure(column, "rows");
    return share == 0 ? "" : absl::StrCat(", ", Percent(share), " missing");
  }

  void AddNumeric(const Json& column, const std::string& name) {
    const Json& numbers = column.at("numbers");
    const bool is_skewed = Figure(numbers, "skewness") > kSkewed && Figure(numbers, "min") >= -10;
    const double mean = Figure(numbers, is_skewed ? "log1p_mean" : "mean");
    const double std = Figure(numbers, is_skewed ? "log1p_std" : "std");
    const std::string own = FigureText(column, "name");
    Line("# ", OneLine(own), ": ", FigureText(column, "type"), ", ", Short(Figure(numbers, "min")),
         " to ", Short(Figure(numbers, "max")), is_skewed ? ", skewed" : "", MissingOf(column),
         "; ", FigureText(column, "use_why"));
    std::string what = "numeric {";
    if (column.at("missing") > 0 || is_partial_) {
      // A missing number counts as an average one.
      absl::StrAppend(&what, " missing: ", Exact(is_skewed ? std::expm1(mean) : mean));
    }
    if (is_skewed) absl::StrAppend(&what, " transform { log1p {} }");
    if (std > 0) {
      absl::StrAppend(&what, " transform { standardize { mean: ", Exact(mean), " std: ", Exact(std),
                      " } }");
    }
    AddFeature(own, name, what + " }");
  }

  // What the ids of a column are; a list and the column with the same ids are read alike.
  std::string IdOf(const Json& column) const {
    const auto own_id = [](const Json& of) {
      return FigureText(of, of.contains("separator") ? "id" : "type");
    };
    const History* const history = HistoryWith(column);
    if (history == nullptr) return own_id(column);
    const std::string id = own_id(*history->own);
    return own_id(*history->list) == id ? id : "string";
  }

  // How the ids of a column are read.
  std::string CategoricalOf(const Json& column) const {
    const std::string type = FigureText(column, "type");
    const bool is_list = column.contains("separator");
    const std::string id = IdOf(column);
    const bool is_text = is_partial_ || (id != "integer" && id != "hex");
    const History* const history = HistoryWith(column);
    const bool is_step = history != nullptr && history->list == &column;
    std::string what = is_npy_ ? ""
                               : absl::StrCat("categorical { id: ", is_text       ? "STRING"
                                                                    : id == "hex" ? "HEX"
                                                                                  : "INTEGER");
    const std::string separator = is_list ? FigureText(column, "separator") : "";
    if (!separator.empty() && (type == "list" || separator != "|")) {
      absl::StrAppend(&what, " separator: ", Quoted(separator));
    }
    if (!is_npy_) {
      absl::StrAppend(&what, type == "list" ? " missing: NO_KEY }"
                             : is_step      ? " missing: OWN_KEY }"  // Each step has a key.
                                            : " }");
    }
    if (is_npy_ ? is_list : type == "sequence" && (is_step || !ReadsSteps())) {
      uint64_t longest = column.at("longest_list").get<uint64_t>();
      for (const History& other : histories_) {  // They agree.
        longest = std::max(longest, other.list->at("longest_list").get<uint64_t>());
      }
      absl::StrAppend(&what, what.empty() ? "" : " ",
                      "sequence { max_length: ", std::min(kMaxSequence, longest), " }");
    }
    if (is_step) {
      return absl::StrCat("table: ", Quoted(feature_names_.at(history->own)), " ", what);
    }
    return is_list ? what + " pooling: MEAN" : what;
  }

  // The lists as one sequence.
  void AddSequence() {
    if (histories_.empty()) return;
    std::vector<std::string> of, then;
    for (const History& history : histories_) {
      of.push_back(Quoted(feature_names_.at(history.list)));
      then.push_back(Quoted(feature_names_.at(history.own)));
    }
    Line("# Read step by step, if these lists have one length in each row.");
    Line("sequence { name: ", Quoted(kSequence), " of: [", absl::StrJoin(of, ", "), "]",
         model_ == "din" ? "" : absl::StrCat(" then: [", absl::StrJoin(then, ", "), "]"), " }");
  }

  // A column whose name is no feature's has a stanza of its own.
  void AddToGroup(const Json& column, const std::string& name) {
    const std::string what = CategoricalOf(column);
    const bool is_own = name == FigureText(column, "name");
    if (!group_.empty() && (what != group_what_ || !is_own || !group_is_own_)) EndGroup();
    group_.push_back(&column);
    group_what_ = what;
    group_name_ = name;
    group_is_own_ = is_own;
  }

  void EndGroup() {
    if (group_.empty()) return;
    bool has_many_once = false;
    std::string kind, line;
    for (const Json* column : group_) {
      const double once = Figure(*column, "once_share");
      has_many_once = has_many_once || once > kManyOnce;
      const std::string type = FigureText(*column, "type");
      const std::string own_kind = absl::StrCat(
          column->contains("separator") ? absl::StrCat(type, " of ", FigureText(*column, "id"), "s")
                                        : type,
          "; ", FigureText(*column, "use_why"));
      const std::string about =
          absl::StrCat(OneLine(FigureText(*column, "name")), " (",
                       Figure(*column, "distinct_error") > 0 ? "about " : "",
                       FormatCount(static_cast<uint64_t>(Figure(*column, "distinct"))), " ids",
                       once > kManyOnce ? absl::StrCat(", ", Percent(once), " once") : "",
                       MissingOf(*column), ")");
      if (own_kind == kind && line.size() + about.size() < kCommentWidth) {
        absl::StrAppend(&line, ", ", about);
        continue;
      }
      if (!line.empty()) Line(own_kind == kind ? line + "," : line);
      line = own_kind == kind ? absl::StrCat("#   ", about)
                              : absl::StrCat("# ", own_kind, ": ", about);
      kind = own_kind;
    }
    Line(line);
    if (has_many_once && !is_npy_)
      Line("# `categorical { min_count: 2 }` gives ids that occur once no row.");
    std::vector<std::string> names;
    for (const Json* column : group_) names.push_back(FigureText(*column, "name"));
    if (names.size() == 1) {
      AddFeature(names[0], group_name_, group_what_);
    } else if (is_npy_) {
      for (const std::string& name : names) AddFeature(name, name, group_what_);
    } else {
      Line("feature {\n  column: [", absl::StrJoin(WithRanges(names), ", "), "]\n  ", group_what_,
           "\n}");
    }
    group_.clear();
  }

  void AddHour(const Json& column, const std::string& name) {
    EndGroup();
    const Json& time = column.at("time");
    const std::string own = FigureText(column, "name");
    Line("# ", OneLine(own), ": time, ", FigureText(time, "form"), ", ", FigureText(time, "first"),
         " to ", FigureText(time, "last"), "; the hour of the day");
    AddFeature(own, name,
               absl::StrCat("categorical { substring { start: ", time.at("hour_start").get<int>(),
                            " length: 2 } }"));
  }

  void AddModel() {
    const auto rows = figures_.at("rows").get<uint64_t>();
    const uint64_t batch = rows < 50'000       ? 128
                           : rows < 2'000'000  ? 256
                           : rows < 20'000'000 ? 2048
                                               : 8192;
    const bool multiplies = model_ == "dlrm" || model_ == "deepfm" || model_ == "tbsm";
    if (categorical_ > 0) {
      Line(multiplies
               ? "# One dim for all tables: the model multiplies their rows with each other."
               : "# A table may have a dim of its own: table { name: ... settings { dim: 8 } }.");
    }
    Line("default_table {");
    Line("  dim: ", figures_.at("dim").get<int>());
    Line("  init_scale: 0.03\n  optimizer { adagrad {} }\n}\n");
    Line(Stanza());
    Line("train {");
    Line("  batch_size: ", batch);
    Line("  learning_rate { base: 0.02 }  # try 0.01 and 0.05, too\n}\n");
    Line(
        "# A checkpoint of the trained model, in the run directory; `every_steps: 1000` writes "
        "more on");
    Line("# the way, so that a killed process costs at most so many steps.");
    Line("checkpoint {}");
  }

  std::string Stanza() const {
    std::string text;
    const auto line = [&text](const auto&... words) { absl::StrAppend(&text, words..., "\n"); };
    line(model_, " {");
    if (model_ == "dlrm") {
      if (numeric_ > 0) line("  bottom: [256, 64]");
      line("  top: [256, 128]");
    } else if (model_ == "finalmlp") {
      line("  first: [256, 128]");
      line("  second: [256, 128]");
      line("  heads: 4  # divides the last width of both");
      line("  # gate: [64] weighs each stream's inputs, by features that first_gate_by and");
      line("  # second_gate_by may name (those of the user, those of the item).");
    } else if (model_ == "tbsm") {
      if (numeric_ > 0) line("  bottom: [64]");
      line("  top: [64, 16]");
      line("  head: [64]");
    } else if (model_ == "mmoe" || model_ == "ple") {
      line(model_ == "mmoe" ? "  experts: 4" : "  shared_experts: 2\n  task_experts: 2");
      line("  expert: [128, 64]");
      line("  tower: [64]  # ",
           Labels().size() > 1 ? "for each label" : "for each label: --label a,b has several");
    } else {
      if (model_ == "dcnv2") {
        // A full matrix has the square of the input's width.
        const int width = numeric_ + categorical_ * figures_.at("dim").get<int>();
        line("  cross_layers: 3");
        line(width > kWideCross ? "  cross_rank: 64"
                                : "  # cross_rank: 64  # in place of full matrices");
      }
      if (model_ == "din") line("  attention: [36]");
      if (model_ == "bst") line("  heads: 2\n  positions: 32");
      line("  deep: [256, 128, 64]");
    }
    if (model_ != "dlrm" && model_ != "tbsm")
      line("  # dropout: 0.2  # where the held-out rows get worse in a pass");
    if (model_ == "wide_deep") {
      line("  # wide_optimizer { ftrl { l1: 0.001 } }  # as in the paper: many weights stay 0");
    }
    line("}");
    return text;
  }

  // Names that no feature can have: words of the model's inputs, its layers and its sequence. What
  // the layers are named depends on no more of the features than that there are some.
  std::set<std::string> TakenNames() const {
    Job job;
    CHECK(google::protobuf::TextFormat::ParseFromString(Stanza(), &job));
    for (const Json& label : Labels()) {
      job.mutable_data()->mutable_label()->add_column(FigureText(label, "column"));
    }
    ModelInputs inputs;
    inputs.numeric = numeric_;
    inputs.features = {{"own", "table", 1}};
    if (ReadsSteps()) {
      Sequence* const sequence = job.add_sequence();
      sequence->set_name(kSequence);
      sequence->add_of("steps");
      inputs.features.push_back({"steps", "table", 1, /*is_sequence=*/true, /*sequence=*/0});
      inputs.sequences = {{kSequence, /*first_feature=*/1, /*features=*/1}};
    }
    ExpandPreset(inputs, &job);
    std::set<std::string> names = {"numeric", "categorical", "fields"};
    for (const Layer& layer : job.layer()) names.insert(layer.name());
    for (const Sequence& sequence : job.sequence()) names.insert(sequence.name());
    return names;
  }

  const Json& figures_;
  const std::vector<std::string>& paths_;
  const std::string& file_;
  const std::string& model_;
  const bool is_partial_;
  const bool is_npy_;
  const Json* split_ = nullptr;  // The column that splits the rows.
  const Json* time_ = nullptr;
  std::vector<History> histories_;                    // Only for a model that reads steps.
  std::map<const Json*, std::string> feature_names_;  // By column.
  int numeric_ = 0, categorical_ = 0;
  // Columns of which the next stanza is made, what it says of them, and the name of the last one's
  // feature, which may not be the column's own.
  std::vector<const Json*> group_;
  std::string group_what_, group_name_;
  bool group_is_own_ = false;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> DraftJob(const Json& figures, const std::vector<std::string>& paths,
                                     const std::string& file, const std::string& model) {
  return Draft(figures, paths, file, model).Write();
}

}  // namespace thermocline
