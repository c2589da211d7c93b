#include "deploy/inspect/job_draft.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/console/format.h"
#include "deploy/inspect/suggestions.h"

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

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::CEscape(text), "\"");
}

// A short number that is read back near enough.
std::string Short(double value) { return absl::StrFormat("%.6g", value); }

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

class Draft {
 public:
  Draft(const Json& figures, const std::vector<std::string>& paths, const std::string& file)
      : figures_(figures),
        paths_(paths),
        file_(file),
        // What was not read may be anything: ids are hashed as text, and numbers may be missing.
        is_partial_(!figures.at("complete").get<bool>()),
        is_npy_(figures.at("format") == "npy") {}

  absl::StatusOr<std::string> Write() {
    if (!figures_.contains("label")) {
      return absl::FailedPreconditionError(FigureText(figures_, "label_question"));
    }
    FindSplit();
    AddHead();
    is_npy_ ? AddNpyData() : AddData();
    if (!is_npy_) AddFeatures();
    if (numeric_ + categorical_ == 0) {
      return absl::FailedPreconditionError("no column but the label is of use as a feature");
    }
    AddModel();
    return text_;
  }

 private:
  void Line(const std::string& line) { absl::StrAppend(&text_, line, "\n"); }

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

  void AddHead() {
    Line(absl::StrCat("# Drafted by `thermocline inspect` from ", is_partial_ ? "the first " : "",
                      FormatCount(figures_.at("rows")), " rows of ", OneLine(paths_[0]),
                      paths_.size() > 1 ? absl::StrCat(" and ", paths_.size() - 1, " more") : "",
                      "."));
    Line("# It trains as it is; look at what it guessed, and change it:");
    Line("#");
    Line(absl::StrCat("#   thermocline train ", OneLine(file_)));
    Line("#   thermocline plan ", OneLine(file_));
    std::set<std::string> none;
    const std::string stem = std::filesystem::path(file_).stem().string();
    Line(absl::StrCat("name: ", Quoted(NameOf(stem, &none))));
    Line("seed: 1\n");
  }
  void Line(const std::string& a, const std::string& b) { Line(absl::StrCat(a, b)); }

  void AddNpyData() {
    for (const Json& column : figures_.at("columns")) Count(column);
    Line("data {\n  format: DLRM_NPY");
    Line(absl::StrCat("  path: ", Quoted(paths_[0])));
    Line(absl::StrCat("  num_dense: ", numeric_));
    Line(absl::StrCat("  num_categorical: ", categorical_));
    if (!figures_.at("has_test_rows").get<bool>()) {
      Line(absl::StrCat("  test_share: ", kTestShare, "  # the last rows are held out"));
    }
    AddBadLines();
    Line("}\n");
  }

  void AddBadLines() {
    const auto bad = figures_.at("malformed_rows").get<uint64_t>();
    const uint64_t unlabelled = UnlabelledRows();
    if (bad + unlabelled == 0) return;
    Line(absl::StrCat("  max_bad_lines: ", 2 * (bad + unlabelled) + 10, "  # found: ", bad,
                      " malformed, ", unlabelled, " without a label",
                      figures_.contains("first_malformed")
                          ? absl::StrCat("; ", OneLine(FigureText(figures_, "first_malformed")))
                          : ""));
  }

  uint64_t UnlabelledRows() const {
    for (const Json& column : figures_.at("columns")) {
      if (column.at("use") == kUseLabel) return column.at("missing").get<uint64_t>();
    }
    return 0;
  }

  void AddData() {
    Line("data {\n  train {");
    for (const std::string& path : paths_) Line(absl::StrCat("    path: ", Quoted(path)));
    if (figures_.at("format") == "criteo_tsv") {
      Line("    criteo_tsv {}");
    } else if (figures_.at("format") == "parquet") {
      Line("    parquet {}");
    } else {
      AddCsv();
    }
    Line("  }");
    AddSplit();
    AddLabel();
    AddBadLines();
    Line("  # Rows that stand in no order of their own may change places:");
    Line("  # shuffle { block_rows: 100000 }");
    Line("}\n");
  }

  void AddCsv() {
    const bool has_header = figures_.at("header").get<bool>();
    Line("    csv {");
    if (figures_.at("separator") != ",") {
      Line(absl::StrCat("      separator: ", Quoted(FigureText(figures_, "separator"))));
    }
    if (!figures_.at("quotes").get<bool>()) Line("      quotes: false");
    if (has_header) {
      Line("      header: true");
    } else {
      std::vector<std::string> names;
      for (const Json& column : figures_.at("columns"))
        names.push_back(Quoted(FigureText(column, "name")));
      Line(absl::StrCat("      column: [", absl::StrJoin(names, ", "), "]"));
    }
    Line("    }");
  }

