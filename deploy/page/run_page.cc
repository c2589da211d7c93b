#include "deploy/page/run_page.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

bool IsFolder(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

}  // namespace

struct RunPage::State {
  std::string run_dir;
  bool is_live = false;
};

RunPage::RunPage(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunPage::~RunPage() = default;

absl::StatusOr<std::unique_ptr<RunPage>> RunPage::Open(const std::string& run_dir) {
  if (!IsFolder(run_dir)) return absl::NotFoundError(absl::StrCat("no such folder: ", run_dir));
  auto state = std::make_unique<State>();
  state->run_dir = run_dir;
  return std::unique_ptr<RunPage>(new RunPage(std::move(state)));
}

void RunPage::Refresh(const StatsSnapshot*) { state_->is_live = RunLock::IsHeld(state_->run_dir); }

bool RunPage::is_live() const { return state_->is_live; }

std::string RunPage::Document() {
  return Json{{"schema", 1}, {"live", state_->is_live}, {"cursor", "0"}, {"runs", Json::array()}}
      .dump();
}

std::string RunPage::Page() { return absl::StrCat("<!DOCTYPE html>\n<p>", Document()); }

std::optional<std::string> RunPage::Changes(absl::string_view cursor) {
  if (cursor == "0") return std::nullopt;
  return Document();
}

absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& run_dirs) {
  auto page = RunPage::Open(run_dirs.front());
  if (!page.ok()) return page.status();
  (*page)->Refresh(nullptr);
  return (*page)->Page();
}

}  // namespace thermocline
