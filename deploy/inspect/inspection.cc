#include "deploy/inspect/inspection.h"

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/inspect/suggestions.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

uint64_t Count(const Json& json, const char* name) { return json.at(name).get<uint64_t>(); }

// As it would stand in a job file, and cut to what fits a table. A column may have no name.
std::string Cell(const std::string& text) {
  constexpr size_t kMost = 28;
  if (text.empty()) return "(no name)";
  const std::string escaped = absl::Utf8SafeCEscape(text);
  return escaped.size() <= kMost ? escaped : escaped.substr(0, kMost - 3) + "...";
}

std::string PercentCell(double share) {
  if (share == 0) return "-";
  return share < 0.01 ? absl::StrFormat("%.1g%%", 100 * share)
                      : absl::StrFormat("%.0f%%", 100 * share);
}

std::string NumberCell(double value) { return absl::StrFormat("%.4g", value); }

std::string DescribeFiles(const Json& figures) {
  std::string text = FigureText(figures, "format");
  if (figures.contains("separator")) {
    absl::StrAppend(&text, ", separator \"", absl::CEscape(FigureText(figures, "separator")),
                    "\", ", figures.at("header").get<bool>() ? "with" : "without", " a header");
  }
  const uint64_t files = Count(figures, "files");
  return absl::StrCat(text, ", ", files, files == 1 ? " file, " : " files, ",
                      FormatBytes(Count(figures, "bytes")));
}

std::string DescribeRows(const Json& figures) {
  std::string text =
      absl::StrCat(FormatCount(Count(figures, "rows")), " rows",
                   figures.at("complete").get<bool>() ? "" : ", the first ones; there are more",
                   ", ", figures.at("columns").size(), " columns");
  const uint64_t bad = Count(figures, "malformed_rows");
  if (bad > 0) absl::StrAppend(&text, ", ", FormatCount(bad), " rows are malformed");
  if (figures.contains("first_malformed")) {
    absl::StrAppend(&text, ": ", FigureText(figures, "first_malformed"));
  }
  if (figures.contains("repeated_headers")) {
    absl::StrAppend(&text, ", ", FormatCount(Count(figures, "repeated_headers")),
                    " lines are the header again, and are skipped");
  }
  return text;
}

// Columns that no feature can read.
std::string DescribeLeftOut(const Json& figures) {
  std::vector<std::string> columns;
  if (figures.contains("left_out")) {
    for (const Json& column : figures.at("left_out")) {
      columns.push_back(
          absl::StrCat(FigureText(column, "name"), " (", FigureText(column, "type"), ")"));
    }
  }
  return columns.empty() ? "" : absl::StrCat("left out: ", absl::StrJoin(columns, ", "), "\n");
}

std::string DescribeLabel(const Json& figures) {
  if (!figures.contains("label")) {
    return absl::StrCat("label: ", FigureText(figures, "label_question"));
  }
  std::vector<std::string> lines;
  for (const Json& label : LabelsOf(figures)) {
    std::string text = absl::StrCat("label: ", FigureText(label, "column"));
    if (label.contains("positive")) {
      absl::StrAppend(&text, " (",
                      absl::StrJoin(label.at("positive").get<std::vector<std::string>>(), ", "),
                      " are 1)");
    }
    lines.push_back(absl::StrCat(text, absl::StrFormat(", rate %.4f; ", Figure(label, "rate")),
                                 FigureText(label, "why")));
  }
  return absl::StrJoin(lines, "\n");
}

std::string Warnings(const Json& figures) {
  std::string text;
  for (const Json& warning : figures.value("warnings", Json::array())) {
    absl::StrAppend(&text, "warning: ", warning.get<std::string>(), "\n");
  }
  return text;
}

std::string Distinct(const Json& column) {
  if (!column.contains("distinct")) return "";
  const double error = Figure(column, "distinct_error");
  const std::string count = FormatCount(static_cast<uint64_t>(Figure(column, "distinct")));
  return error == 0 ? count : absl::StrFormat("~%s (2 sd %.1f%%)", count, 100 * error);
}

