#include "common/arrow/object_store.h"

#include <arrow/buffer.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/util/future.h>
#include <arrow/util/io_util.h>
#include <arrow/util/key_value_metadata.h>
#include <fnmatch.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/arrow/arrow_files.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

constexpr char kDefaultRegion[] = "us-east-1";
constexpr double kConnectTimeoutSeconds = 5;
constexpr double kRequestTimeoutSeconds = 20;
constexpr int kAttempts = 4;
// Objects are read front to back in requests of this many bytes, one of them ahead.
constexpr int64_t kStreamBytes = 4 << 20;

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns Arrow's name for the object "s3://BUCKET/KEY": BUCKET/KEY.
std::string PathInStore(absl::string_view path) {
  return std::string(absl::StripPrefix(path, "s3://"));
}

std::string BucketOf(absl::string_view path) {
  const std::string in_store = PathInStore(path);
  return in_store.substr(0, in_store.find('/'));
}

// Amazon's library lives from the first store to the end of the process.
absl::Status InitializeOnce() {
  static const arrow::Status* const status = [] {
    arrow::fs::S3GlobalOptions options = arrow::fs::S3GlobalOptions::Defaults();
    struct sigaction action = {};
    sigaction(SIGPIPE, nullptr, &action);
    options.install_sigpipe_handler = action.sa_handler == SIG_DFL;
    return new arrow::Status(arrow::fs::InitializeS3(options));
  }();
  return FromArrow("s3://", *status);
}

class ArrowObjectStream : public ObjectStream {
 public:
  ArrowObjectStream(std::string path, std::shared_ptr<arrow::io::RandomAccessFile> file,
                    int64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {
    Prefetch();
  }
  ~ArrowObjectStream() override {
    if (next_.is_valid()) next_.Wait();
  }

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    if (block_ == nullptr || position_ == block_->size()) {
      if (!next_.is_valid()) return size_t{0};
      auto block = next_.MoveResult();
      next_ = {};
      if (!block.ok()) return FromArrow(path_, block.status());
      block_ = *std::move(block);
      position_ = 0;
      if (block_->size() == 0) return size_t{0};
      Prefetch();
    }
    const int64_t size =
        std::min<int64_t>(static_cast<int64_t>(buffer.size()), block_->size() - position_);
    std::memcpy(buffer.data(), block_->data() + position_, size);
    position_ += size;
    return static_cast<size_t>(size);
  }
  void Seek(int64_t offset) override {
    if (next_.is_valid()) next_.Wait();
    next_ = {};
    block_ = nullptr;
    requested_ = offset;
    Prefetch();
  }
  int64_t size() const override { return size_; }

 private:
  void Prefetch() {
    if (requested_ >= size_) return;
    next_ = file_->ReadAsync(requested_, std::min(kStreamBytes, size_ - requested_));
    requested_ += kStreamBytes;
  }

  const std::string path_;
  const std::shared_ptr<arrow::io::RandomAccessFile> file_;
  const int64_t size_;
  int64_t requested_ = 0;
  arrow::Future<std::shared_ptr<arrow::Buffer>> next_;
  std::shared_ptr<arrow::Buffer> block_;
  int64_t position_ = 0;  // The next byte to return, in block_.
};