  void AddSplit() {
    if (split_ != nullptr) {
      const Json& time = split_->at("time");
      Line(absl::StrCat("  # The rows are not in the order of time: the latest ",
                        Percent(Figure(time, "test_share")), " are held out."));
      Line(absl::StrCat("  split { column: ", Quoted(FigureText(*split_, "name")),
                        " test_from: ", Quoted(FigureText(time, "test_from")), " }"));
      Line(absl::StrCat("  # or the last rows, wherever they are in time: split { last_share: ",
                        kTestShare, " }"));
      return;
    }
    Line(absl::StrCat("  split { last_share: ", kTestShare, " }  # the last rows are held out",
                      time_ != nullptr ? ", which are the latest" : ""));
    if (time_ != nullptr) {
      Line(absl::StrCat("  # or by time: split { column: ", Quoted(FigureText(*time_, "name")),
                        " test_from: ", Quoted(FigureText(time_->at("time"), "test_from")), " }"));
    }
  }

  void AddLabel() {
    const Json& label = figures_.at("label");
    std::string line = absl::StrCat("  label { column: ", Quoted(FigureText(label, "column")));
    if (label.contains("positive")) {
      std::vector<std::string> texts;
      for (const Json& text : label.at("positive"))
        texts.push_back(Quoted(text.get<std::string>()));
      absl::StrAppend(&line, " positive: [", absl::StrJoin(texts, ", "), "]");
    }
    absl::StrAppend(&line, " }  # ", FigureText(label, "why"));
    if (label.contains("rate"))
      absl::StrAppend(&line, "; ", Percent(Figure(label, "rate")), " are 1");
    Line(line);
  }

  void Count(const Json& column) {
    numeric_ += column.at("use") == kUseNumeric ? 1 : 0;
    categorical_ += column.at("use") == kUseCategorical || column.at("use") == kUseHour ? 1 : 0;
  }

  void AddFeatures() {
    std::set<std::string> names;
    for (const Json& column : figures_.at("columns")) {
      Count(column);
      if (column.at("use") == kUseNumeric) AddNumeric(column, &names);
      if (column.at("use") == kUseCategorical) AddCategorical(column, &names);
      if (column.at("use") == kUseHour) AddHour(column, &names);
      if (column.at("use") == kUseNone) {
        Line(absl::StrCat("# Left out: ", OneLine(FigureText(column, "name")), ", ",
                          FigureText(column, "use_why"), "."));
      }
    }
    Line("");
  }

  // "feature {" with the column, and its name where the column's own will not do.
  void BeginFeature(const Json& column, const std::string& about, std::set<std::string>* names) {
    const std::string own = FigureText(column, "name");
    const std::string name = NameOf(own, names);
    Line(absl::StrCat("# ", OneLine(own), ": ", about));
    Line("feature {");
    if (name != own) Line(absl::StrCat("  name: ", Quoted(name)));
    Line(absl::StrCat("  column: ", Quoted(own)));
  }

  std::string MissingOf(const Json& column) const {
    const double share = Figure(column, "missing") / Figure(column, "rows");
    return share == 0 ? "" : absl::StrCat(", ", Percent(share), " missing");
  }

  void AddNumeric(const Json& column, std::set<std::string>* names) {
    const Json& numbers = column.at("numbers");
    const bool is_skewed = Figure(numbers, "skewness") > kSkewed && Figure(numbers, "min") >= -10;
    const double mean = Figure(numbers, is_skewed ? "log1p_mean" : "mean");
    const double std = Figure(numbers, is_skewed ? "log1p_std" : "std");
    BeginFeature(column,
                 absl::StrCat(FigureText(column, "type"), ", ", Short(Figure(numbers, "min")),
                              " to ", Short(Figure(numbers, "max")), is_skewed ? ", skewed" : "",
                              MissingOf(column), "; ", FigureText(column, "use_why")),
                 names);
    std::string line = "  numeric {";
    if (column.at("missing") > 0 || is_partial_) {
      // A missing number counts as an average one.
      absl::StrAppend(&line, " missing: ", Short(is_skewed ? std::expm1(mean) : mean));
    }
    if (is_skewed) absl::StrAppend(&line, " transform { log1p {} }");
    if (std > 0) {
      absl::StrAppend(&line, " transform { standardize { mean: ", Short(mean), " std: ", Short(std),
                      " } }");
    }
    Line(line + " }");
    Line("}");
  }

