#include "common/disk/file_list.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/disk/retry_io.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;

absl::Status ListError(const std::string& path, absl::string_view what, int error) {
  const std::string message = absl::StrCat(path, ": ", what, std::strerror(error));
  if (IsIoTrouble(error)) return absl::UnavailableError(message);
  return error == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
}

// Adds the path where it is a plain file. Trouble is an error: a file that it hides would be left
// out of the data without a word.
absl::Status AddFile(const std::string& path, std::vector<std::string>* files) {
  struct stat info;
  if (RetryIo([&] { return stat(path.c_str(), &info); }) != 0) {
    return IsIoTrouble(errno) ? ListError(path, "", errno) : absl::OkStatus();
  }
  if (S_ISREG(info.st_mode)) files->push_back(path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FilesOfFolder(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name[0] == '.' || name[0] == '_') continue;
    RETURN_IF_ERROR(AddFile(it->path().string(), &files));
  }
  if (error) return ListError(folder, "", error.value());
  if (files.empty()) return absl::NotFoundError(absl::StrCat(folder, ": the folder has no files"));
  return files;
}

// Of a folder that can't be listed. Nonzero ends the glob.
thread_local int glob_trouble;
int OnGlobError(const char*, int error) {
  if (!IsIoTrouble(error)) return 0;
  glob_trouble = error;
  return 1;
}

absl::StatusOr<std::vector<std::string>> FilesThatMatch(const std::string& pattern) {
  glob_t found = {};
  const int result = glob(pattern.c_str(), GLOB_NOSORT, OnGlobError, &found);
  std::vector<std::string> files;
  absl::Status status;
  if (result == GLOB_ABORTED) status = ListError(pattern, "", glob_trouble);
  for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
    status.Update(AddFile(found.gl_pathv[i], &files));
  }
  globfree(&found);
  RETURN_IF_ERROR(status);
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat(pattern, ": no file matches the pattern"));
  }
  return files;
}

// What another process has no part of.
bool IsOfThisProcess(absl::string_view path) {
  return path == "/dev/stdin" || absl::StartsWith(path, "/dev/fd/") ||
         absl::StartsWith(path, "/proc/self/fd/");
}

}  // namespace

bool IsObjectPath(absl::string_view path) { return absl::StartsWith(path, "s3://"); }

std::string AbsolutePath(const std::string& path) {
  if (path.empty() || IsObjectPath(path)) return path;
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (error) return path;
  const fs::path normal = absolute.lexically_normal();
  // What ends in a slash has an empty last part.
  return (normal.has_filename() || !normal.has_relative_path() ? normal : normal.parent_path())
      .string();
}

absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& path) {
  if (IsOfThisProcess(AbsolutePath(path))) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": it is this process's own, and others read the data, more than once; write them to "
        "a file"));
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  absl::StatusOr<std::vector<std::string>> files = std::vector<std::string>{path};
  if (fs::is_directory(status)) {
    files = FilesOfFolder(path);
  } else if (!fs::exists(status)) {
    if (path.find_first_of("*?[") == path.npos) {
      return ListError(path, "cannot open: ", error.value());
    }
    files = FilesThatMatch(path);
  }
  if (files.ok()) std::sort(files->begin(), files->end());
  return files;
}

}  // namespace thermocline
