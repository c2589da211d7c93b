// Files behind an interface: the disks of tests and of the simulation lose, reorder and refuse
// writes as a real disk may.
//
// A failed Append may have written some of its bytes. After a failed Sync the content of the medium
// is unknown, so the process has to end (fsync is never retried). Every error names the file.
#ifndef THERMOCLINE_COMMON_DISK_DISK_H_
#define THERMOCLINE_COMMON_DISK_DISK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace thermocline {

// A file that is written once, from its beginning to its end. Not thread-safe. Destruction closes
// the file without a sync.
class StreamFile {
 public:
  virtual ~StreamFile() = default;

  // Writes the pieces, one after the other. A file of CreateStream writes them later: an error may
  // come from a later call of Append or Sync.
  // Errors: kResourceExhausted (the disk is full; names the file system, its free space and the
  // size of the write), kUnavailable (any other).
  virtual absl::Status Append(absl::Span<const absl::string_view> pieces) = 0;
  // Puts everything appended before the call on the medium. Errors: kUnavailable; of a file of
  // CreateStream also those of Append.
  virtual absl::Status Sync() = 0;
};

// A file that grows at its end. One thread appends; another may call Sync meanwhile.
class AppendFile : public StreamFile {
 public:
  // Shortens the file, for example to remove the bytes of a failed Append. Errors: kUnavailable
  virtual absl::Status Truncate(uint64_t bytes) = 0;
  // A hint to begin writing the bytes up to `end` to the medium, so that the next Sync is short.
  // Does not wait, and promises nothing.
  virtual void StartWriteback(uint64_t /*end*/) {}
};

// A file whose content is fixed. Thread-safe.
class ReadFile {
 public:
  virtual ~ReadFile() = default;

  virtual uint64_t size() const = 0;
  // Reads out.size() bytes. REQUIRES: offset + out.size() <= size()
  // Errors: kUnavailable
  virtual absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const = 0;
};

// A lock that is held until the object is destroyed. The operating system releases it when the
// process dies.
class DirectoryLock {
 public:
  virtual ~DirectoryLock() = default;
};

// Thread-safe. Paths are absolute or relative to the process; parents exist.
class Disk {
 public:
  virtual ~Disk() = default;

  // Makes a file. It survives a crash of the host only after SyncDirectory of its folder.
  // Errors: kAlreadyExists, kResourceExhausted, kUnavailable
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) = 0;
  // The same for a large file that is not read soon: its bytes leave on a thread of their own while
  // others are appended, and past the page cache where the file system can do that.
  virtual absl::StatusOr<std::unique_ptr<StreamFile>> CreateStream(const std::string& path) {
    return Create(path);
  }
  // Opens an existing file to append to it. Errors: kNotFound, kUnavailable
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> OpenToAppend(const std::string& path) = 0;
  // Errors: kNotFound, kUnavailable
  virtual absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) = 0;
  // Shortens a file and syncs it. Errors: kNotFound, kUnavailable
  virtual absl::Status Truncate(const std::string& path, uint64_t bytes) = 0;
  // Replaces `to` in one step. Errors: kNotFound, kUnavailable
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Gives the file `from` a second name in one step. Of several processes that try, one succeeds.
  // Errors: kAlreadyExists (`to` exists), kNotFound, kFailedPrecondition (the file system has no
  // links), kResourceExhausted, kUnavailable
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  // Errors: kNotFound, kUnavailable
  virtual absl::Status Remove(const std::string& path) = 0;

  // OK where the folder exists already. Errors: kUnavailable
  virtual absl::Status CreateDirectory(const std::string& path) = 0;
  // Errors: kNotFound, kFailedPrecondition (the folder is not empty), kUnavailable
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;
  // Names of the files and folders in a folder, sorted. Errors: kNotFound, kUnavailable
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  // Puts the creations, renames and removals in the folder so far on the medium.
  // Errors: kPermissionDenied (this process may not read the folder), kUnavailable
  virtual absl::Status SyncDirectory(const std::string& directory) = 0;
  // Errors: kFailedPrecondition (another process holds the lock), kUnavailable
  virtual absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& directory) = 0;
};

// Disk on the operating system's files.
class PosixDisk : public Disk {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<StreamFile>> CreateStream(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenToAppend(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override;
  absl::Status Truncate(const std::string& path, uint64_t bytes) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status CreateDirectory(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::Status SyncDirectory(const std::string& directory) override;
  absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& directory) override;
};

// The folder that a path is in: "a" is in ".", "/a" in "/".
std::string FolderOf(const std::string& path);

// Creates a folder and the missing folders above it, and puts the names of all of them on the
// medium. Errors: kUnavailable
absl::Status CreateDirectories(Disk* disk, const std::string& path);

// The end of a message about a write or a new file at `path` that failed with `error` (errno): ";
// the disk is full: ext4 at /data has 40960 bytes free", or "" where the disk is not full. `path`
// need not exist; its folder should.
std::string DescribeFullDisk(const std::string& path, int error);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_DISK_H_
