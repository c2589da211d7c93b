#include "common/job/job_loader.h"

#include <google/protobuf/text_format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_resolve.h"
#include "common/job/job_source.h"
#include "common/job/job_validate.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

absl::StatusOr<std::string> ReadJobFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const std::string what = absl::StrCat("job file '", path, "': ", std::strerror(errno));
    return errno == EACCES ? absl::PermissionDeniedError(what) : absl::NotFoundError(what);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("job file '", path, "' is not a file"));
  }
  if (info.st_size > kMaxJobFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("job file '", path, "' has ", info.st_size,
                                                   " bytes; it must be at most ",
                                                   kMaxJobFileBytes));
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad()) {
    return absl::PermissionDeniedError(absl::StrCat("job file '", path, "' can't be read"));
  }
  return text.str();
}

absl::StatusOr<Job> ParseAsItIs(absl::string_view text, absl::string_view file,
                                const std::vector<std::string>& overrides,
                                const std::vector<std::string>& cleared) {
  ASSIGN_OR_RETURN(const JobSource source, JobSource::Parse(text, file, overrides, cleared));
  Job job = source.job();
  ResolveJob(&job);
  RETURN_IF_ERROR(ValidateJob(job, source));
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
                            const std::vector<std::string>& cleared) {
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(path));
  return ParseJob(text, path, overrides, cleared);
}

absl::StatusOr<Job> ParseJob(absl::string_view text, absl::string_view file,
                             const std::vector<std::string>& overrides,
                             const std::vector<std::string>& cleared) {
  absl::StatusOr<Job> job = ParseAsItIs(text, file, overrides, cleared);
  if (job.ok()) return job;
  // A flag may spoil what the file says elsewhere, in a line that is not to blame.
  const std::string flag =
      FlagToBlame(overrides, cleared, [&](const auto& fewer_overrides, const auto& fewer_cleared) {
        return ParseAsItIs(text, file, fewer_overrides, fewer_cleared).ok();
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
