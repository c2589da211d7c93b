// Paths as users give them: the same from any working directory, and the files that one stands for.
#ifndef THERMOCLINE_COMMON_DISK_FILE_LIST_H_
#define THERMOCLINE_COMMON_DISK_FILE_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// Whether `path` names an object of a store, not a file: "s3://BUCKET/KEY".
bool IsObjectPath(absl::string_view path);

// A path that means the same from any working directory: "/data/days" of "days/". What is no path
// of this file system ("", an object) stays as it is.
std::string AbsolutePath(const std::string& path);

// A file is itself, a folder all files in it but the ones whose names begin with '.' or '_', and a
// path with '*', '?' or '[' that is no file the files that match it. A folder without files whose
// folders are named by keys ("day=2026-11-20"), as Hive and Spark lay tables out, has all files of
// those. Sorted by their paths' bytes, so that a job reads the same on every machine.
// Errors: kNotFound (nothing is there, the folder has no file, or nothing matches),
//         kPermissionDenied, kUnavailable (a disk or network file system in trouble),
//         kInvalidArgument ("/dev/stdin" and the like: other processes read).
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& path);

// A key that a folder is named by: "day=2026-11-20".
struct FolderKey {
  std::string name;
  std::string value;  // "": missing, as Hive's __HIVE_DEFAULT_PARTITION__ is.

  friend bool operator==(const FolderKey& a, const FolderKey& b) {
    return a.name == b.name && a.value == b.value;
  }
};

// Whether `name` is that of such a folder.
bool IsKeyFolder(absl::string_view name);

// Whether a path within a folder is that of a file that ListFiles finds in its folders of keys:
// "day=7/a.parquet".
bool IsInKeyFolders(absl::string_view path);

// The keys of the folders that a file lies in, outermost first, up to a folder without one. %XX in
// names and values are the bytes that they stand for. "s3://b/logs/day=7/hour=01/a.parquet" has day
// 7 and hour 01.
std::vector<FolderKey> FolderKeysOf(absl::string_view path);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_FILE_LIST_H_
