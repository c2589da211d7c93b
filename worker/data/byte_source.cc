#include "worker/data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "common/disk/retry_io.h"

namespace thermocline {
namespace {

constexpr size_t kCompressedBufferBytes = 256 << 10;
constexpr size_t kMagicBytes = 4;  // A file's first bytes that say how it is compressed.
// zlib: 15 bits of window, and a gzip header and trailer around the data.
constexpr int kGzipWindowBits = 15 + 16;
constexpr int kRawWindowBits = -15;  // The deflated data alone.

class PlainSource : public ByteSource {
 public:
  PlainSource(std::string path, int fd, int64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}
  ~PlainSource() override { close(fd_); }

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    // A read that fails leaves the place in the file as it was.
    const ssize_t n = RetryIo([&] { return read(fd_, buffer.data(), buffer.size()); });
    if (n < 0) return FileError(path_, "cannot read", errno);
    position_ += n;
    return static_cast<size_t>(n);
  }
  absl::Status Restart(const RestartPoint& point) override {
    if (lseek(fd_, point.file_offset, SEEK_SET) != point.file_offset) {
      return FileError(path_, "cannot seek", errno);
    }
    position_ = point.file_offset;
    return absl::OkStatus();
  }
  int64_t position() const override { return position_; }
  int64_t size() const override { return size_; }
  bool compressed() const override { return false; }

 private:
  const std::string path_;
  const int fd_;
  const int64_t size_;
  int64_t position_ = 0;
};

class ObjectSource : public ByteSource {
 public:
  // `head` has the bytes of the stream that were read already.
  ObjectSource(std::unique_ptr<ObjectStream> stream, std::string head)
      : stream_(std::move(stream)), head_(std::move(head)) {}

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    size_t size = std::min(buffer.size(), head_.size());
    std::memcpy(buffer.data(), head_.data(), size);
    head_.erase(0, size);
    if (size == 0) {
      ASSIGN_OR_RETURN(size, stream_->Read(buffer));
    }
    position_ += static_cast<int64_t>(size);
    return size;
  }
  absl::Status Restart(const RestartPoint& point) override {
    if (point.file_offset > stream_->size()) {
      return absl::DataLossError("the object is shorter");
    }
    head_.clear();
    stream_->Seek(point.file_offset);
    position_ = point.file_offset;
    return absl::OkStatus();
  }
  int64_t position() const override { return position_; }
  int64_t size() const override { return stream_->size(); }
  bool compressed() const override { return false; }

 private:
  const std::unique_ptr<ObjectStream> stream_;
  std::string head_;
  int64_t position_ = 0;
};

// The base of compressed sources. It collects the places where reading may begin again.
class CompressedSource : public ByteSource {
 public:
  CompressedSource(std::string path, std::unique_ptr<ByteSource> file)
      : path_(std::move(path)), file_(std::move(file)), buffer_(kCompressedBufferBytes) {}

  void CollectPoints(int64_t every_bytes, std::function<void(RestartPoint)> on_point) override {
    every_bytes_ = every_bytes;
    on_point_ = std::move(on_point);
  }
  int64_t size() const override { return file_->size(); }
  bool compressed() const override { return true; }

 protected:
  // Whether a point at byte `offset` of the text is far enough from the last one.
  bool WantsPoint(int64_t offset) const {
    return on_point_ != nullptr && offset - last_point_ >= every_bytes_;
  }
  void GivePoint(RestartPoint point) {
    last_point_ = point.offset;
    on_point_(std::move(point));
  }
  absl::Status RestartFile(const RestartPoint& point, int64_t file_offset) {
    offset_ = last_point_ = point.offset;
    return file_->Restart({file_offset, file_offset, -1, ""});
  }

  const std::string path_;
  const std::unique_ptr<ByteSource> file_;
  std::vector<char> buffer_;
  int64_t offset_ = 0;  // How many bytes of text all calls of Read have returned.

 private:
  int64_t every_bytes_ = 0;
  std::function<void(RestartPoint)> on_point_;
  int64_t last_point_ = 0;
};

