#include "common/disk/file_list.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/disk/retry_io.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;

// Files and folders named by keys.
struct Found {
  std::vector<std::string> files, key_folders;
};

// Adds the path where it is a plain file, or such a folder. Trouble is an error: a file that it
// hides would be left out of the data without a word.
absl::Status AddPath(const std::string& path, Found* found) {
  struct stat info;
  if (RetryIo([&] { return stat(path.c_str(), &info); }) != 0) {
    return IsIoTrouble(errno) ? FileError(path, "", errno) : absl::OkStatus();
  }
  if (S_ISREG(info.st_mode)) found->files.push_back(path);
  if (S_ISDIR(info.st_mode) && IsKeyFolder(path.substr(path.rfind('/') + 1))) {
    found->key_folders.push_back(path);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FilesOf(Found found);

absl::StatusOr<std::vector<std::string>> FilesOfFolder(const std::string& folder) {
  Found found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name[0] == '.' || name[0] == '_') continue;
    RETURN_IF_ERROR(AddPath(it->path().string(), &found));
  }
  if (error) return FileError(folder, "", error.value());
  ASSIGN_OR_RETURN(std::vector<std::string> files, FilesOf(std::move(found)));
  if (files.empty()) return absl::NotFoundError(absl::StrCat(folder, ": the folder has no files"));
  return files;
}

// The files found or, where there are none, those of the folders, which may be empty.
absl::StatusOr<std::vector<std::string>> FilesOf(Found found) {
  if (!found.files.empty()) return std::move(found.files);
  std::vector<std::string> files;
  for (const std::string& folder : found.key_folders) {
    const auto of_folder = FilesOfFolder(folder);
    if (absl::IsNotFound(of_folder.status())) continue;
    RETURN_IF_ERROR(of_folder.status());
    files.insert(files.end(), of_folder->begin(), of_folder->end());
  }
  return files;
}

// The errno of a folder that can't be listed for now. OnGlobError's result ends the glob unless it
// is 0.
thread_local int glob_trouble;
int OnGlobError(const char*, int error) {
  if (!IsIoTrouble(error)) return 0;
  glob_trouble = error;
  return 1;
}

absl::StatusOr<std::vector<std::string>> FilesThatMatch(const std::string& pattern) {
  glob_t found = {};
  const int result = glob(pattern.c_str(), GLOB_NOSORT, OnGlobError, &found);
  Found paths;
  absl::Status status;
  if (result == GLOB_ABORTED) status = FileError(pattern, "", glob_trouble);
  for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
    status.Update(AddPath(found.gl_pathv[i], &paths));
  }
  globfree(&found);
  RETURN_IF_ERROR(status);
  ASSIGN_OR_RETURN(std::vector<std::string> files, FilesOf(std::move(paths)));
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat(pattern, ": no file matches the pattern"));
  }
  return files;
}

// Whether the path means something else in another process.
bool IsOfThisProcess(absl::string_view path) {
  return path == "/dev/stdin" || absl::StartsWith(path, "/dev/fd/") ||
         absl::StartsWith(path, "/proc/self/fd/");
}

// `text` with the bytes that its %XX stand for.
std::string Unescaped(absl::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      bytes += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      bytes += text[i];
    }
  }
  return bytes;
}

}  // namespace

bool IsKeyFolder(absl::string_view name) {
  const size_t equals = name.find('=');
  return equals != name.npos && equals > 0 && name[0] != '.' && name[0] != '_';
}

bool IsInKeyFolders(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  if (parts.size() < 2 || parts.back().empty() || parts.back()[0] == '.' || parts.back()[0] == '_')
    return false;
  return std::all_of(parts.begin(), parts.end() - 1, IsKeyFolder);
}

std::vector<FolderKey> FolderKeysOf(absl::string_view path) {
  std::vector<FolderKey> keys;
  for (size_t end = path.rfind('/'); end != path.npos; end = path.rfind('/')) {
    path = path.substr(0, end);
    const size_t slash = path.rfind('/');
    const absl::string_view name = path.substr(slash == path.npos ? 0 : slash + 1);
    if (!IsKeyFolder(name)) break;
    const size_t equals = name.find('=');
    FolderKey key{Unescaped(name.substr(0, equals)), Unescaped(name.substr(equals + 1))};
    if (key.value == "__HIVE_DEFAULT_PARTITION__") key.value.clear();
    keys.push_back(std::move(key));
  }
  std::reverse(keys.begin(), keys.end());
  return keys;
}

bool IsObjectPath(absl::string_view path) { return absl::StartsWith(path, "s3://"); }

std::string AbsolutePath(const std::string& path) {
  if (path.empty() || IsObjectPath(path)) return path;
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (error) return path;
  const fs::path normal = absolute.lexically_normal();
  // A path that ends in a slash has an empty last part.
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
      return FileError(path, "cannot open", error.value());
    }
    files = FilesThatMatch(path);
  }
  if (files.ok()) std::sort(files->begin(), files->end());
  return files;
}

}  // namespace thermocline
