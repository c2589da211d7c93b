// thermocline-inspect reads a log once and finds out what is in it. `thermocline inspect` starts it
// and shows its figures.
//
// Reports to the file descriptor --progress_fd as deploy/processes/reporting_program.h reads it;
// the last line has the figures: {"event": "done", "figures": {...}}.
#include <google/protobuf/text_format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "common/base/process.h"
#include "common/base/process_limits.h"
#include "common/base/thread_pool.h"
#include "common/json/report_lines.h"
#include "worker/inspect/data_inspection.h"

ABSL_FLAG(int32_t, progress_fd, 1, "Write JSON lines to this file descriptor");
ABSL_FLAG(int64_t, rows, 0, "Read so many rows at most; 0: all");
ABSL_FLAG(int32_t, threads, 0, "Threads that share the columns; 0: the machine's cores");
ABSL_FLAG(std::string, separator, "", "The character between columns; empty: guess it");
ABSL_FLAG(std::string, columns, "",
          "Names of the columns, separated by commas, of files without a header; empty: guess");
ABSL_FLAG(std::string, counted, "",
          "Texts, separated by commas, of which to say how often they occur in each column");
ABSL_FLAG(std::string, s3, "", "Of s3:// paths: data.s3 of a job, as text");

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

int Run(const std::vector<std::string>& paths) {
  ReportLines lines(absl::GetFlag(FLAGS_progress_fd));
  InspectionOptions options;
  options.paths = paths;
  if (!google::protobuf::TextFormat::ParseFromString(absl::GetFlag(FLAGS_s3), &options.s3)) {
    lines.WriteFailure(absl::InvalidArgumentError("--s3 is not data.s3 of a job"));
    return kExitUsage;
  }
  options.max_rows = absl::GetFlag(FLAGS_rows);
  options.threads =
      absl::GetFlag(FLAGS_threads) > 0 ? absl::GetFlag(FLAGS_threads) : HardwareThreads();
  options.hints.separator = absl::GetFlag(FLAGS_separator);
  if (!absl::GetFlag(FLAGS_columns).empty()) {
    options.hints.columns = absl::StrSplit(absl::GetFlag(FLAGS_columns), ',');
  }
  if (!absl::GetFlag(FLAGS_counted).empty()) {
    options.counted = absl::StrSplit(absl::GetFlag(FLAGS_counted), ',');
  }
  const auto figures = InspectData(options, [&](int64_t rows, double share) {
    if (!lines.IsProgressDue()) return;
    lines.Write(Json{
        {"event", "progress"}, {"rows", rows}, {"fraction", share}, {"seconds", lines.Seconds()}});
  });
  if (figures.ok()) {
    return lines.Write(Json{{"event", "done"}, {"figures", *figures}}) ? kExitDone : kExitFailed;
  }
  lines.WriteFailure(figures.status());
  // The log itself can't be used as it is, or could not be read.
  return absl::IsUnavailable(figures.status()) || absl::IsDataLoss(figures.status()) ? kExitFailed
                                                                                     : kExitUsage;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  const std::vector<char*> arguments = thermocline::ParseProgramFlags(
      "reads a log once and writes what is in it as JSON.\n"
      "  thermocline-inspect train.csv.gz",
      argc, argv);
  return thermocline::Run({arguments.begin() + 1, arguments.end()});
}
