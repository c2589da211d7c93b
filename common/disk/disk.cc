#include "common/disk/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <mntent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/page_memory.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/disk/retry_io.h"

namespace thermocline {
namespace {

absl::Status ErrorOf(absl::string_view what, const std::string& path, int error) {
  const std::string message = absl::StrCat("can't ", what, " '", path, "': ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// "ext4 at /data": the file system of a file; "its file system" where the system doesn't say.
std::string FileSystemOf(const std::string& path) {
  char* const resolved = realpath(path.c_str(), nullptr);
  const std::string real = resolved == nullptr ? path : resolved;
  free(resolved);
  std::string found = "its file system";
  FILE* const mounts = setmntent("/proc/self/mounts", "re");
  if (mounts == nullptr) return found;
  size_t longest = 0;
  mntent entry;
  char buffer[4096];
  while (getmntent_r(mounts, &entry, buffer, sizeof(buffer)) != nullptr) {
    const absl::string_view at = entry.mnt_dir;
    const bool is_above = at == "/" || (absl::StartsWith(real, at) &&
                                        (real.size() == at.size() || real[at.size()] == '/'));
    // The last file system mounted at a place hides the others.
    if (!is_above || at.size() < longest) continue;
    longest = at.size();
    found = absl::StrCat(entry.mnt_type, " at ", at);
  }
  endmntent(mounts);
  return found;
}

// The error of a write of `bytes` that failed with `error`; says where to make room if the disk is
// full.
absl::Status WriteError(const std::string& path, int fd, uint64_t bytes, int error) {
  absl::Status status = ErrorOf("write", path, error);
  struct statvfs space;
  if (!absl::IsResourceExhausted(status) || fstatvfs(fd, &space) != 0) return status;
  const uint64_t free_bytes = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
  return absl::ResourceExhaustedError(absl::StrCat(status.message(), "; ", FileSystemOf(path),
                                                   " has ", free_bytes, " bytes free, and ", bytes,
                                                   " bytes were to be written"));
}

// The path, or the nearest folder above it that is there.
std::string NearestExisting(std::string path) {
  while (access(path.c_str(), F_OK) != 0) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    path.resize(std::max<size_t>(slash, 1));
  }
  return path;
}

// An open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::StatusOr<Descriptor> OpenFile(absl::string_view what, const std::string& path, int flags) {
  constexpr mode_t kMode = 0644;
  for (;;) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC, kMode);
    if (fd >= 0) return Descriptor(fd);
    if (errno != EINTR) return ErrorOf(what, path, errno);
  }
}

