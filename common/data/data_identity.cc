#include "common/data/data_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/disk/file_list.h"
#include "common/disk/retry_io.h"
#include "common/job/job_data.h"

namespace thermocline {
namespace {

// How many files are looked at at once, since each look waits for a disk or a store.
constexpr size_t kMostLooks = 32;

absl::StatusOr<uint32_t> ChecksumAt(const std::string& path, int fd, int64_t offset,
                                    int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = RetryIo([&] {
      return pread(fd, &text[done], text.size() - done,
                   static_cast<off_t>(offset + static_cast<int64_t>(done)));
    });
    if (n < 0) return FileError(path, "", errno);
    if (n == 0) return absl::UnavailableError(absl::StrCat(path, ": gets shorter"));
    done += static_cast<size_t>(n);
  }
  return Crc32c(text.data(), text.size());
}

absl::StatusOr<FileIdentity> IdentifyObject(const std::string& path, ObjectStore* store,
                                            int64_t end_bytes) {
  ASSIGN_OR_RETURN(const ObjectIdentity object, store->Identify(path, end_bytes));
  FileIdentity identity;
  identity.bytes = object.size;
  identity.tag = object.tag;
  identity.head_crc = Crc32c(object.head.data(), object.head.size());
  identity.tail_crc = Crc32c(object.tail.data(), object.tail.size());
  return identity;
}

// The files that an npy job reads, of those called PREFIX_*.npy.
std::vector<std::string> NpyPaths(const Job& job, const std::string& prefix) {
  std::vector<std::string> paths;
  for (const std::string& part : NpyParts(job)) {
    paths.push_back(absl::StrCat(prefix, "_", part, ".npy"));
  }
  return paths;
}

absl::Status IdentifyAll(const std::vector<std::string>& paths, ObjectStore* store,
                         google::protobuf::RepeatedPtrField<DataFile>* files) {
  for (size_t i = 0; i < paths.size(); ++i) files->Add();
  return ForEachFile(paths.size(), [&](size_t i) -> absl::Status {
    ASSIGN_OR_RETURN(const FileIdentity identity, IdentifyFile(paths[i], store, kDataFileEndBytes));
    *files->Mutable(static_cast<int>(i)) = ToDataFile(paths[i], identity);
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<ObjectStore>> OpenStore(const Data& data) {
  bool is_used = false;
  for (const Data::Files& files : {data.train(), data.test()}) {
    for (const std::string& path : files.path()) is_used |= IsObjectPath(path);
  }
  if (!is_used) return std::shared_ptr<ObjectStore>();
  ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> store, ObjectStore::Open(data.s3()));
  return std::shared_ptr<ObjectStore>(std::move(store));
}

absl::StatusOr<std::vector<std::string>> ListAll(const Data::Files& files, ObjectStore* store) {
  std::vector<std::string> all;
  for (const std::string& path : files.path()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> found,
                     IsObjectPath(path) ? store->List(path) : ListFiles(path));
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

absl::StatusOr<FileIdentity> IdentifyFile(const std::string& path, ObjectStore* store,
                                          int64_t end_bytes) {
  if (IsObjectPath(path)) return IdentifyObject(path, store, end_bytes);
  FileIdentity identity;
  struct stat info;
  if (RetryIo([&] { return stat(path.c_str(), &info); }) != 0) return FileError(path, "", errno);
  if (!S_ISREG(info.st_mode)) return identity;
  const auto open_file = [&]() -> ssize_t {
    return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  };
  const int fd = end_bytes == 0 ? -1 : static_cast<int>(RetryIo(open_file));
  const absl::Cleanup close_file = [fd] {
    if (fd >= 0) close(fd);
  };
  if (end_bytes > 0) {
    if (fd < 0 || fstat(fd, &info) != 0) return FileError(path, "", errno);
    if (!S_ISREG(info.st_mode)) return identity;
    const int64_t bytes = std::min<int64_t>(info.st_size, end_bytes);
    ASSIGN_OR_RETURN(identity.head_crc, ChecksumAt(path, fd, 0, bytes));
    ASSIGN_OR_RETURN(identity.tail_crc, ChecksumAt(path, fd, info.st_size - bytes, bytes));
  }
  identity.bytes = info.st_size;
  identity.modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return identity;
}

absl::Status ForEachFile(size_t count, absl::FunctionRef<absl::Status(size_t i)> call) {
  std::vector<absl::Status> errors(count);
  ThreadPool threads(static_cast<int>(std::clamp<size_t>(count, 1, kMostLooks)));
  threads.ParallelFor(static_cast<int64_t>(count), [&](int64_t i, int) {
    errors[static_cast<size_t>(i)] = call(static_cast<size_t>(i));
  });
  for (const absl::Status& error : errors) RETURN_IF_ERROR(error);
  return absl::OkStatus();
}

absl::StatusOr<DataFiles> IdentifyData(const Job& job) {
  const Data data = DescribeData(job.data());
  DataFiles files;
  if (IsNpy(data)) {
    const std::string& folder = data.train().path(0);
    RETURN_IF_ERROR(IdentifyAll(NpyPaths(job, folder + "/train"), nullptr, files.mutable_train()));
    const absl::Status test =
        IdentifyAll(NpyPaths(job, folder + "/test"), nullptr, files.mutable_test());
    if (!test.ok() && !absl::IsNotFound(test)) return test;
    if (!test.ok()) files.clear_test();
    return files;
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, OpenStore(data));
  ASSIGN_OR_RETURN(std::vector<std::string> paths, ListAll(data.train(), store.get()));
  RETURN_IF_ERROR(IdentifyAll(paths, store.get(), files.mutable_train()));
  if (!data.has_test()) return files;
  ASSIGN_OR_RETURN(paths, ListAll(data.test(), store.get()));
  RETURN_IF_ERROR(IdentifyAll(paths, store.get(), files.mutable_test()));
  return files;
}

DataFile ToDataFile(const std::string& path, const FileIdentity& identity) {
  DataFile file;
  file.set_path(path);
  if (!identity.bytes.has_value()) return file;
  file.set_bytes(static_cast<uint64_t>(*identity.bytes));
  file.set_head_crc32c(identity.head_crc);
  file.set_tail_crc32c(identity.tail_crc);
  return file;
}

}  // namespace thermocline
