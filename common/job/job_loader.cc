#include "common/job/job_loader.h"

#include <google/protobuf/text_format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

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

}  // namespace

absl::StatusOr<Job> LoadJob(const std::string& path, const std::vector<std::string>& overrides,
                            const std::vector<std::string>& cleared) {
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(path));
  return ParseJob(text, path, overrides, cleared);
}

absl::StatusOr<Job> ParseJob(absl::string_view text, absl::string_view file,
                             const std::vector<std::string>& overrides,
                             const std::vector<std::string>& cleared) {
  ASSIGN_OR_RETURN(const JobSource source, JobSource::Parse(text, file, overrides, cleared));
  Job job = source.job();
  ResolveJob(&job);
  RETURN_IF_ERROR(ValidateJob(job, source));
  return job;
}

std::string JobToText(const Job& job) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(job, &text);
  return text;
}

}  // namespace thermocline
