// The figures of arms as tables and CSV.
#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/bench/arms.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

using Row = std::vector<std::string>;
using Figure = std::function<std::optional<double>(const RunFigures& run)>;

constexpr char kNone[] = "-";

std::vector<double> ValuesOf(const ArmRuns& arm, const Figure& figure) {
  std::vector<double> values;
  for (const RunFigures& run : arm.runs) {
    if (const auto value = figure(run)) values.push_back(*value);
  }
  return values;
}

std::optional<double> MedianOf(const ArmRuns& arm, const Figure& figure) {
  const auto spread = SpreadOf(ValuesOf(arm, figure));
  return spread ? std::optional<double>(spread->median) : std::nullopt;
}

std::string Text(std::optional<double> value, int digits) {
  return value ? absl::StrFormat("%.*f", digits, *value) : kNone;
}

std::string Percent(std::optional<double> share) {
  return share ? absl::StrFormat("%.1f%%", 100 * *share) : kNone;
}

std::string Range(const ArmRuns& arm, int digits, const Figure& figure) {
  const auto spread = SpreadOf(ValuesOf(arm, figure));
  if (!spread) return "";
  return absl::StrFormat("%.*f .. %.*f", digits, spread->low, digits, spread->high);
}

std::string BudgetText(const ArmRuns& arm) {
  return arm.budget == 0 ? kNone : FormatBytes(arm.budget);
}

// Seconds to the AUC; of fewer runs than there are, of how many.
Row TimesToAuc(const ArmRuns& arm, std::optional<double> target) {
  if (!target) return {kNone, kNone};
  const auto times =
      ValuesOf(arm, [&](const RunFigures& run) { return SecondsToAuc(run, *target); });
  if (times.empty()) return {arm.runs.empty() ? kNone : "never", kNone};
  const double time = Median(times);
  std::string text = Text(time, 1);
  if (times.size() < arm.runs.size()) {
    absl::StrAppend(&text, " (", times.size(), " of ", arm.runs.size(), ")");
  }
  const auto prepare = [&](const Figure& figure) { return MedianOf(arm, figure).value_or(0); };
  const double before = prepare([](const RunFigures& run) { return run.calibrate_s; }) +
                        prepare([](const RunFigures& run) { return run.pack_s; });
  return {text, Text(time + before, 1)};
}

Row ArmRow(const ArmRuns& arm, std::optional<double> target) {
  const auto rate = [](const RunFigures& run) { return std::optional<double>(run.samples_per_s); };
  const auto auc = [](const RunFigures& run) { return run.auc; };
  const auto wire = [](const RunFigures& run) {
    return std::optional<double>(run.wire_bytes_per_sample);
  };
  Row row = {ArmName(arm.arm), BudgetText(arm), Text(MedianOf(arm, rate), 0), Range(arm, 0, rate)};
  for (std::string& cell : TimesToAuc(arm, target)) row.push_back(std::move(cell));
  row.push_back(Text(MedianOf(arm, auc), 4));
  row.push_back(Range(arm, 4, auc));
  row.push_back(Text(MedianOf(arm, wire), 0));
  row.push_back(
      Text(MedianOf(arm, [](const RunFigures& run) { return run.device_bytes_per_sample; }), 0));
  row.push_back(Percent(MedianOf(arm, [](const RunFigures& run) { return run.hit_rate; })));
  row.push_back(Percent(MedianOf(arm, [](const RunFigures& run) { return run.hot_share; })));
  row.push_back(Text(MedianOf(arm, [](const RunFigures& run) { return run.calibrate_s; }), 1));
  row.push_back(Text(MedianOf(arm, [](const RunFigures& run) { return run.pack_s; }), 1));
  return row;
}

// The names of all stages of all runs, in the order in which they are first met.
std::vector<std::string> StageNames(const std::vector<ArmRuns>& arms) {
  std::vector<std::string> names;
  for (const ArmRuns& arm : arms) {
    for (const RunFigures& run : arm.runs) {
      for (const auto& [name, us] : run.stage_us) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  }
  return names;
}

std::optional<double> StageOf(const RunFigures& run, const std::string& stage) {
  for (const auto& [name, us] : run.stage_us) {
    if (name == stage) return us;
  }
  return std::nullopt;
}

}  // namespace