class PosixAppendFile : public AppendFile {
 public:
  PosixAppendFile(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    std::vector<iovec> left;
    for (absl::string_view piece : pieces) {
      if (!piece.empty()) left.push_back({const_cast<char*>(piece.data()), piece.size()});
    }
    for (size_t at = 0; at < left.size();) {
      const int count = static_cast<int>(std::min<size_t>(left.size() - at, IOV_MAX));
      ssize_t written = writev(fd_.get(), &left[at], count);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        const int error = errno;
        uint64_t bytes = 0;
        for (size_t i = at; i < left.size(); ++i) bytes += left[i].iov_len;
        return WriteError(path_, fd_.get(), bytes, error);
      }
      for (; at < left.size() && static_cast<size_t>(written) >= left[at].iov_len; ++at) {
        written -= static_cast<ssize_t>(left[at].iov_len);
      }
      if (written > 0) {
        left[at].iov_base = static_cast<char*>(left[at].iov_base) + written;
        left[at].iov_len -= static_cast<size_t>(written);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (fdatasync(fd_.get()) == 0) return absl::OkStatus();
    return absl::UnavailableError(ErrorOf("sync", path_, errno).message());
  }

  absl::Status Truncate(uint64_t bytes) override {
    if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
    return absl::UnavailableError(ErrorOf("truncate", path_, errno).message());
  }

  void StartWriteback(uint64_t end) override {
    if (end <= written_back_) return;
    // Ignores errors: Sync returns them.
    sync_file_range(fd_.get(), static_cast<off64_t>(written_back_),
                    static_cast<off64_t>(end - written_back_), SYNC_FILE_RANGE_WRITE);
    written_back_ = end;
  }

 private:
  const std::string path_;
  const Descriptor fd_;        // Opened with O_APPEND.
  uint64_t written_back_ = 0;  // As far as StartWriteback has asked for it.
};

// Lets writes go past the page cache, or not. False: the file system can't do that.
bool SetDirect(int fd, bool direct) {
  const int flags = fcntl(fd, F_GETFL);
  return flags != -1 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

// Writes one buffer while the other is filled. Past the page cache a write costs the kernel a fifth
// of the processor time of one into it, which copies every byte, and pages that are never read
// don't displace others there.
class PosixStreamFile : public StreamFile {
 public:
  PosixStreamFile(std::string path, Descriptor fd, bool direct)
      : path_(std::move(path)), fd_(std::move(fd)), direct_(direct), filling_(NewBuffer()) {}

  ~PosixStreamFile() override {
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
    }
    if (thread_.has_value()) thread_->join();
  }

  // REQUIRES: called once, before Append. Errors: kUnavailable.
  absl::Status StartThread() {
    thread_ = TryMakeThread([this] { WriteBuffers(); });
    if (thread_.has_value()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(path_, ": the system makes no thread to write it"));
  }

  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    for (absl::string_view piece : pieces) {
      while (!piece.empty()) {
        const size_t n = std::min(piece.size(), kBufferBytes - filled_);
        std::memcpy(filling_.data() + filled_, piece.data(), n);
        filled_ += n;
        piece.remove_prefix(n);
        if (filled_ == kBufferBytes) RETURN_IF_ERROR(SendBuffer());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (filled_ > 0) RETURN_IF_ERROR(SendBuffer());
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &PosixStreamFile::IsIdle));
    RETURN_IF_ERROR(status_);
    if (fdatasync(fd_.get()) == 0) return absl::OkStatus();
    return absl::UnavailableError(ErrorOf("sync", path_, errno).message());
  }

 private:
  // A multiple of what any disk wants for writes past the page cache, and so are the addresses.
  static constexpr size_t kAlignment = 4096;
  // A huge page: the kernel pins it and gives it to the disk as one piece, not as 512.
  static constexpr size_t kBufferBytes = kHugePageBytes;
  static_assert(kBufferBytes % kAlignment == 0);
  static PageMemory NewBuffer() { return PageMemory(kBufferBytes, PageMemory::HugePages::kAtOnce); }

  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return bytes_ == 0; }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return bytes_ > 0 || closing_; }

  // Gives the filled buffer to the thread, once that has written the other.
  absl::Status SendBuffer() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &PosixStreamFile::IsIdle));
    RETURN_IF_ERROR(status_);
    std::swap(filling_, writing_);
    if (filling_.data() == nullptr) filling_ = NewBuffer();
    bytes_ = std::exchange(filled_, 0);
    return absl::OkStatus();
  }

  void WriteBuffers() {
    for (;;) {
      absl::string_view bytes;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &PosixStreamFile::HasWork));
        if (bytes_ == 0) return;
        bytes = {reinterpret_cast<const char*>(writing_.data()), bytes_};
      }
      const absl::Status status = Write(bytes);
      absl::MutexLock lock(&mutex_);
      status_.Update(status);
      bytes_ = 0;
    }
  }

  absl::Status Write(absl::string_view bytes) {
    const uint64_t begin = written_;
    while (!bytes.empty()) {
      // The end of the file is no whole page, so that it goes through the page cache.
      if (bytes.size() < kAlignment) StopDirect();
      const size_t size = direct_ ? bytes.size() / kAlignment * kAlignment : bytes.size();
      const ssize_t n = pwrite(fd_.get(), bytes.data(), size, static_cast<off_t>(written_));
      if (n < 0 && errno == EINTR) continue;
      // The file system wants another alignment, or can't do it after all.
      if (n < 0 && errno == EINVAL && StopDirect()) continue;
      if (n < 0) return WriteError(path_, fd_.get(), bytes.size(), errno);
      if (static_cast<size_t>(n) % kAlignment != 0) StopDirect();
      written_ += static_cast<uint64_t>(n);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    // Ignores errors: Sync returns them.
    if (!direct_) {
      sync_file_range(fd_.get(), static_cast<off64_t>(begin),
                      static_cast<off64_t>(written_ - begin), SYNC_FILE_RANGE_WRITE);
    }
    return absl::OkStatus();
  }

  // Later bytes go through the page cache. False: they did already.
  bool StopDirect() {
    if (!std::exchange(direct_, false)) return false;
    CHECK(SetDirect(fd_.get(), false));
    return true;
  }

  const std::string path_;
  const Descriptor fd_;
  // The thread's.
  bool direct_;  // Bytes go past the page cache.
  uint64_t written_ = 0;
  // The user's.
  PageMemory filling_;
  size_t filled_ = 0;

  absl::Mutex mutex_;
  PageMemory writing_;  // The thread's while bytes_ > 0, else the user's. Empty at first.
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // So many of writing_ are to be written.
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // The first error.
  std::optional<std::thread> thread_;
};

