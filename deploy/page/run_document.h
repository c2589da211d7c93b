// The document of a run: one JSON object that has all that the page shows (docs/monitoring.md).
#ifndef THERMOCLINE_DEPLOY_PAGE_RUN_DOCUMENT_H_
#define THERMOCLINE_DEPLOY_PAGE_RUN_DOCUMENT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "deploy/page/run_files.h"
#include "deploy/page/run_history.h"

namespace thermocline {

// The document's schema. Fields are only added.
inline constexpr int kPageSchema = 1;

// Whether the job goes on, as far as its files tell: its lock is held, and its last launch has no
// last line.
bool IsRunning(const RunHistory& history, const RunFiles& files);

// A run as an element of "runs". `has_metrics`: metrics.jsonl can be read. `label` names the run
// beside another one.
nlohmann::ordered_json MakeRunDocument(const RunHistory& history, const RunFiles& files,
                                       bool has_metrics, const std::string& label);

// The parts of it that others make.
//
// {"kind", "title", "why", "next"}: how the run stands, and what its user may do next.
nlohmann::ordered_json DescribeState(const RunHistory& history, const RunFiles& files);
// [[name, text, note], ...]: the figures at the top, as text.
nlohmann::ordered_json Headline(const RunHistory& history, const RunFiles& files);
// Columns, a row a table, summed over servers; one more for all dense tensors.
nlohmann::ordered_json TableColumns(const StatsSnapshot& stats);
// {"servers", "workers": columns, a row a process; "num_servers", "num_workers"}. Of many, those
// with the most rows, and the slowest.
nlohmann::ordered_json ProcessColumns(const RunFiles& files);

// {"columns": the skew of the log's columns; "hot_tables": how many rows of each table are hot;
// "curve": what a budget for hot rows is worth}, each as columns; null where no file has it.
nlohmann::ordered_json FoundInData(const RunHistory& history, const RunFiles& files);

// "compare": what differs between two runs, {"figures": [[name, text, text]], "fields": [[path,
// value, value]], "num_fields"}; null stands for what one lacks. `a` and `b`: their documents.
// Where one has no job, there are no fields, and "num_fields" is null.
nlohmann::ordered_json CompareRuns(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
                                   const std::optional<Job>& job_a,
                                   const std::optional<Job>& job_b);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_RUN_DOCUMENT_H_