class GzipSource : public CompressedSource {
 public:
  GzipSource(std::string path, std::unique_ptr<ByteSource> file)
      : CompressedSource(std::move(path), std::move(file)) {
    CHECK_EQ(inflateInit2(&stream_, kGzipWindowBits), Z_OK);
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    stream_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(buffer.size(), 1 << 30));
    const size_t wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) RETURN_IF_ERROR(Refill());
      if (!in_member_) {
        ASSIGN_OR_RETURN(const bool more, BeginMember());
        if (!more) return size_t{0};
      }
      if (stream_.avail_in == 0 && file_ended_) return CutOff();
      RETURN_IF_ERROR(Inflate(wanted));
    }
    offset_ += static_cast<int64_t>(wanted - stream_.avail_out);
    return wanted - stream_.avail_out;
  }

  absl::Status Restart(const RestartPoint& point) override {
    const bool in_member = point.bits >= 0;
    RETURN_IF_ERROR(RestartFile(point, point.file_offset - (point.bits > 0 ? 1 : 0)));
    file_ended_ = false;
    stream_.avail_in = 0;
    in_member_ = is_raw_ = in_member;
    members_ = 1;
    if (!in_member) return absl::OkStatus();
    CHECK_EQ(inflateReset2(&stream_, kRawWindowBits), Z_OK);
    RETURN_IF_ERROR(Refill());
    if (stream_.avail_in == 0) return CutOff();
    if (point.bits > 0) {
      --stream_.avail_in;
      const int byte = *stream_.next_in++;
      if (inflatePrime(&stream_, point.bits, byte >> (8 - point.bits)) != Z_OK) return BadPoint();
    }
    std::vector<Bytef> window(kWindowBytes);
    uLongf size = window.size();
    if (uncompress(window.data(), &size, reinterpret_cast<const Bytef*>(point.window.data()),
                   point.window.size()) != Z_OK ||
        inflateSetDictionary(&stream_, window.data(), static_cast<uInt>(size)) != Z_OK) {
      return BadPoint();
    }
    return absl::OkStatus();
  }
  int64_t position() const override { return file_->position() - stream_.avail_in; }

 private:
  // What a match may refer to.
  static constexpr size_t kWindowBytes = 32 << 10;
  static constexpr int kTrailerBytes = 8;  // A member ends with its checksum and its length.

  absl::Status Refill() {
    if (file_ended_) return absl::OkStatus();
    ASSIGN_OR_RETURN(const size_t n, file_->Read(absl::MakeSpan(buffer_)));
    file_ended_ = n == 0;
    stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    stream_.avail_in = static_cast<uInt>(n);
    return absl::OkStatus();
  }

  absl::Status CutOff() const {
    return absl::DataLossError(absl::StrCat(path_, ": gzip data is cut off at byte ",
                                            file_->position(), ", the end of the file"));
  }
  absl::Status BadPoint() const {
    return absl::DataLossError(absl::StrCat(path_, ": reading can't begin at byte ", position()));
  }

  // Between members: false at the end of the file. Zeros after the last member are padding.
  absl::StatusOr<bool> BeginMember() {
    while (members_ > 0 && stream_.avail_in > 0 && *stream_.next_in == 0) {
      ++stream_.next_in;
      if (--stream_.avail_in == 0) RETURN_IF_ERROR(Refill());
    }
    if (stream_.avail_in == 0) return false;
    if (WantsPoint(offset_)) GivePoint({offset_, position(), -1, ""});
    CHECK_EQ(inflateReset2(&stream_, kGzipWindowBits), Z_OK);
    in_member_ = true;
    return true;
  }

  // `wanted`: the room for text as the Read began.
  absl::Status Inflate(size_t wanted) {
    const bool seeks_point = WantsPoint(offset_);
    const int result = inflate(&stream_, seeks_point ? Z_BLOCK : Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      in_member_ = false;
      ++members_;
      if (std::exchange(is_raw_, false)) RETURN_IF_ERROR(SkipTrailer());
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return absl::DataLossError(absl::StrCat(path_, ": corrupt gzip data near byte ", position(),
                                              ": ",
                                              stream_.msg != nullptr ? stream_.msg : "zlib error"));
    } else if (seeks_point && (stream_.data_type & 128) != 0 && (stream_.data_type & 64) == 0) {
      GiveBlockPoint(offset_ + static_cast<int64_t>(wanted - stream_.avail_out));
    }
    return absl::OkStatus();
  }

  // A block of the member ended here, which is not its last.
  void GiveBlockPoint(int64_t offset) {
    std::vector<Bytef> window(kWindowBytes);
    uInt size = 0;
    if (inflateGetDictionary(&stream_, window.data(), &size) != Z_OK) return;
    uLongf packed = compressBound(size);
    std::string text(packed, '\0');
    if (compress2(reinterpret_cast<Bytef*>(text.data()), &packed, window.data(), size,
                  Z_BEST_SPEED) != Z_OK) {
      return;
    }
    text.resize(packed);
    GivePoint({offset, position(), stream_.data_type & 7, std::move(text)});
  }

  // Behind a member that was begun amid it: zlib knows only of the deflated data then.
  absl::Status SkipTrailer() {
    for (int left = kTrailerBytes; left > 0; --left) {
      if (stream_.avail_in == 0) RETURN_IF_ERROR(Refill());
      if (stream_.avail_in == 0) return CutOff();
      ++stream_.next_in;
      --stream_.avail_in;
    }
    return absl::OkStatus();
  }

  z_stream stream_ = {};
  bool file_ended_ = false;
  bool in_member_ = false;
  bool is_raw_ = false;  // The member was begun amid it.
  int members_ = 0;
};