class PosixReadFile : public ReadFile {
 public:
  PosixReadFile(std::string path, Descriptor fd, uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  uint64_t size() const override { return size_; }

  absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override {
    CHECK_LE(offset + out.size(), size_);
    while (!out.empty()) {
      const ssize_t got = RetryIo(
          [&] { return pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset)); });
      if (got < 0) return absl::UnavailableError(ErrorOf("read", path_, errno).message());
      if (got == 0) {
        return absl::UnavailableError(
            absl::StrCat("'", path_, "' became shorter while it was read"));
      }
      offset += static_cast<uint64_t>(got);
      out.remove_prefix(static_cast<size_t>(got));
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const Descriptor fd_;
  const uint64_t size_;
};

class PosixDirectoryLock : public DirectoryLock {
 public:
  explicit PosixDirectoryLock(Descriptor fd) : fd_(std::move(fd)) {}

 private:
  const Descriptor fd_;
};

}  // namespace

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status CreateDirectories(Disk* disk, const std::string& path) {
  if (path.empty() || path == "." || path.back() == '/') {
    return path.size() > 1 && path != "." ? CreateDirectories(disk, path.substr(0, path.size() - 1))
                                          : absl::OkStatus();
  }
  const std::string folder = FolderOf(path);
  if (!disk->List(path).ok()) {
    RETURN_IF_ERROR(CreateDirectories(disk, folder));
    RETURN_IF_ERROR(disk->CreateDirectory(path));
    return disk->SyncDirectory(folder);
  }
  // The process that made it may have died before it synced the name. A folder that we may not read
  // need not be synced.
  const absl::Status synced = disk->SyncDirectory(folder);
  return absl::IsPermissionDenied(synced) ? absl::OkStatus() : synced;
}

// PosixDisk
// ------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<AppendFile>> PosixDisk::Create(const std::string& path) {
  ASSIGN_OR_RETURN(Descriptor fd, OpenFile("create", path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND));
  return std::make_unique<PosixAppendFile>(path, std::move(fd));
}

absl::StatusOr<std::unique_ptr<StreamFile>> PosixDisk::CreateStream(const std::string& path) {
  ASSIGN_OR_RETURN(Descriptor fd, OpenFile("create", path, O_WRONLY | O_CREAT | O_EXCL));
  const bool direct = SetDirect(fd.get(), true);
  auto file = std::make_unique<PosixStreamFile>(path, std::move(fd), direct);
  RETURN_IF_ERROR(file->StartThread());
  return file;
}

absl::StatusOr<std::unique_ptr<AppendFile>> PosixDisk::OpenToAppend(const std::string& path) {
  ASSIGN_OR_RETURN(Descriptor fd, OpenFile("open", path, O_WRONLY | O_APPEND));
  return std::make_unique<PosixAppendFile>(path, std::move(fd));
}

