// The page for a browser without JavaScript: the figures as tables.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/page/page_html.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

constexpr size_t kMaxProgressRows = 40, kMaxEvaluationRows = 40, kMaxEventRows = 60,
                 kMaxTableRows = 200;

// A number as a cell: counts with commas, others with four digits.
std::string CellOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "";
  if (!value.is_number()) return "";
  const auto number = value.get<double>();
  const bool is_count = number >= 0 && (number == std::round(number) || number >= 1e4);
  return is_count ? FormatCount(static_cast<uint64_t>(std::llround(number)))
                  : absl::StrFormat("%.4g", number);
}

std::string TimeOf(const Json& value) {
  return value.is_number() ? FormatSeconds(value.get<double>()) : "";
}

std::string RenderTable(const std::string& caption, const Row& head, const std::vector<Row>& rows) {
  std::string text = absl::StrCat("<div class=\"scroll\"><table><caption>", EscapeHtml(caption),
                                  "</caption><thead><tr>");
  for (const std::string& name : head) {
    absl::StrAppend(&text, "<th scope=\"col\">", EscapeHtml(name), "</th>");
  }
  absl::StrAppend(&text, "</tr></thead><tbody>");
  for (const Row& row : rows) {
    absl::StrAppend(&text, "<tr>");
    for (const std::string& cell : row) absl::StrAppend(&text, "<td>", EscapeHtml(cell), "</td>");
    absl::StrAppend(&text, "</tr>\n");
  }
  return absl::StrCat(text, "</tbody></table></div>\n");
}

// Two runs of one job differ in their directories alone.
std::string RenderHead(const Json& run, bool is_one_of_two) {
  const Json& state = run["state"];
  const std::string name = CellOf(run["job"]["name"]), label = CellOf(run["label"]);
  std::string text = absl::StrCat("<h1>", EscapeHtml(name),
                                  is_one_of_two ? EscapeHtml(absl::StrCat(" (", label, ")")) : "",
                                  "</h1>\n<p><strong>", EscapeHtml(CellOf(state["title"])),
                                  "</strong>: ", EscapeHtml(CellOf(state["why"])), "</p>\n");
  for (const Json& next : state["next"]) {
    absl::StrAppend(&text, "<p>", EscapeHtml(CellOf(next[0])));
    if (next[1].is_string()) {
      absl::StrAppend(&text, ": <code>", EscapeHtml(CellOf(next[1])), "</code>");
    }
    absl::StrAppend(&text, "</p>\n");
  }
  for (const Json& note : run["notes"]) {
    absl::StrAppend(&text, "<p class=\"note\">", EscapeHtml(CellOf(note)), "</p>\n");
  }
  return text;
}

std::string RenderResult(const Json& run) {
  std::vector<Row> rows;
  for (const Json& figure : run["figures"]) {
    rows.push_back({CellOf(figure[0]), CellOf(figure[1]), CellOf(figure[2])});
  }
  return RenderTable("Result", {"figure", "value", ""}, rows);
}

std::string RenderProgress(const Json& progress) {
  const size_t points = progress["step"].size();
  if (points == 0) return "";
  Row head = {"steps", "time"};
  std::vector<const Json*> columns;
  for (const auto& [name, column] : progress["mean"].items()) {
    if (name.rfind("stage ", 0) == 0) continue;
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    head.push_back(words);
    columns.push_back(&column);
  }
  const size_t every = (points + kMaxProgressRows - 1) / kMaxProgressRows;
  std::vector<Row> rows;
  for (size_t i = 0; i < points; ++i) {
    if (i % every != 0 && i + 1 != points) continue;
    Row& row = rows.emplace_back(Row{CellOf(progress["step"][i]), TimeOf(progress["t"][i])});
    for (const Json* column : columns) row.push_back(CellOf((*column)[i]));
  }
  return RenderTable("Progress", head, rows);
}

// The last rows of columns.
std::string RenderColumns(const std::string& caption, const Json& columns, const Row& names,
                          size_t at_most, bool takes_first) {
  const size_t size = columns[names[0]].size();
  if (size == 0) return "";
  const size_t begin = takes_first || size <= at_most ? 0 : size - at_most;
  Row head = names;
  for (std::string& name : head) std::replace(name.begin(), name.end(), '_', ' ');
  std::vector<Row> rows;
  for (size_t i = begin; i < std::min(size, begin + at_most); ++i) {
    Row& row = rows.emplace_back();
    for (const std::string& name : names) row.push_back(CellOf(columns[name][i]));
  }
  return RenderTable(caption, head, rows);
}

std::string RenderEvents(const Json& events) {
  std::vector<Row> rows;
  for (size_t i = events.size() - std::min(events.size(), kMaxEventRows); i < events.size(); ++i) {
    rows.push_back({TimeOf(events[i][0]), CellOf(events[i][1]), CellOf(events[i][2])});
  }
  return rows.empty() ? "" : RenderTable("Events", {"time", "event", "what"}, rows);
}

std::string RenderComparison(const Json& document) {
  const Json compare = document.value("compare", Json());
  if (!compare.is_object()) return "";
  Row head = {"field"};
  for (const Json& run : document["runs"]) head.push_back(CellOf(run["label"]));
  std::vector<Row> rows;
  for (const Json& field : compare["fields"]) {
    rows.push_back({CellOf(field[0]), CellOf(field[1]), CellOf(field[2])});
  }
  return RenderTable("Differing fields of the jobs", head, rows);
}

}  // namespace

std::string RenderStaticTables(const Json& document) {
  std::string text;
  for (const Json& run : document["runs"]) {
    absl::StrAppend(
        &text, RenderHead(run, document["runs"].size() > 1), RenderResult(run),
        RenderProgress(run["progress"]),
        RenderColumns("Evaluations", run["evals"], {"step", "auc", "logloss", "is_best"},
                      kMaxEvaluationRows, false),
        RenderEvents(run["events"]),
        RenderColumns("Tables", run["tables"],
                      {"name", "dim", "rows", "bytes", "spilled", "skew", "forgotten"},
                      kMaxTableRows, true),
        RenderColumns("Servers", run["processes"]["servers"],
                      {"name", "host", "rows", "bytes", "pull_p50", "pull_p99", "push_p99"},
                      kMaxTableRows, true),
        RenderColumns("Workers", run["processes"]["workers"],
                      {"name", "host", "samples", "samples_per_s", "bytes"}, kMaxTableRows, true));
  }
  return text + RenderComparison(document);
}

}  // namespace thermocline
