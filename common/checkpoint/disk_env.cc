#include "common/checkpoint/disk_env.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "rocksdb/file_system.h"

namespace thermocline {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

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

  // Functions that SstFileReader does not use.
  IOStatus NewWritableFile(const std::string&, const FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>*, IODebugContext*) override {
    return NotSupported();
  }
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
  static IOStatus NotSupported() { return IOStatus::NotSupported("only reading"); }
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