Rows ColumnRows(const Json& figures) {
  Rows rows = {{"column", "type", "missing", "distinct", "top 1%", "once", "use", "table"}, {}};
  for (const Json& column : figures.at("columns")) {
    const bool is_id = column.contains("distinct") && column.at("use") != kUseNumeric;
    rows.push_back(
        {Cell(FigureText(column, "name")), FigureText(column, "type"),
         PercentCell(Figure(column, "missing") / std::max(1.0, Figure(column, "rows"))),
         Distinct(column), is_id ? PercentCell(Figure(column, "top_1_percent_share")) : "",
         is_id ? PercentCell(Figure(column, "once_share")) : "", FigureText(column, "use"),
         column.contains("table_bytes") ? FormatBytes(Count(column, "table_bytes")) : ""});
  }
  return rows;
}

Rows NumberRows(const Json& figures) {
  Rows rows = {{"numbers", "min", "max", "mean", "std", "log1p mean", "log1p std", "skewness"}, {}};
  for (const Json& column : figures.at("columns")) {
    if (column.at("use") != kUseNumeric || !column.contains("numbers")) continue;
    const Json& numbers = column.at("numbers");
    rows.push_back({Cell(FigureText(column, "name")), NumberCell(Figure(numbers, "min")),
                    NumberCell(Figure(numbers, "max")), NumberCell(Figure(numbers, "mean")),
                    NumberCell(Figure(numbers, "std")), NumberCell(Figure(numbers, "log1p_mean")),
                    NumberCell(Figure(numbers, "log1p_std")),
                    NumberCell(Figure(numbers, "skewness"))});
  }
  return rows;
}

std::string Reasons(const Json& figures) {
  std::string text;
  for (const Json& column : figures.at("columns")) {
    absl::StrAppend(&text, "  ", Cell(FigureText(column, "name")), ": ", FigureText(column, "type"),
                    ", since ", FigureText(column, "why"));
    if (column.contains("time")) {
      const Json& time = column.at("time");
      absl::StrAppend(&text, "; ", FigureText(time, "first"), " to ", FigureText(time, "last"),
                      Count(time, "descents") == 0 ? ", in order" : ", not in order");
    }
    absl::StrAppend(&text, "; ", FigureText(column, "use"));
    if (column.contains("use_why")) absl::StrAppend(&text, ": ", FigureText(column, "use_why"));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace

ProgramCommand InspectionCommand(const std::string& program, const InspectionRequest& request) {
  ProgramCommand command;
  command.path = program;
  command.activity = "reading the log";
  command.arguments = {absl::StrCat("--rows=", request.max_rows),
                       "--s3=" + request.s3,
                       "--separator=" + request.separator,
                       "--columns=" + request.columns,
                       "--counted=" + request.counted,
                       "--"};
  command.arguments.insert(command.arguments.end(), request.paths.begin(), request.paths.end());
  return command;
}

std::string RenderInspection(const Json& figures) {
  uint64_t table_bytes = 0;
  for (const Json& column : figures.at("columns")) {
    if (column.contains("table_bytes")) table_bytes += Count(column, "table_bytes");
  }
  std::string text = absl::StrCat(DescribeFiles(figures), "\n", DescribeRows(figures), "\n",
                                  DescribeLeftOut(figures), DescribeLabel(figures), "\n",
                                  Warnings(figures), "\n", FormatTable(ColumnRows(figures)));
  const Rows numbers = NumberRows(figures);
  if (numbers.size() > 2) absl::StrAppend(&text, "\n", FormatTable(numbers));
  absl::StrAppend(&text, "\nwhy:\n", Reasons(figures));
  absl::StrAppend(&text,
                  "\ntop 1%: share of the lookups that the most frequent 1% of the ids take; "
                  "once: share of the ids that occur once.\n");
  if (table_bytes > 0) {
    absl::StrAppend(&text, "tables: ", FormatBytes(table_bytes), " of memory with dim ",
                    figures.at("dim").get<int>(), " and Adagrad, over all servers.\n");
  }
  return text;
}

}  // namespace thermocline
