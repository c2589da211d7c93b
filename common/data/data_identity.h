// Lists the files and objects that a job's data consist of, and identifies them by their content.
#ifndef THERMOCLINE_COMMON_DATA_DATA_IDENTITY_H_
#define THERMOCLINE_COMMON_DATA_DATA_IDENTITY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arrow/object_store.h"
#include "proto/job.pb.h"

namespace thermocline {

// Opens the store of the s3:// paths of `data`; null if there are none. Errors:
// ObjectStore::Open's.
absl::StatusOr<std::shared_ptr<ObjectStore>> OpenStore(const Data& data);

// Returns the files and objects that all paths of `files` stand for, in the order in which the job
// reads them. `store` may be null if no path names an object. Errors: ListFiles',
// ObjectStore::List's.
absl::StatusOr<std::vector<std::string>> ListAll(const Data::Files& files, ObjectStore* store);

// A file or object as it is at one time.
struct FileIdentity {
  std::optional<int64_t> bytes;  // nullopt: it is no regular file, and no other field is set.
  int64_t modified_ns = 0;       // A file's time of modification; 0 for objects.
  std::string tag;               // An object's tag in its store (ETag); empty for files.
  // The CRC-32C of its first and of its last bytes, up to IdentifyFile's `end_bytes` of each.
  uint32_t head_crc = 0, tail_crc = 0;
};
// A DataFile has the checksums of this many bytes of either end.
inline constexpr int64_t kDataFileEndBytes = 64 << 10;

// Identifies the file or object at `path`, with checksums of up to `end_bytes` of either end. It
// does not open pipes: their writers would take it for the reader. `store` may be null if `path`
// names a file. Errors: kNotFound, kPermissionDenied, kUnavailable; for objects
// ObjectStore::Identify's.
absl::StatusOr<FileIdentity> IdentifyFile(const std::string& path, ObjectStore* store,
                                          int64_t end_bytes);

// Calls call(i) for each of `count` files, several at a time, on threads of its own. Returns the
// error of the first file that has one. REQUIRES: `call` is thread-safe.
absl::Status ForEachFile(size_t count, absl::FunctionRef<absl::Status(size_t i)> call);

// Identifies all files of the data of `job`, a resolved job. Errors: ListAll's, IdentifyFile's.
absl::StatusOr<DataFiles> IdentifyData(const Job& job);

// Returns `identity` in the form in which the job keeps it (Job.data_files).
DataFile ToDataFile(const std::string& path, const FileIdentity& identity);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DATA_DATA_IDENTITY_H_