class S3Store : public ArrowObjectStore {
 public:
  explicit S3Store(const Data::S3& job) : job_(job) {}
  ~S3Store() override {
    // Amazon's library is ended as the process ends, before the static objects that it made while
    // the store was used.
    if (arrow::fs::IsS3Initialized()) std::atexit([] { (void)arrow::fs::EnsureS3Finalized(); });
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    const size_t wildcard = path.find_first_of("*?[");
    if (wildcard != path.npos) return ListMatches(path, wildcard);
    const bool is_folder = absl::EndsWith(path, "/");
    if (!is_folder) {
      ASSIGN_OR_RETURN(const arrow::fs::FileInfo info, Info(path));
      if (!info.IsDirectory()) return std::vector<std::string>{path};
    }
    const std::string folder(absl::StripSuffix(path, "/"));
    ASSIGN_OR_RETURN(std::vector<std::string> found, ListFolder(folder, /*recursive=*/false));
    found.erase(std::remove_if(found.begin(), found.end(),
                               [](const std::string& name) {
                                 const char first = name[name.rfind('/') + 1];
                                 return first == '.' || first == '_';
                               }),
                found.end());
    if (found.empty()) {
      ASSIGN_OR_RETURN(found, ListFolder(folder, /*recursive=*/true));
      found.erase(std::remove_if(found.begin(), found.end(),
                                 [&](const std::string& name) {
                                   return !IsInKeyFolders(
                                       absl::string_view(name).substr(folder.size() + 1));
                                 }),
                  found.end());
    }
    if (found.empty())
      return absl::NotFoundError(absl::StrCat(path, ": the folder has no objects"));
    return found;
  }

  absl::StatusOr<std::unique_ptr<ObjectStream>> OpenStream(const std::string& path) override {
    ASSIGN_OR_RETURN(std::shared_ptr<arrow::io::RandomAccessFile> file, OpenFile(path));
    const arrow::Result<int64_t> size = file->GetSize();
    if (!size.ok()) return FromArrow(path, size.status());
    return std::make_unique<ArrowObjectStream>(path, std::move(file), *size);
  }

  absl::StatusOr<ObjectIdentity> Identify(const std::string& path, int64_t end_bytes) override {
    ASSIGN_OR_RETURN(arrow::fs::S3FileSystem* const files, Connect(path));
    const auto file = files->OpenInputFile(PathInStore(path));
    if (!file.ok()) return Error(path, file.status());
    const auto size = (*file)->GetSize();
    if (!size.ok()) return Error(path, size.status());
    const auto metadata = (*file)->ReadMetadata();
    if (!metadata.ok()) return Error(path, metadata.status());
    arrow::Result<std::string> tag = arrow::Status::KeyError("ETag");
    if (*metadata != nullptr) tag = (*metadata)->Get("ETag");
    if (!tag.ok()) return absl::UnavailableError(absl::StrCat(path, ": has no ETag"));
    ObjectIdentity object = {*size, *tag, "", ""};
    const int64_t bytes = std::min(*size, end_bytes);
    for (const auto& [offset, to] :
         {std::pair(int64_t{0}, &object.head), std::pair(*size - bytes, &object.tail)}) {
      if (bytes == 0) break;
      const auto end = (*file)->ReadAt(offset, bytes);
      if (!end.ok()) return Error(path, end.status());
      *to = (*end)->ToString();
    }
    return object;
  }

  absl::StatusOr<std::shared_ptr<arrow::io::RandomAccessFile>> OpenFile(
      const std::string& path) override {
    ASSIGN_OR_RETURN(const arrow::fs::FileInfo info, Info(path));
    ASSIGN_OR_RETURN(arrow::fs::S3FileSystem* const files, Connect(path));
    auto file = files->OpenInputFile(info);
    if (!file.ok()) return Error(path, file.status());
    return *std::move(file);
  }

