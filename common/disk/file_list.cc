#include "common/disk/file_list.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::vector<std::string>> FilesOfFolder(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (name[0] == '.' || name[0] == '_' || !it->is_regular_file(ignored)) continue;
    files.push_back(it->path().string());
  }
  if (error) return absl::PermissionDeniedError(absl::StrCat(folder, ": ", error.message()));
  if (files.empty()) return absl::NotFoundError(absl::StrCat(folder, ": the folder has no files"));
  return files;
}

absl::StatusOr<std::vector<std::string>> FilesThatMatch(const std::string& pattern) {
  glob_t found = {};
  const int result = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files;
  for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
    std::error_code ignored;
    if (fs::is_regular_file(found.gl_pathv[i], ignored)) files.push_back(found.gl_pathv[i]);
  }
  globfree(&found);
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat(pattern, ": no file matches the pattern"));
  }
  return files;
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
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  absl::StatusOr<std::vector<std::string>> files = std::vector<std::string>{path};
  if (fs::is_directory(status)) {
    files = FilesOfFolder(path);
  } else if (!fs::exists(status)) {
    if (path.find_first_of("*?[") == path.npos) {
      const std::string what = absl::StrCat(path, ": cannot open: ", std::strerror(error.value()));
      return error.value() == EACCES ? absl::PermissionDeniedError(what)
                                     : absl::NotFoundError(what);
    }
    files = FilesThatMatch(path);
  }
  if (files.ok()) std::sort(files->begin(), files->end());
  return files;
}

}  // namespace thermocline
