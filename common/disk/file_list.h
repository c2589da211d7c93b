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

// A file is itself, a folder all files in it (not those of its folders) but the ones whose names
// begin with '.' or '_', and a path with '*', '?' or '[' that is no file the files that match it.
// Sorted by their names' bytes, so that a job reads the same on every machine.
// Errors: kNotFound (nothing is there, the folder has no file, or nothing matches),
//         kPermissionDenied, kUnavailable (a disk or network file system in trouble),
//         kInvalidArgument ("/dev/stdin" and the like: other processes read).
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& path);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_FILE_LIST_H_