std::string RenderArms(const std::vector<ArmRuns>& arms, std::optional<double> target_auc) {
  const std::string to_auc = target_auc ? absl::StrFormat("s to %.4f", *target_auc) : "s to AUC";
  std::vector<Row> rows = {{"arm", "budget", "samples/s", "", to_auc, "+ packing", "AUC", "",
                            "wire B", "device B", "hits", "hot", "calibrate s", "pack s"},
                           {}};
  std::string absences;
  for (const ArmRuns& arm : arms) {
    rows.push_back(ArmRow(arm, target_auc));
    if (arm.absence.empty()) continue;
    absl::StrAppend(&absences, ArmName(arm.arm), arm.budget == 0 ? "" : " with ",
                    arm.budget == 0 ? "" : FormatBytes(arm.budget), ": ", arm.absence, "\n");
  }
  std::string text = FormatTable(rows) + absences;

  std::vector<Row> stages = {{"us a sample, by stage"}, {}};
  for (const ArmRuns& arm : arms) {
    if (arm.runs.empty()) continue;
    stages[0].push_back(absl::StrCat(ArmName(arm.arm), arm.budget == 0 ? "" : " ",
                                     arm.budget == 0 ? "" : absl::StrCat(arm.budget >> 10, "K")));
  }
  for (const std::string& name : StageNames(arms)) {
    Row row = {name};
    for (const ArmRuns& arm : arms) {
      if (arm.runs.empty()) continue;
      row.push_back(
          Text(MedianOf(arm, [&](const RunFigures& run) { return StageOf(run, name); }), 2));
    }
    stages.push_back(std::move(row));
  }
  return stages.size() > 2 ? absl::StrCat(text, "\n", FormatTable(stages)) : text;
}

std::string ArmsCsv(const std::vector<ArmRuns>& arms, std::optional<double> target_auc) {
  const std::vector<std::string> stages = StageNames(arms);
  std::string text =
      "arm,budget_bytes,seed,device,steps,samples,train_s,samples_per_s,auc,logloss,target_auc,"
      "to_auc_s,wire_bytes_per_sample,device_bytes_per_sample,hit_rate,hot_share,hot_rows,"
      "calibrate_s,pack_s,pack_reused,model_digest,absence";
  for (const std::string& stage : stages) absl::StrAppend(&text, ",us ", stage);
  absl::StrAppend(&text, "\n");
  for (const ArmRuns& arm : arms) {
    for (size_t i = 0; i < arm.runs.size(); ++i) {
      const RunFigures& run = arm.runs[i];
      Row row = {ArmName(arm.arm),
                 absl::StrCat(arm.budget),
                 absl::StrCat(arm.seeds[i]),
                 CsvCell(run.device),
                 absl::StrCat(run.steps),
                 absl::StrCat(run.samples),
                 CsvCell(run.train_s),
                 CsvCell(run.samples_per_s),
                 CsvCell(run.auc),
                 CsvCell(run.logloss),
                 CsvCell(target_auc),
                 CsvCell(target_auc ? SecondsToAuc(run, *target_auc) : std::nullopt),
                 CsvCell(run.wire_bytes_per_sample),
                 CsvCell(run.device_bytes_per_sample),
                 CsvCell(run.hit_rate),
                 CsvCell(run.hot_share),
                 CsvCell(run.hot_rows),
                 CsvCell(run.calibrate_s),
                 CsvCell(run.pack_s),
                 run.pack.empty()  ? ""
                 : run.reuses_pack ? "1"
                                   : "0",
                 run.digest,
                 ""};
      for (const std::string& stage : stages) row.push_back(CsvCell(StageOf(run, stage)));
      absl::StrAppend(&text, absl::StrJoin(row, ","), "\n");
    }
    if (arm.absence.empty()) continue;
    Row row(22 + stages.size());
    row[0] = ArmName(arm.arm);
    row[1] = absl::StrCat(arm.budget);
    row[21] = CsvCell(arm.absence);
    absl::StrAppend(&text, absl::StrJoin(row, ","), "\n");
  }
  return text;
}

std::string CurvesCsv(const std::vector<ArmRuns>& arms) {
  std::string text = "arm,budget_bytes,seed,steps,train_s,auc,logloss,is_evaluation,rate\n";
  for (const ArmRuns& arm : arms) {
    for (size_t i = 0; i < arm.runs.size(); ++i) {
      for (const ScoredPoint& point : arm.runs[i].points) {
        const Row row = {
            ArmName(arm.arm),          absl::StrCat(arm.budget),        absl::StrCat(arm.seeds[i]),
            absl::StrCat(point.steps), CsvCell(point.train_s),          CsvCell(point.auc),
            CsvCell(point.logloss),    point.is_evaluation ? "1" : "0", CsvCell(point.rate)};
        absl::StrAppend(&text, absl::StrJoin(row, ","), "\n");
      }
    }
  }
  return text;
}

}  // namespace thermocline
