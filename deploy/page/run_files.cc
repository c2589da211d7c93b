#include "deploy/page/run_files.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "deploy/engines/engine.h"
#include "deploy/engines/scripts.h"
#include "deploy/processes/run_directory.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// Whether a file is there that ReadJsonFile can't make anything of.
bool IsDamaged(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !ReadJsonFile(path).is_object();
}

// Errors go to no log: a job file that can't be read is shown as it is.
class NoLog : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

// The file may be of another version: fields that this one does not know are left out.
std::optional<Job> ParseLeniently(const std::string& text) {
  NoLog errors;
  google::protobuf::TextFormat::Parser parser;
  parser.AllowUnknownField(true);
  parser.RecordErrorsTo(&errors);
  Job job;
  if (!parser.ParseFromString(text, &job)) return std::nullopt;
  return job;
}

}  // namespace

RunFiles ReadRunFiles(const std::string& run_dir) {
  RunFiles files;
  files.run_dir = run_dir;
  files.is_locked = RunLock::IsHeld(run_dir);
  std::ifstream job(run_dir + "/job.textproto", std::ios::binary);
  files.job_text = {std::istreambuf_iterator<char>(job), std::istreambuf_iterator<char>()};
  files.job = ParseLeniently(files.job_text);
  if (files.job_text.empty()) {
    files.notes.push_back("job.textproto is missing or empty: the job is not shown.");
  } else if (!files.job.has_value()) {
    files.notes.push_back(
        "job.textproto is no job that this program can read: it is shown as it is.");
  }
  files.summary = ReadJsonFile(run_dir + "/summary.json");
  if (IsDamaged(run_dir + "/summary.json")) {
    files.notes.push_back(
        "summary.json is cut short or damaged: the figures are those of the last lines of "
        "metrics.jsonl.");
  }
  files.inspection = ReadJsonFile(run_dir + "/inspection.json");
  std::ifstream calibration(run_dir + "/calibration.json", std::ios::binary);
  if (calibration) {
    files.calibration = ParseJson(std::string(std::istreambuf_iterator<char>(calibration), {}));
  }
  const Json places = ReadJsonFile(run_dir + "/hosts.json");
  if (places.is_object()) {
    for (const auto& [process, place] : places.items()) {
      if (place.is_object()) files.hosts[process] = TextAt(place, "host");
    }
  }
  const auto submitted = ReadEngineJob(run_dir);
  files.resume_command =
      submitted.ok() ? ResumeCommand(*submitted)
                     : absl::StrCat("thermocline train --resume --run-dir ", ShellWord(run_dir));
  return files;
}

void ReadStatsOf(RunFiles* files) {
  files->stats = ReadLeftStats(files->run_dir);
  files->stats_are_left = true;
  // Workers of an earlier launch, which had more of them, have left files, too.
  const size_t workers = files->job.has_value() ? files->job->cluster().workers() : 0;
  while (workers > 0 && files->stats.workers.size() > workers) files->stats.workers.pop_back();
  if (files->is_locked || !files->stats.servers.empty()) return;
  files->notes.push_back(absl::StrCat(
      "server_stats.json is ",
      IsDamaged(files->run_dir + "/server_stats.json") ? "cut short or damaged" : "missing",
      ": there are no figures of tables and servers."));
}

}  // namespace thermocline
