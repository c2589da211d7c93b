// thermocline jobs: what became of submitted jobs.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/process_limits.h"
#include "deploy/cli/command.h"
#include "deploy/engines/engine.h"
#include "deploy/report/format.h"
#include "deploy/report/metrics_log.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

struct JobsFlags {
  bool json = false;
};

struct JobLine {
  EngineJob job;
  std::string state;
  std::optional<uint64_t> step;
  std::optional<double> loss;
};

JobLine Describe(const EngineJob& job) {
  JobLine line;
  line.job = job;
  const auto state = AskEngine(job);
  line.state = state.ok() ? state->text : "?";
  const MetricsTail tail = ReadMetricsTail(job.run_dir + "/metrics.jsonl");
  const bool has_ended = state.ok() && state->what == EngineState::What::kEnded;
  if (has_ended && tail.end.has_value()) {
    const std::string status = TextAt(*tail.end, "status");
    line.state = status == "OK" ? "done" : absl::StrCat("ended: ", status);
  }
  if (!tail.progress.has_value()) return line;
  if (const auto step = NumberAt(*tail.progress, "step")) line.step = static_cast<uint64_t>(*step);
  line.loss = NumberAt(*tail.progress, "loss");
  return line;
}

std::string Render(const std::vector<JobLine>& lines) {
  std::vector<std::vector<std::string>> rows = {
      {"run directory", "job", "engine", "number", "hosts", "step", "loss", "state"}, {}};
  for (const JobLine& line : lines) {
    const EngineJob& job = line.job;
    rows.push_back({job.run_dir, job.job, job.engine, job.id, absl::StrCat(job.hosts),
                    line.step.has_value() ? FormatCount(*line.step) : "",
                    line.loss.has_value() ? absl::StrFormat("%.4f", *line.loss) : "", line.state});
  }
  return FormatTable(rows);
}

std::string RenderJson(const std::vector<JobLine>& lines) {
  Json json = Json::array();
  for (const JobLine& line : lines) {
    const EngineJob& job = line.job;
    json.push_back({{"run_dir", job.run_dir},
                    {"job", job.job},
                    {"engine", job.engine},
                    {"id", job.id},
                    {"hosts", job.hosts},
                    {"state", line.state},
                    {"step", line.step.has_value() ? Json(*line.step) : Json()},
                    {"loss", line.loss.has_value() ? Json(*line.loss) : Json()}});
  }
  return json.dump(2) + "\n";
}

int RunJobs(const JobsFlags& flags) {
  std::vector<JobLine> lines;
  for (const std::string& run_dir : KnownRunDirectories()) {
    const auto job = ReadEngineJob(run_dir);
    if (job.ok()) lines.push_back(Describe(*job));
  }
  std::fputs(flags.json ? RenderJson(lines).c_str() : Render(lines).c_str(), stdout);
  return kExitDone;
}

}  // namespace

void AddJobs(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<JobsFlags>();
  CLI::App* command = AddCommand(app, "jobs", "shows the jobs that you have submitted", "");
  command->add_flag("--json", flags->json, "prints JSON");
  OnCommand(command, action, RunJobs, flags);
}

}  // namespace thermocline
