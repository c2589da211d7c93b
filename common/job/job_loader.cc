#include "common/job/job_loader.h"

#include <google/protobuf/text_format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_source.h"
#include "common/job/resolved_job.h"
#include "common/model/presets.h"

namespace thermocline {
namespace {

constexpr int kMostTablesInHint = 4;

absl::StatusOr<std::string> ReadJobFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const std::string what = absl::StrCat("job file '", path, "': ", std::strerror(errno));
    if (errno == EACCES) return absl::PermissionDeniedError(what);
    return errno == ENOENT || errno == ENOTDIR ? absl::NotFoundError(what)
                                               : absl::UnavailableError(what);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("job file '", path, "' is not a file"));
  }
  if (info.st_size > kMaxJobFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job file '", path, "' has ", info.st_size, " bytes; it must be at most ", kMaxJobFileBytes,
        ". If it is a log, `thermocline inspect ", path, " --job FILE` drafts a job file for it"));
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad()) {
    const std::string what =
        absl::StrCat("job file '", path, "' can't be read: ", std::strerror(errno));
    return errno == EACCES ? absl::PermissionDeniedError(what) : absl::UnavailableError(what);
  }
  return text.str();
}

// Whether any table takes `field` of default_table, or the dense optimizer does.
bool IsTaken(absl::string_view field, const Job& resolved, const Job& written) {
  if (field == "optimizer" && written.dense_optimizer().kind_case() == Optimizer::KIND_NOT_SET) {
    return true;
  }
  return std::any_of(resolved.table().begin(), resolved.table().end(), [&](const Table& table) {
    const auto own = std::find_if(written.table().begin(), written.table().end(),
                                  [&](const Table& t) { return t.name() == table.name(); });
    if (own == written.table().end()) return true;
    const TableSettings& settings = own->settings();
    if (field == "dim") return settings.dim() == 0;
    if (field == "init_scale" || field == "initializer") {
      return !settings.has_init_scale() && !settings.has_initializer();
    }
    if (field == "optimizer") return settings.optimizer().kind_case() == Optimizer::KIND_NOT_SET;
    if (field == "min_count") return settings.min_count() == 0;
    if (field == "eviction") return !settings.has_eviction();
    if (field == "placement") return !settings.has_placement();
    return settings.storage().tier_case() == Storage::TIER_NOT_SET;
  });
}

// Flags that make the change to the tables themselves: to the first, or, since they have one dim,
// to all; "": there are none, or too many. Quoted, since shells have a meaning for brackets.
std::string FlagsForTables(const JobSource::Change& change, const Job& resolved) {
  const size_t equals = change.flag.find('=');
  const size_t dot = change.path.find('.');
  if (equals == std::string::npos || dot == std::string::npos) return "";
  const std::string field = change.path.substr(dot + 1);
  const int tables = field == "dim" ? resolved.table_size() : 1;
  if (tables > kMostTablesInHint) return "";
  std::string flags;
  for (int i = 0; i < tables; ++i) {
    absl::StrAppend(&flags, i == 0 ? "" : " ", "--set 'table[", i, "].settings.", field,
                    change.flag.substr(equals), "'");
  }
  return flags;
}

// A flag that changes what no table takes is a mistake, as with the job file of a run directory,
// where every table is spelled out.
absl::Status CheckDefaultIsTaken(const Job& resolved, const JobSource& source) {
  for (const JobSource::Change& change : source.changes()) {
    const std::vector<std::string> path = absl::StrSplit(change.path, '.');
    if (path[0] != "default_table") continue;
    // A table that is spelled out may say nothing of the others.
    std::vector<std::string> fields = {"dim", "init_scale", "initializer", "optimizer", "storage"};
    if (path.size() > 1) fields = {path[1]};
    const bool is_taken = std::any_of(fields.begin(), fields.end(), [&](const std::string& field) {
      return IsTaken(field, resolved, source.job());
    });
    if (is_taken) continue;
    const std::string flags = FlagsForTables(change, resolved);
    return absl::InvalidArgumentError(absl::StrCat(
        change.flag, " would change nothing: ", source.file(),
        " spells it out for every table. Change its `table`s", flags.empty() ? "" : ", as in ",
        flags, ", or name the job file that it was made from"));
  }
  return absl::OkStatus();
}