 private:
  // Looks up an object or a folder. Errors: the class's; kNotFound says whether the bucket is
  // there.
  absl::StatusOr<arrow::fs::FileInfo> Info(const std::string& path) {
    const std::string in_store = PathInStore(path);
    if (in_store.find('/') == in_store.npos || in_store[0] == '/') {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": names no object; it is s3://BUCKET/KEY"));
    }
    ASSIGN_OR_RETURN(arrow::fs::S3FileSystem* const files, Connect(path));
    const arrow::Result<arrow::fs::FileInfo> info = files->GetFileInfo(in_store);
    if (!info.ok()) return Error(path, info.status());
    if (info->type() != arrow::fs::FileType::NotFound) return *info;
    return NotFound(path);
  }

  absl::Status NotFound(const std::string& path) {
    const std::string bucket = BucketOf(path);
    ASSIGN_OR_RETURN(arrow::fs::S3FileSystem* const files, Connect(path));
    const arrow::Result<arrow::fs::FileInfo> info = files->GetFileInfo(bucket);
    const bool is_missing = info.ok() && info->type() == arrow::fs::FileType::NotFound;
    return absl::NotFoundError(
        is_missing ? absl::StrCat(path, ": there is no bucket '", bucket, "' ", WhereItAsks())
                   : absl::StrCat(path, ": the bucket '", bucket, "' has no such key"));
  }

  // The objects below `folder`, sorted.
  absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& folder, bool recursive) {
    ASSIGN_OR_RETURN(arrow::fs::S3FileSystem* const files, Connect(folder));
    arrow::fs::FileSelector selector;
    selector.base_dir = PathInStore(folder);
    selector.recursive = recursive;
    selector.allow_not_found = true;
    const auto infos = files->GetFileInfo(selector);
    if (!infos.ok()) return Error(folder, infos.status());
    std::vector<std::string> found;
    for (const arrow::fs::FileInfo& info : *infos) {
      if (info.IsFile()) found.push_back(absl::StrCat("s3://", info.path()));
    }
    if (infos->empty()) return NotFound(folder);
    std::sort(found.begin(), found.end());
    return found;
  }

  absl::StatusOr<std::vector<std::string>> ListMatches(const std::string& pattern,
                                                       size_t wildcard) {
    const std::string folder = pattern.substr(0, pattern.rfind('/', wildcard));
    if (folder.size() <= std::strlen("s3:/")) {
      return absl::InvalidArgumentError(
          absl::StrCat(pattern, ": names no bucket; it is s3://BUCKET/KEY"));
    }
    const bool recursive = pattern.find('/', wildcard) != pattern.npos;
    ASSIGN_OR_RETURN(std::vector<std::string> found, ListFolder(folder, recursive));
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const std::string& path) {
                                 return fnmatch(pattern.c_str(), path.c_str(),
                                                FNM_PATHNAME | FNM_PERIOD) != 0;
                               }),
                found.end());
    if (found.empty()) {
      return absl::NotFoundError(absl::StrCat(pattern, ": no object matches the pattern"));
    }
    return found;
  }

  // The file system; made by the first call, which may ask for credentials. Errors name `path`.
  absl::StatusOr<arrow::fs::S3FileSystem*> Connect(const std::string& path) {
    absl::MutexLock lock(&mutex_);
    if (files_ != nullptr) return files_.get();
    RETURN_IF_ERROR(InitializeOnce());
    arrow::fs::S3Options s3 =
        job_.anonymous() ? arrow::fs::S3Options::Anonymous() : arrow::fs::S3Options::Defaults();
    if (!job_.anonymous() && s3.GetAccessKey().empty()) {
      return absl::UnauthenticatedError(absl::StrCat(
          path,
          ": there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or "
          "AWS_PROFILE), or data.s3.anonymous for a public bucket"));
    }
    RETURN_IF_ERROR(SetEndpoint(path, &s3));
    s3.region = job_.region();
    if (s3.region.empty()) s3.region = Environment("AWS_REGION");
    if (s3.region.empty()) s3.region = Environment("AWS_DEFAULT_REGION");
    if (s3.region.empty()) s3.region = kDefaultRegion;
    s3.connect_timeout = kConnectTimeoutSeconds;
    s3.request_timeout = kRequestTimeoutSeconds;
    s3.retry_strategy = arrow::fs::S3RetryStrategy::GetAwsStandardRetryStrategy(kAttempts);
    s3.tls_ca_file_path = Environment("SSL_CERT_FILE");
    const char kCertificates[] = "/etc/ssl/certs/ca-certificates.crt";
    if (s3.tls_ca_file_path.empty() && std::filesystem::exists(kCertificates)) {
      s3.tls_ca_file_path = kCertificates;
    }
    auto files = arrow::fs::S3FileSystem::Make(s3);
    if (!files.ok()) return Error(path, files.status());
    files_ = *std::move(files);
    return files_.get();
  }

  // "": Amazon's own.
  std::string Endpoint() const {
    std::string endpoint = job_.endpoint();
    if (endpoint.empty()) endpoint = Environment("AWS_ENDPOINT_URL_S3");
    if (endpoint.empty()) endpoint = Environment("AWS_ENDPOINT_URL");
    return endpoint;
  }

  std::string WhereItAsks() const {
    const std::string endpoint = Endpoint();
    return absl::StrCat("at ", endpoint.empty() ? "Amazon's store" : endpoint,
                        " (data.s3.endpoint, or AWS_ENDPOINT_URL)");
  }

  // The error of a request about `path`, with what to set.
  absl::Status Error(const std::string& path, const arrow::Status& status) const {
    const absl::Status error = FromArrow(path, status);
    std::string advice;
    if (absl::IsUnauthenticated(error) || absl::IsPermissionDenied(error)) {
      advice = job_.anonymous()
                   ? "without credentials (data.s3.anonymous) it may not be read"
                   : "the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                     "AWS_PROFILE) are wrong, or do not allow to read it";
    } else if (absl::StrContains(error.message(), "NETWORK_CONNECTION")) {
      advice = absl::StrCat("no answer ", WhereItAsks());
    } else if (absl::StrContains(error.message(), "HTTP status 301")) {
      advice = "the bucket is in another region than data.s3.region (or AWS_REGION) says";
    }
    if (advice.empty()) return error;
    return absl::Status(error.code(), absl::StrCat(path, ": ", advice, "; ", status.message()));
  }

  absl::Status SetEndpoint(const std::string& path, arrow::fs::S3Options* s3) const {
    const std::string endpoint = Endpoint();
    if (endpoint.empty()) return absl::OkStatus();
    const size_t scheme_end = endpoint.find("://");
    s3->scheme = scheme_end == endpoint.npos ? "" : endpoint.substr(0, scheme_end);
    if (s3->scheme != "http" && s3->scheme != "https") {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": data.s3.endpoint (or AWS_ENDPOINT_URL) is '", endpoint,
                       "', not http://HOST:PORT"));
    }
    s3->endpoint_override = endpoint.substr(scheme_end + 3);
    while (absl::EndsWith(s3->endpoint_override, "/")) s3->endpoint_override.pop_back();
    return absl::OkStatus();
  }

  const Data::S3 job_;
  absl::Mutex mutex_;
  std::shared_ptr<arrow::fs::S3FileSystem> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status FromArrow(const std::string& path, const arrow::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(path, ": ", status.message());
  switch (arrow::internal::ErrnoFromStatus(status)) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      break;
  }
  // Arrow gives the kinds of errors of stores in its messages alone.
  for (const char* wrong : {"SIGNATURE", "INVALID_ACCESS_KEY", "INVALID_CLIENT_TOKEN",
                            "UNRECOGNIZED_CLIENT", "EXPIRED", "InvalidAccessKeyId"}) {
    if (absl::StrContains(status.message(), wrong)) return absl::UnauthenticatedError(message);
  }
  if (absl::StrContains(status.message(), "ACCESS_DENIED")) {
    return absl::PermissionDeniedError(message);
  }
  for (const char* wrong :
       {"NO_SUCH_BUCKET", "NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "does not exist"}) {
    if (absl::StrContains(status.message(), wrong)) return absl::NotFoundError(message);
  }
  if (status.IsInvalid()) return absl::DataLossError(message);
  return absl::UnavailableError(message);
}

absl::StatusOr<std::unique_ptr<ObjectStore>> ObjectStore::Open(const Data_S3& s3) {
  return std::make_unique<S3Store>(s3);
}

}  // namespace thermocline
