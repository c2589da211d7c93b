// The figures of a sweep as tables and CSV.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/bench/sweep.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

// What a step's time goes to.
struct StageGroup {
  const char* name;
  std::vector<const char*> stages;
};

std::vector<StageGroup> StageGroups() {
  return {{"data", {"wait for data"}},
          {"rows in", {"wait for rows"}},
          {"model", {"forward", "backward to embeddings", "backward dense", "wait for device"}},
          {"rows out", {"push embeddings", "update rows"}},
          {"dense", {"dense update", "push dense"}}};
}

double SecondsOf(const RunFigures& run, const StageGroup& group) {
  double sum = 0;
  for (const auto& [name, us] : run.stage_us) {
    for (const char* stage : group.stages) sum += name == stage ? us : 0;
  }
  return sum;
}

std::string Device(const std::optional<double>& bytes) {
  return bytes ? absl::StrFormat("%.0f", *bytes) : "-";
}

}  // namespace

std::string RenderSweep(const std::vector<SweepPoint>& points) {
  std::vector<std::vector<std::string>> rows = {
      {"knob", "value", "samples/s", "/ base", "wire B", "device B", "us a sample:"}};
  const std::vector<StageGroup> groups = StageGroups();
  for (const StageGroup& group : groups) rows[0].push_back(group.name);
  double base = 0;
  std::string last;
  for (const SweepPoint& point : points) {
    if (point.knob != last) rows.emplace_back();
    last = point.knob;
    std::vector<std::string> row = {point.knob, point.value};
    if (point.figures.has_value()) {
      const RunFigures& run = *point.figures;
      if (point.knob == "base") base = run.samples_per_s;
      row.push_back(absl::StrFormat("%.0f", run.samples_per_s));
      row.push_back(base > 0 ? absl::StrFormat("%.2f", run.samples_per_s / base) : "-");
      row.push_back(absl::StrFormat("%.0f", run.wire_bytes_per_sample));
      row.push_back(Device(run.device_bytes_per_sample));
      row.push_back("");
      for (const StageGroup& group : groups) {
        row.push_back(absl::StrFormat("%.2f", SecondsOf(run, group)));
      }
    } else {
      row.push_back("-");
    }
    rows.push_back(std::move(row));
  }
  std::string text = FormatTable(rows);
  for (const SweepPoint& point : points) {
    if (point.absence.empty()) continue;
    absl::StrAppend(&text, point.knob, " ", point.value, ": ", point.absence, "\n");
  }
  return text;
}

std::string SweepCsv(const std::vector<SweepPoint>& points) {
  std::vector<std::string> stages;
  for (const SweepPoint& point : points) {
    if (!point.figures.has_value()) continue;
    for (const auto& [name, us] : point.figures->stage_us) {
      if (std::find(stages.begin(), stages.end(), name) == stages.end()) stages.push_back(name);
    }
  }
  std::string text =
      "knob,value,dense,sparse,lookups,hash,dim,batch,width,layers,placement,device,steps,"
      "samples_per_s,wire_bytes_per_sample,device_bytes_per_sample,hit_rate,absence";
  for (const std::string& stage : stages) absl::StrAppend(&text, ",us ", stage);
  absl::StrAppend(&text, "\n");
  for (const SweepPoint& point : points) {
    const SweepShape& shape = point.shape;
    const RunFigures run = point.figures.value_or(RunFigures());
    const bool is_run = point.figures.has_value();
    std::vector<std::string> row = {point.knob,
                                    CsvCell(point.value),
                                    absl::StrCat(shape.dense),
                                    absl::StrCat(shape.sparse),
                                    absl::StrCat(shape.lookups),
                                    absl::StrCat(shape.hash),
                                    absl::StrCat(shape.dim),
                                    absl::StrCat(shape.batch),
                                    absl::StrCat(shape.width),
                                    absl::StrCat(shape.layers),
                                    CsvCell(shape.placement),
                                    CsvCell(run.device),
                                    is_run ? absl::StrCat(run.steps) : "",
                                    is_run ? CsvCell(run.samples_per_s) : "",
                                    is_run ? CsvCell(run.wire_bytes_per_sample) : "",
                                    CsvCell(run.device_bytes_per_sample),
                                    CsvCell(run.hit_rate),
                                    CsvCell(point.absence)};
    for (const std::string& stage : stages) {
      const auto found = std::find_if(run.stage_us.begin(), run.stage_us.end(),
                                      [&stage](const auto& each) { return each.first == stage; });
      row.push_back(found == run.stage_us.end() ? "" : CsvCell(found->second));
    }
    absl::StrAppend(&text, absl::StrJoin(row, ","), "\n");
  }
  return text;
}

}  // namespace thermocline
