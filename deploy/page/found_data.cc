// What `inspect`, `calibrate` and the packing of hot rows have found in the data of a run.
#include <initializer_list>
#include <utility>

#include "deploy/page/run_document.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxColumns = 4096;

// The elements of an array that have a number called `needs`, as columns; null: there is none.
// `numbers`: what each is called in the document, and in the file.
Json ColumnsFrom(const Json& elements, const char* needs, bool has_name,
                 std::initializer_list<std::pair<const char*, const char*>> numbers) {
  Json columns;
  if (!elements.is_array()) return columns;
  for (const Json& element : elements) {
    if (!NumberAt(element, needs)) continue;
    if (has_name) columns["name"].push_back(TextAt(element, "name"));
    for (const auto& [name, in_file] : numbers) {
      columns[name].push_back(ShortNumber(NumberAt(element, in_file)));
    }
    if (columns.front().size() >= kMaxColumns) break;
  }
  return columns;
}

Json PartOf(const Json& object, const char* name) {
  return object.is_object() ? object.value(name, Json()) : Json();
}

}  // namespace

Json FoundInData(const RunHistory& history, const RunFiles& files) {
  return {
      {"columns", ColumnsFrom(PartOf(files.inspection, "columns"), "top_1_percent_share", true,
                              {{"distinct", "distinct"},
                               {"top_share", "top_1_percent_share"},
                               {"once_share", "once_share"}})},
      {"hot_tables",
       ColumnsFrom(PartOf(history.pack, "tables"), "hot_rows", true,
                   {{"rows", "rows"}, {"hot_rows", "hot_rows"}, {"lookup_share", "lookup_share"}})},
      {"curve", ColumnsFrom(files.calibration, "lookup_share", false,
                            {{"budget_bytes", "budget_bytes"},
                             {"hot_rows", "hot_rows"},
                             {"lookup_share", "lookup_share"},
                             {"sample_share", "hot_sample_share"}})}};
}

}  // namespace thermocline
