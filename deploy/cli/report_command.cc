// thermocline report: a run as one HTML page.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "common/base/process_limits.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/page/run_page.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {
namespace {

struct ReportFlags {
  std::vector<std::string> run_dirs;
  std::string out;
};

// Whether nothing is lost where a page takes the place of what is there: nothing is, or a page.
bool MayReplace(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::not_found) return true;
  if (type != std::filesystem::file_type::regular) return false;
  const std::string doctype = "<!DOCTYPE html>";
  std::string first(doctype.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(first.data(), static_cast<std::streamsize>(first.size()));
  return first == doctype;
}

int RunReport(const ReportFlags& flags) {
  const std::string out = flags.out.empty() ? flags.run_dirs[0] + "/report.html" : flags.out;
  const auto page = MakeReport(flags.run_dirs);
  if (!page.ok()) return Complain(page.status().message(), kExitUsage);
  if (!MayReplace(out)) {
    return Complain(out + " is there, and is no page of a report: it is left as it is", kExitUsage);
  }
  const std::filesystem::path path(out);
  const auto folder = RunDirectory::Open(path.has_parent_path() ? path.parent_path() : ".");
  if (!folder.ok()) return Complain("there is no folder for the page " + out, kExitUsage);
  const absl::Status written = folder->Write(path.filename().string(), *page);
  if (!written.ok()) return Complain(written.message(), kExitFailed);
  std::printf("%s\n", out.c_str());
  return kExitDone;
}

}  // namespace

void AddReport(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<ReportFlags>();
  CLI::App* command = AddCommand(
      app, "report", "writes what a run did as one HTML page",
      R"(The page needs nothing else: no network, no other file. It shows how the run stands and why, its
figures, curves of loss, AUC and speed, what a step waits for, a time line of hosts and processes
with restarts, rollbacks and checkpoints, its tables and its job. Of a run that goes on it shows
what is known so far. Files that are missing or damaged are named on it.

Of two runs the page draws the curves over each other and says which fields of their jobs differ.

examples:
  thermocline report runs/quickstart-20240101-120000
  thermocline report runs/day_1 runs/day_2 --out both.html)");
  AddValue(command, "RUN_DIR", &flags->run_dirs, "DIR",
           "the run; a second one is drawn over it, and the page says how the two differ")
      ->required()
      ->expected(1, 2);
  AddValue(command, "--out", &flags->out, "FILE",
           "default: RUN_DIR/report.html; replaces a page, and no other file");
  OnCommand(command, action, RunReport, flags);
}

}  // namespace thermocline