  void AddCategorical(const Json& column, std::set<std::string>* names) {
    const std::string type = FigureText(column, "type");
    const bool is_list = column.contains("separator");
    const std::string id = is_list ? FigureText(column, "id") : type;
    std::string about =
        absl::StrCat(is_list ? absl::StrCat(type, " of ", id, "s") : type, ", ",
                     Figure(column, "distinct_error") > 0 ? "about " : "",
                     FormatCount(static_cast<uint64_t>(Figure(column, "distinct"))), " ids",
                     MissingOf(column), "; ", FigureText(column, "use_why"));
    BeginFeature(column, about, names);
    const bool is_text = is_partial_ || (id != "integer" && id != "hex");
    std::string line = absl::StrCat("  categorical { id: ", is_text       ? "STRING"
                                                            : id == "hex" ? "HEX"
                                                                          : "INTEGER");
    if (type == "list") {
      if (column.at("separator") != "") {
        absl::StrAppend(&line, " separator: ", Quoted(FigureText(column, "separator")));
      }
      absl::StrAppend(&line, " missing: NO_KEY");
    } else if (type == "sequence" && column.at("separator") != "|" &&
               column.at("separator") != "") {
      absl::StrAppend(&line, " separator: ", Quoted(FigureText(column, "separator")));
    }
    Line(line + " }");
    if (type == "sequence") {
      Line(absl::StrCat("  sequence { max_length: ",
                        std::min(kMaxSequence, column.at("longest_list").get<uint64_t>()), " }"));
    }
    if (is_list) Line("  pooling: MEAN");
    if (Figure(column, "once_share") > kManyOnce) {
      Line(absl::StrCat("  # ", Percent(Figure(column, "once_share")),
                        " of the ids occur once; `categorical { min_count: 2 }` gives those no "
                        "row."));
    }
    Line("}");
  }

  void AddHour(const Json& column, std::set<std::string>* names) {
    const Json& time = column.at("time");
    Line(absl::StrCat("# ", OneLine(FigureText(column, "name")), ": time, ",
                      FigureText(time, "form"), ", ", FigureText(time, "first"), " to ",
                      FigureText(time, "last"), "; the hour of the day"));
    Line("feature {");
    const std::string name = NameOf("hour_of_day", names);
    Line(absl::StrCat("  name: ", Quoted(name)));
    Line(absl::StrCat("  column: ", Quoted(FigureText(column, "name"))));
    Line(absl::StrCat("  categorical { substring { start: ", time.at("hour_start").get<int>(),
                      " length: 2 } }"));
    Line("}");
  }

  void AddModel() {
    const auto rows = figures_.at("rows").get<uint64_t>();
    const uint64_t batch = rows < 50'000       ? 128
                           : rows < 2'000'000  ? 256
                           : rows < 20'000'000 ? 2048
                                               : 8192;
    if (categorical_ > 0) {
      Line("# One dim for all tables: DLRM multiplies their rows with each other.");
    }
    Line("default_table {");
    Line(absl::StrCat("  dim: ", figures_.at("dim").get<int>()));
    Line("  init_scale: 0.03\n  optimizer { adagrad {} }\n}\n");
    Line("dlrm {");
    if (numeric_ > 0) Line("  bottom: [256, 64]");
    Line("  top: [256, 128]\n}\n");
    Line("train {");
    Line(absl::StrCat("  batch_size: ", batch));
    Line("  learning_rate { base: 0.02 }  # try 0.01 and 0.05, too\n}\n");
    Line(
        "# A checkpoint of the trained model, in the run directory; `every_steps: 1000` writes "
        "more on");
    Line("# the way, so that a killed process costs at most so many steps.");
    Line("checkpoint {}");
  }

  const Json& figures_;
  const std::vector<std::string>& paths_;
  const std::string& file_;
  const bool is_partial_;
  const bool is_npy_;
  const Json* split_ = nullptr;  // The column that splits the rows.
  const Json* time_ = nullptr;
  int numeric_ = 0, categorical_ = 0;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> DraftJob(const Json& figures, const std::vector<std::string>& paths,
                                     const std::string& file) {
  return Draft(figures, paths, file).Write();
}

}  // namespace thermocline
