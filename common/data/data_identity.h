// The files and objects that the data of a job are, and what tells them from others.
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

// The store of the s3:// paths of `data`; null: there are none. Errors: as ObjectStore::Open().
absl::StatusOr<std::shared_ptr<ObjectStore>> OpenStore(const Data& data);

// The files and objects that all paths of `files` stand for. Errors: as ListFiles() and
// ObjectStore::List().
absl::StatusOr<std::vector<std::string>> ListAll(const Data::Files& files, ObjectStore* store);

// A file or object as it is at one time.
struct FileIdentity {
  std::optional<int64_t> bytes;  // nullopt: it is no regular file, of which nothing is known.
  int64_t modified_ns = 0;       // Of a file.
  std::string tag;               // Of an object, as its store gives it.
  // Of as many of its first and last bytes as were asked for.
  uint32_t head_crc = 0, tail_crc = 0;
};
// How many bytes of each end are in a DataFile.
inline constexpr int64_t kDataFileEndBytes = 64 << 10;

// With checksums of up to `end_bytes` of either end. Opens no pipe, which would have met its
// reader. `store`: of a path that names an object. Errors: kNotFound, kPermissionDenied,
// kUnavailable; of objects as ObjectStore::Identify().
absl::StatusOr<FileIdentity> IdentifyFile(const std::string& path, ObjectStore* store,
                                          int64_t end_bytes);

// Calls call(i) for each of `count` files, several at a time. Returns the error of the first of
// them that has one. `call` is thread-safe.
absl::Status ForEachFile(size_t count, absl::FunctionRef<absl::Status(size_t i)> call);

// The files of the data of `job`, which is resolved. Errors: those of finding and reading them.
absl::StatusOr<DataFiles> IdentifyData(const Job& job);

// As the job keeps it.
DataFile ToDataFile(const std::string& path, const FileIdentity& identity);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DATA_DATA_IDENTITY_H_
