#include "deploy/page/run_page.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/version/version.h"
#include "deploy/page/live_changes.h"
#include "deploy/page/page_html.h"
#include "deploy/page/run_document.h"
#include "deploy/page/run_files.h"
#include "deploy/page/run_history.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

std::string LastFolderOf(absl::string_view path) {
  while (path.size() > 1 && absl::ConsumeSuffix(&path, "/")) {
  }
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

Json DocumentOf(Json runs, bool is_live, Json cursor) {
  return {{"schema", kPageSchema},
          {"live", is_live},
          {"cursor", std::move(cursor)},
          {"made_at", absl::ToUnixSeconds(absl::Now())},
          {"version", THERMOCLINE_VERSION},
          {"runs", std::move(runs)},
          {"compare", nullptr}};
}

}  // namespace

struct RunPage::State {
  std::string run_dir;
  HistoryReader reader;
  bool has_metrics = false;
  RunFiles files;
  std::optional<StatsSnapshot> stats;  // What processes have answered.
  bool is_live = false;

  // Made when they are asked for.
  bool is_made = false;
  Json run;
  std::string cursor;

  void Make() {
    if (std::exchange(is_made, true)) return;
    run = MakeRunDocument(reader.history(), files, has_metrics, LastFolderOf(run_dir));
    cursor = CursorOf(run, reader.history().drops);
  }
  Json Document() {
    Make();
    return DocumentOf(Json::array({run}), is_live, cursor);
  }
};

RunPage::RunPage(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunPage::~RunPage() = default;

absl::StatusOr<std::unique_ptr<RunPage>> RunPage::Open(const std::string& run_dir) {
  const auto directory = RunDirectory::Open(run_dir);
  if (!directory.ok()) return directory.status();
  auto state = std::make_unique<State>();
  state->run_dir = run_dir;
  return std::unique_ptr<RunPage>(new RunPage(std::move(state)));
}

void RunPage::Refresh(const StatsSnapshot* stats) {
  State& state = *state_;
  state.is_made = false;
  state.has_metrics = state.reader.Follow(state.run_dir + "/metrics.jsonl");
  state.files = ReadRunFiles(state.run_dir);
  state.is_live = IsRunning(state.reader.history(), state.files);
  if (stats != nullptr) state.stats = *stats;
  if (state.stats.has_value()) {
    state.files.stats = *state.stats;
  } else {
    ReadStatsOf(&state.files);
  }
}

bool RunPage::is_live() const { return state_->is_live; }

std::string RunPage::Page() { return RenderPage(state_->Document()); }

std::string RunPage::Document() { return DumpJson(state_->Document()); }

std::optional<std::string> RunPage::Changes(absl::string_view cursor) {
  state_->Make();
  if (cursor == state_->cursor) return std::nullopt;
  auto changes = ChangesSince(cursor, state_->cursor, state_->run);
  if (!changes.has_value()) return Document();
  return DumpJson(
      {{"cursor", state_->cursor}, {"live", state_->is_live}, {"run", *std::move(changes)}});
}

absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& run_dirs) {
  Json runs = Json::array();
  std::vector<std::optional<Job>> jobs;
  const bool has_same_names =
      run_dirs.size() == 2 && LastFolderOf(run_dirs[0]) == LastFolderOf(run_dirs[1]);
  for (const std::string& run_dir : run_dirs) {
    const auto directory = RunDirectory::Open(run_dir);
    if (!directory.ok()) return directory.status();
    HistoryReader reader;
    const bool has_metrics = reader.Follow(run_dir + "/metrics.jsonl");
    RunFiles files = ReadRunFiles(run_dir);
    ReadStatsOf(&files);
    runs.push_back(MakeRunDocument(reader.history(), files, has_metrics,
                                   has_same_names ? run_dir : LastFolderOf(run_dir)));
    jobs.push_back(std::move(files.job));
  }
  Json document = DocumentOf(std::move(runs), /*is_live=*/false, nullptr);
  const Json& all = document["runs"];
  if (jobs.size() == 2) document["compare"] = CompareRuns(all[0], all[1], jobs[0], jobs[1]);
  return RenderPage(document);
}

}  // namespace thermocline