absl::StatusOr<std::unique_ptr<ReadFile>> PosixDisk::Open(const std::string& path) {
  ASSIGN_OR_RETURN(Descriptor fd, OpenFile("open", path, O_RDONLY));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrorOf("stat", path, errno);
  return std::make_unique<PosixReadFile>(path, std::move(fd), static_cast<uint64_t>(info.st_size));
}

absl::Status PosixDisk::Truncate(const std::string& path, uint64_t bytes) {
  ASSIGN_OR_RETURN(const Descriptor fd, OpenFile("open", path, O_WRONLY));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || fsync(fd.get()) != 0) {
    return absl::UnavailableError(ErrorOf("truncate", path, errno).message());
  }
  return absl::OkStatus();
}

absl::Status PosixDisk::Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrorOf("rename", from, errno);
}

absl::Status PosixDisk::Link(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  if (error != EPERM && error != EOPNOTSUPP && error != ENOSYS && error != EMLINK) {
    return ErrorOf("link", error == EEXIST ? to : from, error);
  }
  return absl::FailedPreconditionError(absl::StrCat(ErrorOf("link", from, error).message(), "; ",
                                                    FileSystemOf(from), " may have no hard links"));
}

absl::Status PosixDisk::Remove(const std::string& path) {
  if (unlink(path.c_str()) == 0) return absl::OkStatus();
  return ErrorOf("remove", path, errno);
}

absl::Status PosixDisk::CreateDirectory(const std::string& path) {
  constexpr mode_t kMode = 0755;
  if (mkdir(path.c_str(), kMode) == 0) return absl::OkStatus();
  const int error = errno;
  struct stat info;
  if (error == EEXIST && stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(ErrorOf("create folder", path, error).message());
}

absl::Status PosixDisk::RemoveDirectory(const std::string& path) {
  if (rmdir(path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  if (error != EEXIST && error != ENOTEMPTY) return ErrorOf("remove folder", path, error);
  return absl::FailedPreconditionError(ErrorOf("remove folder", path, ENOTEMPTY).message());
}

absl::StatusOr<std::vector<std::string>> PosixDisk::List(const std::string& directory) {
  DIR* const open_directory = opendir(directory.c_str());
  if (open_directory == nullptr) return ErrorOf("list", directory, errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(open_directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int error = errno;
  closedir(open_directory);
  if (error != 0) return ErrorOf("list", directory, error);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status PosixDisk::SyncDirectory(const std::string& directory) {
  if (faccessat(AT_FDCWD, directory.c_str(), R_OK, AT_EACCESS) != 0 && errno == EACCES) {
    return absl::PermissionDeniedError(ErrorOf("sync", directory, EACCES).message());
  }
  ASSIGN_OR_RETURN(const Descriptor fd, OpenFile("open", directory, O_RDONLY | O_DIRECTORY));
  if (fsync(fd.get()) == 0) return absl::OkStatus();
  return absl::UnavailableError(ErrorOf("sync", directory, errno).message());
}

absl::StatusOr<std::unique_ptr<DirectoryLock>> PosixDisk::Lock(const std::string& directory) {
  ASSIGN_OR_RETURN(Descriptor fd, OpenFile("open", directory, O_RDONLY | O_DIRECTORY));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", directory, "' is in use by another process"));
    }
    return absl::UnavailableError(ErrorOf("lock", directory, errno).message());
  }
  return std::make_unique<PosixDirectoryLock>(std::move(fd));
}

std::string DescribeFullDisk(const std::string& path, int error) {
  if (error != ENOSPC && error != EDQUOT) return "";
  const std::string there = NearestExisting(path);
  struct statvfs space;
  if (statvfs(there.c_str(), &space) != 0) return "; the disk is full";
  const uint64_t free_bytes = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
  return absl::StrCat("; the disk is full: ", FileSystemOf(there), " has ", free_bytes,
                      " bytes free",
                      space.f_files > 0 && space.f_favail == 0 ? ", and no room for another file"
                      : error == EDQUOT                        ? ", beyond the quota"
                                                               : "");
}

}  // namespace thermocline
