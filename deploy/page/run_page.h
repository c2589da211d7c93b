// The page that shows a run: its curves, what happened, its tables and processes, and how it ended.
// `thermocline report` writes it to a file; the job's web server answers with it while the job
// runs.
//
// A page is one HTML document that needs nothing else: texts, style, script and the figures, which
// are one JSON document (docs/monitoring.md). Its size does not grow with the run.
#ifndef THERMOCLINE_DEPLOY_PAGE_RUN_PAGE_H_
#define THERMOCLINE_DEPLOY_PAGE_RUN_PAGE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "deploy/report/left_stats.h"

namespace thermocline {

// The page of one run, which follows the run's files while the job writes them. Not thread-safe.
class RunPage {
 public:
  // Reads nothing yet. Errors: kNotFound (`run_dir` is no folder; names it).
  static absl::StatusOr<std::unique_ptr<RunPage>> Open(const std::string& run_dir);
  ~RunPage();

  // Reads what the run's files have more than at the last call. `stats`: what the processes answer
  // now; nullptr: what they answered last, before the first answer what the run's files have.
  void Refresh(const StatsSnapshot* stats);

  // Whether the job runs as far as its files tell: the last launch has no "end" line, and its lock
  // is held.
  bool is_live() const;

  // The answer to GET /: the page with the document in it, as HTML in UTF-8.
  std::string Page();
  // The answer to GET /api/job: the whole document, as JSON.
  std::string Document();
  // The answer to GET /api/job?cursor=C: what has changed since the answer that had this cursor;
  // nullopt where nothing has (status 204). The page keeps the cursor, and this object nothing
  // about its readers: a cursor that it can't use, whatever it is, gets the whole document.
  std::optional<std::string> Changes(absl::string_view cursor);

 private:
  struct State;
  explicit RunPage(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

// The page of one run, or of two beside each other, as HTML in UTF-8. Files that are missing or
// damaged are named on the page. Errors: kNotFound (no such folder; names it).
// REQUIRES: one or two folders
absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& run_dirs);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_RUN_PAGE_H_
