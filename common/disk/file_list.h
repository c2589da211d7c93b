// The files that a path of a job's data stands for.
#ifndef THERMOCLINE_COMMON_DISK_FILE_LIST_H_
#define THERMOCLINE_COMMON_DISK_FILE_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace thermocline {

// A file is itself, a folder all files in it (not those of its folders) but the ones whose names
// begin with '.' or '_', and a path with '*', '?' or '[' that is no file the files that match it.
// Sorted by their names' bytes, so that a job reads the same on every machine.
// Errors: kNotFound (nothing is there, the folder has no file, or nothing matches),
//         kPermissionDenied.
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& path);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_FILE_LIST_H_
