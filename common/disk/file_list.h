// Paths as users write them: makes them absolute, and lists the files that a path stands for.
#ifndef THERMOCLINE_COMMON_DISK_FILE_LIST_H_
#define THERMOCLINE_COMMON_DISK_FILE_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// Whether `path` names an object of a store, not a file: "s3://BUCKET/KEY".
bool IsObjectPath(absl::string_view path);

// The absolute path: "/data/days" for "days/". Text that is no path of this file system ("", an
// object) is returned unchanged.
std::string AbsolutePath(const std::string& path);

// Lists the files that a path stands for, sorted by their paths' bytes so that a job reads the same
// on every machine:
//   - a file stands for itself;
//   - a folder stands for all files in it whose names don't begin with '.' or '_'. If it has none,
//   but
//     folders named by keys ("day=2026-11-20", as Hive and Spark name them), it stands for their
//     files;
//   - a path with '*', '?' or '[' that is no file stands for the files that match it.
// Errors: kNotFound (there is nothing, the folder has no file, or nothing matches),
//         kPermissionDenied, kUnavailable (a disk or network file system in trouble),
//         kInvalidArgument ("/dev/stdin" and the like: other processes read).
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& path);

// The key in a folder's name: "day=2026-11-20".
struct FolderKey {
  std::string name;
  std::string value;  // "": missing, as Hive's __HIVE_DEFAULT_PARTITION__ is.

  friend bool operator==(const FolderKey& a, const FolderKey& b) {
    return a.name == b.name && a.value == b.value;
  }
};

// Whether a folder's name has a key.
bool IsKeyFolder(absl::string_view name);

// Whether ListFiles lists a file with this path within a folder as a file of key folders:
// "day=7/a.parquet".
bool IsInKeyFolders(absl::string_view path);

// The keys of the folders around a file, outermost first, up to a folder without a key. Decodes %XX
// in names and values. "s3://b/logs/day=7/hour=01/a.parquet" has day 7 and hour 01.
std::vector<FolderKey> FolderKeysOf(absl::string_view path);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_FILE_LIST_H_
