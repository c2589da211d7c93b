#include "common/checkpoint/disk_env.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/hash.h"
#include "rocksdb/file_system.h"

namespace thermocline {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr uint64_t kWritebackBytes = 8 << 20;

class WritableFile : public rocksdb::FSWritableFile {
 public:
  WritableFile(std::unique_ptr<AppendFile> file, std::shared_ptr<DiskActivity> activity)
      : file_(std::move(file)), activity_(std::move(activity)) {}

  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    const absl::Status status = file_->Append({absl::string_view(data.data(), data.size())});
    if (!status.ok()) return Failed(status);
    activity_->Count(data.data(), data.size());
    // Else the disk would idle until the sync at the end.
    if (activity_->bytes / kWritebackBytes > (activity_->bytes - data.size()) / kWritebackBytes) {
      file_->StartWriteback(activity_->bytes);
    }
    return IOStatus::OK();
  }
  using rocksdb::FSWritableFile::Append;
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    const absl::Status status = file_->Sync();
    return status.ok() ? IOStatus::OK() : Failed(status);
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override {
    file_.reset();
    return IOStatus::OK();
  }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return activity_->bytes; }

 private:
  IOStatus Failed(const absl::Status& status) {
    activity_->Record(status);
    return IOStatus::IOError(std::string(status.message()));
  }

  std::unique_ptr<AppendFile> file_;
  const std::shared_ptr<DiskActivity> activity_;
};

class RandomAccessFile : public rocksdb::FSRandomAccessFile {
 public:
  RandomAccessFile(std::unique_ptr<ReadFile> file, std::shared_ptr<DiskActivity> activity)
      : file_(std::move(file)), activity_(std::move(activity)) {}

  // Returns fewer bytes at the end of the file, as RocksDB expects.
  IOStatus Read(uint64_t offset, size_t bytes, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    const uint64_t size = file_->size();
    bytes = offset < size ? std::min<uint64_t>(bytes, size - offset) : 0;
    *result = Slice(scratch, bytes);
    if (bytes == 0) return IOStatus::OK();
    const absl::Status status = file_->ReadAt(offset, absl::MakeSpan(scratch, bytes));
    if (status.ok()) {
      if (activity_->counts_reads) activity_->CountRead(offset, scratch, bytes);
      return IOStatus::OK();
    }
    activity_->Record(status);
    return IOStatus::IOError(std::string(status.message()));
  }

 private:
  const std::unique_ptr<ReadFile> file_;
  const std::shared_ptr<DiskActivity> activity_;
};

class DiskFileSystem : public rocksdb::FileSystem {
 public:
  DiskFileSystem(Disk* disk, std::shared_ptr<DiskActivity> activity)
      : disk_(disk), activity_(std::move(activity)) {}

  const char* Name() const override { return "Disk"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                           IODebugContext*) override {
    const absl::Status removed = disk_->Remove(path);
    if (!removed.ok() && !absl::IsNotFound(removed)) return Failed(removed);
    auto file = disk_->Create(path);
    if (!file.ok()) return Failed(file.status());
    *result = std::make_unique<WritableFile>(*std::move(file), activity_);
    return IOStatus::OK();
  }
  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext*) override {
    auto file = disk_->Open(path);
    if (!file.ok()) return Failed(file.status());
    *result = std::make_unique<RandomAccessFile>(*std::move(file), activity_);
    return IOStatus::OK();
  }
  IOStatus GetFileSize(const std::string& path, const IOOptions&, uint64_t* size,
                       IODebugContext*) override {
    auto file = disk_->Open(path);
    if (!file.ok()) return Failed(file.status());
    *size = (*file)->size();
    return IOStatus::OK();
  }

  // Functions that neither SstFileWriter nor SstFileReader uses.
  IOStatus NewSequentialFile(const std::string&, const FileOptions&,
                             std::unique_ptr<rocksdb::FSSequentialFile>*,
                             IODebugContext*) override {
    return NotSupported();
  }
  IOStatus NewDirectory(const std::string&, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>*, IODebugContext*) override {
    return NotSupported();
  }
  IOStatus FileExists(const std::string&, const IOOptions&, IODebugContext*) override {
    return NotSupported();
  }
  IOStatus GetChildren(const std::string&, const IOOptions&, std::vector<std::string>*,
                       IODebugContext*) override {
    return NotSupported();
  }
  IOStatus DeleteFile(const std::string&, const IOOptions&, IODebugContext*) override {
    return NotSupported();
  }
  IOStatus CreateDir(const std::string&, const IOOptions&, IODebugContext*) override {
    return NotSupported();
  }
  IOStatus CreateDirIfMissing(const std::string&, const IOOptions&, IODebugContext*) override {
    return NotSupported();
  }
  IOStatus DeleteDir(const std::string&, const IOOptions&, IODebugContext*) override {
    return NotSupported();
  }
  IOStatus GetFileModificationTime(const std::string&, const IOOptions&, uint64_t*,
                                   IODebugContext*) override {
    return NotSupported();
  }
  IOStatus RenameFile(const std::string&, const std::string&, const IOOptions&,
                      IODebugContext*) override {
    return NotSupported();
  }
  IOStatus LockFile(const std::string&, const IOOptions&, rocksdb::FileLock**,
                    IODebugContext*) override {
    return NotSupported();
  }
  IOStatus UnlockFile(rocksdb::FileLock*, const IOOptions&, IODebugContext*) override {
    return NotSupported();
  }
  IOStatus GetTestDirectory(const IOOptions&, std::string*, IODebugContext*) override {
    return NotSupported();
  }
  IOStatus GetAbsolutePath(const std::string&, const IOOptions&, std::string*,
                           IODebugContext*) override {
    return NotSupported();
  }
  IOStatus IsDirectory(const std::string&, const IOOptions&, bool*, IODebugContext*) override {
    return NotSupported();
  }

 private:
  static IOStatus NotSupported() { return IOStatus::NotSupported("only SST files"); }
  IOStatus Failed(const absl::Status& status) {
    activity_->Record(status);
    return IOStatus::IOError(std::string(status.message()));
  }

  Disk* const disk_;
  const std::shared_ptr<DiskActivity> activity_;
};

}  // namespace

absl::Status DiskActivity::error() const {
  absl::MutexLock lock(&mutex_);
  return error_;
}

void DiskActivity::Record(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  error_.Update(status);
}

void DiskActivity::Count(const char* data, size_t size) {
  crc32c = ExtendCrc32c(crc32c, data, size);
  const uint64_t before_tail =
      tail_begin > bytes ? std::min<uint64_t>(tail_begin - bytes, size) : 0;
  tail_crc32c = ExtendCrc32c(tail_crc32c, data + before_tail, size - before_tail);
  bytes += size;
}

void DiskActivity::CountRead(uint64_t offset, const char* data, size_t size) {
  if (offset > read_through || offset + size <= read_through) return;
  const uint64_t known = read_through - offset;
  read_crc32c = ExtendCrc32c(read_crc32c, data + known, size - known);
  read_through = offset + size;
}

std::unique_ptr<rocksdb::Env> NewDiskEnv(Disk* disk, std::shared_ptr<DiskActivity> activity) {
  return rocksdb::NewCompositeEnv(std::make_shared<DiskFileSystem>(disk, std::move(activity)));
}

}  // namespace thermocline