// When, and what follows, are for training. A policy says when; here nobody asks.
void KeepDecidingTask(Job* job) {
  const std::string task = job->evaluate().task();
  job->clear_evaluate();
  if (task.empty()) return;
  job->mutable_evaluate()->set_task(task);
  job->mutable_evaluate()->set_every_passes(1);
  job->mutable_evaluate()->set_keep_best(false);
}

absl::StatusOr<Job> ParseAsItIs(absl::string_view text, absl::string_view file,
                                const std::vector<std::string>& overrides,
                                const std::vector<std::string>& cleared, JobUse use) {
  ASSIGN_OR_RETURN(const JobSource source, JobSource::Parse(text, file, overrides, cleared));
  Job job = source.job();
  if (use == JobUse::kScore) KeepDecidingTask(&job);
  ResolveJob(&job);
  RETURN_IF_ERROR(ValidateJob(job, source));
  // The rows that are scored may come from elsewhere.
  if (job.has_evaluate() && use != JobUse::kScore) {
    RETURN_IF_ERROR(CheckHeldOut(job, source, "evaluate"));
  }
  if (use == JobUse::kTrain) RETURN_IF_ERROR(ValidateTraining(job, source));
  RETURN_IF_ERROR(CheckDefaultIsTaken(job, source));
  // Checked while errors could still name the preset's own fields.
  ExpandPreset(InputsOf(job), &job);
  if (job.has_evaluate() && job.evaluate().task().empty() && job.task_size() > 1) {
    job.mutable_evaluate()->set_task(job.task(0).label());
  }
  return job;
}

}  // namespace

std::string FlagToBlame(
    const std::vector<std::string>& overrides, const std::vector<std::string>& cleared,
    const std::function<bool(const std::vector<std::string>& overrides,
                             const std::vector<std::string>& cleared)>& is_good) {
  const auto without = [](std::vector<std::string> list, size_t i) {
    list.erase(list.begin() + static_cast<ptrdiff_t>(i));
    return list;
  };
  for (size_t i = 0; i < overrides.size(); ++i) {
    if (is_good(without(overrides, i), cleared)) return absl::StrCat("--set ", overrides[i]);
  }
  for (size_t i = 0; i < cleared.size(); ++i) {
    if (is_good(overrides, without(cleared, i))) return absl::StrCat("--clear ", cleared[i]);
  }
  return "";
}

absl::StatusOr<Job> LoadJob(const std::string& path, const std::vector<std::string>& overrides,
                            const std::vector<std::string>& cleared, JobUse use) {
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(path));
  return ParseJob(text, path, overrides, cleared, use);
}

absl::StatusOr<Job> ReadWrittenJob(const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   const std::vector<std::string>& cleared) {
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(path));
  ASSIGN_OR_RETURN(const JobSource source, JobSource::Parse(text, path, overrides, cleared));
  return source.job();
}

absl::StatusOr<Job> ParseJob(absl::string_view text, absl::string_view file,
                             const std::vector<std::string>& overrides,
                             const std::vector<std::string>& cleared, JobUse use) {
  absl::StatusOr<Job> job = ParseAsItIs(text, file, overrides, cleared, use);
  // An error of a flag's own value names that flag.
  if (job.ok() || absl::StartsWith(job.status().message(), "--")) return job;
  // A flag may spoil what the file says elsewhere, in a line that is not to blame.
  const std::string flag =
      FlagToBlame(overrides, cleared, [&](const auto& fewer_overrides, const auto& fewer_cleared) {
        return ParseAsItIs(text, file, fewer_overrides, fewer_cleared, use).ok();
      });
  if (flag.empty() || absl::StrContains(job.status().message(), flag)) return job;
  return absl::Status(job.status().code(), absl::StrCat(flag, ": ", job.status().message()));
}

std::string JobToText(const Job& job) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(job, &text);
  return text;
}

}  // namespace thermocline