class ZstdSource : public CompressedSource {
 public:
  ZstdSource(std::string path, std::unique_ptr<ByteSource> file)
      : CompressedSource(std::move(path), std::move(file)), stream_(ZSTD_createDStream()) {
    CHECK(stream_ != nullptr);
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    ZSTD_outBuffer out = {buffer.data(), buffer.size(), 0};
    while (out.pos == 0 && out.size > 0) {
      if (in_.pos == in_.size) {
        ASSIGN_OR_RETURN(const size_t n, file_->Read(absl::MakeSpan(buffer_)));
        in_ = {buffer_.data(), n, 0};
        if (n == 0 && !in_frame_) return size_t{0};
        // What it has decompressed may not have found room yet.
        if (n == 0 && !may_hold_more_) {
          return absl::DataLossError(absl::StrCat(path_, ": zstd data is cut off at byte ",
                                                  file_->position(), ", the end of the file"));
        }
      }
      if (!in_frame_ && WantsPoint(offset_)) GivePoint({offset_, position(), -1, ""});
      const size_t result = ZSTD_decompressStream(stream_, &out, &in_);
      if (ZSTD_isError(result) != 0) {
        return absl::DataLossError(absl::StrCat(path_, ": corrupt zstd data near byte ", position(),
                                                ": ", ZSTD_getErrorName(result)));
      }
      in_frame_ = result != 0;
      may_hold_more_ = out.pos == out.size;
    }
    offset_ += static_cast<int64_t>(out.pos);
    return out.pos;
  }

  absl::Status Restart(const RestartPoint& point) override {
    RETURN_IF_ERROR(RestartFile(point, point.file_offset));
    CHECK_EQ(ZSTD_isError(ZSTD_initDStream(stream_)), 0u);
    in_ = {nullptr, 0, 0};
    in_frame_ = may_hold_more_ = false;
    return absl::OkStatus();
  }
  int64_t position() const override {
    return file_->position() - static_cast<int64_t>(in_.size - in_.pos);
  }

 private:
  ZSTD_DStream* const stream_;
  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  bool in_frame_ = false;
  bool may_hold_more_ = false;  // The last call filled all the room that it had.
};

// `plain`, decompressed where `head`, its first bytes, says that it is compressed.
std::unique_ptr<ByteSource> Decompressed(const std::string& path, absl::string_view head,
                                         std::unique_ptr<ByteSource> plain) {
  if (absl::StartsWith(head, "\x1f\x8b")) {
    return std::make_unique<GzipSource>(path, std::move(plain));
  }
  if (absl::StartsWith(head, "\x28\xb5\x2f\xfd")) {
    return std::make_unique<ZstdSource>(path, std::move(plain));
  }
  return plain;
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenObject(const std::string& path,
                                                       ObjectStore* store) {
  CHECK(store != nullptr);
  ASSIGN_OR_RETURN(std::unique_ptr<ObjectStream> stream, store->OpenStream(path));
  std::string head(kMagicBytes, '\0');
  size_t used = 0;
  while (used < head.size()) {
    ASSIGN_OR_RETURN(const size_t n,
                     stream->Read(absl::Span<char>(&head[used], head.size() - used)));
    if (n == 0) break;
    used += n;
  }
  head.resize(used);
  return Decompressed(path, head, std::make_unique<ObjectSource>(std::move(stream), head));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(const std::string& path,
                                                             ObjectStore* store) {
  if (IsObjectPath(path)) return OpenObject(path, store);
  const auto fd =
      static_cast<int>(RetryIo([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (fd < 0) return FileError(path, "cannot open", errno);
  struct stat info;
  if (RetryIo([&] { return fstat(fd, &info); }) != 0) {
    const int error = errno;
    close(fd);
    return FileError(path, "cannot stat", error);
  }
  auto plain = std::make_unique<PlainSource>(path, fd, info.st_size);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory, not a file"));
  }
  char magic[kMagicBytes];
  const ssize_t n = RetryIo([&] { return pread(fd, magic, sizeof(magic), 0); });
  // A pipe can't be read so, and is never taken for compressed.
  if (n < 0 && errno != ESPIPE) return FileError(path, "cannot read", errno);
  return Decompressed(path, absl::string_view(magic, std::max<ssize_t>(n, 0)), std::move(plain));
}

}  // namespace thermocline
