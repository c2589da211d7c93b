// Checks files against the entries of the manifest that lists them.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_LISTED_FILE_H_
#define THERMOCLINE_COMMON_CHECKPOINT_LISTED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// So many bytes of a file are read at a time.
inline constexpr size_t kListedFileReadBytes = 1 << 20;

// kDataLoss: "'path' is damaged: ..."
absl::Status DamagedFile(const std::string& path, absl::string_view what);

// Errors: kDataLoss (it is missing, or of another size than `listed`), kUnavailable (the disk).
absl::StatusOr<std::unique_ptr<ReadFile>> OpenListedFile(Disk* disk, const std::string& path,
                                                         const CheckpointFile& listed);

// Remembers files of checkpoints that were found whole. No file is written twice, so each needs to
// be opened only once. Thread-safe.
class CheckedFiles {
 public:
  // So many `threads` open files at the same time.
  explicit CheckedFiles(int threads) : threads_(threads) {}

  // Opens those files of `manifest`, below `directory`, that are not known or not `shown` there.
  // Errors: those of OpenListedFile for the first file that has any.
  absl::Status Check(Disk* disk, const std::string& directory, const CheckpointManifest& manifest,
                     absl::FunctionRef<bool(const std::string& path)> shown);
  // Must be called when a file is removed, or may be.
  void Forget(const std::string& path);
  void Forget(const CheckpointManifest& manifest);  // All files that it lists.

 private:
  const int threads_;
  absl::Mutex mutex_;
  std::map<std::string, uint64_t> bytes_ ABSL_GUARDED_BY(mutex_);  // By path.
};

// kDataLoss where `crc32c`, the checksum of all bytes of the file, is not the manifest's.
absl::Status CheckListedCrc32c(const std::string& path, const CheckpointFile& listed,
                               uint32_t crc32c);
// kDataLoss where the file has another number of rows than the manifest says.
absl::Status CheckListedRows(const std::string& path, const CheckpointFile& listed, uint64_t rows);

// Called after every piece that is read, with its size. An error ends the reading, and is returned.
using OnRead = std::function<absl::Status(uint64_t bytes)>;

// Reads every byte of a file. Errors: those of OpenListedFile and `on_read`; kDataLoss also where
// its CRC-32C is not the manifest's.
absl::Status CheckListedBytes(Disk* disk, const std::string& path, const CheckpointFile& listed,
                              const OnRead& on_read = nullptr);

// Extends `crc`, the CRC-32C of earlier bytes, by the bytes from `begin` to the end.
// REQUIRES: begin <= file.size(). Errors: kUnavailable, those of `on_read`
absl::StatusOr<uint32_t> Crc32cFrom(const ReadFile& file, uint64_t begin, uint32_t crc = 0,
                                    const OnRead& on_read = nullptr);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_LISTED_FILE_H_
