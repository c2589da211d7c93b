#include "worker/data/byte_source.h"

#include <fcntl.h>
#include <isa-l/igzip_lib.h>
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
  // Whether a point at byte `offset` of the text is far enough from the last one. Where none is
  // found within kSoughtBytes, the next is wanted every_bytes_ later.
  bool WantsPoint(int64_t offset) {
    if (on_point_ == nullptr || offset - last_point_ < every_bytes_) return false;
    if (sought_from_ < 0) sought_from_ = offset;
    if (offset - sought_from_ <= kSoughtBytes) return true;
    NotePoint(offset);
    return false;
  }
  void GivePoint(RestartPoint point) {
    NotePoint(point.offset);
    on_point_(std::move(point));
  }
  absl::Status RestartFile(const RestartPoint& point, int64_t file_offset) {
    offset_ = point.offset;
    NotePoint(offset_);
    return file_->Restart({file_offset, file_offset, -1, ""});
  }

  const std::string path_;
  const std::unique_ptr<ByteSource> file_;
  std::vector<char> buffer_;
  int64_t offset_ = 0;  // How many bytes of text all calls of Read have returned.

 private:
  // Seeking takes time: blocks that compressors make as a rule are shorter.
  static constexpr int64_t kSoughtBytes = 1 << 20;

  void NotePoint(int64_t offset) {
    last_point_ = offset;
    sought_from_ = -1;
  }

  int64_t every_bytes_ = 0;
  std::function<void(RestartPoint)> on_point_;
  int64_t last_point_ = 0;
  int64_t sought_from_ = -1;  // From where a point is wanted; -1: none is.
};

// Decompresses with ISA-L, which takes a third of zlib's time.
class GzipSource : public CompressedSource {
 public:
  GzipSource(std::string path, std::unique_ptr<ByteSource> file)
      : CompressedSource(std::move(path), std::move(file)),
        state_(std::make_unique<inflate_state>()) {
    isal_inflate_init(state_.get());
  }

  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    const size_t wanted = std::min<size_t>(buffer.size(), 1 << 30);
    state_->next_out = reinterpret_cast<uint8_t*>(buffer.data());
    state_->avail_out = static_cast<uint32_t>(wanted);
    while (state_->avail_out == wanted) {
      if (state_->avail_in == 0) RETURN_IF_ERROR(Refill());
      if (!in_member_) {
        ASSIGN_OR_RETURN(const bool more, BeginMember());
        if (!more) return size_t{0};
      }
      RETURN_IF_ERROR(in_header_ ? ReadHeader() : Inflate(wanted));
    }
    offset_ += static_cast<int64_t>(wanted - state_->avail_out);
    return wanted - state_->avail_out;
  }

  absl::Status Restart(const RestartPoint& point) override {
    const bool in_member = point.bits >= 0;
    RETURN_IF_ERROR(RestartFile(point, point.file_offset - (point.bits > 0 ? 1 : 0)));
    file_ended_ = false;
    state_->avail_in = 0;
    in_member_ = in_member;
    in_header_ = false;
    members_ = 1;
    if (!in_member) return absl::OkStatus();
    Reset(ISAL_DEFLATE);
    RETURN_IF_ERROR(Refill());
    if (state_->avail_in == 0) return CutOff();
    if (point.bits > 0) {
      --state_->avail_in;
      state_->read_in = *state_->next_in++ >> (8 - point.bits);
      state_->read_in_length = point.bits;
    }
    std::vector<uint8_t> window(kWindowBytes);
    uLongf size = window.size();
    if (uncompress(window.data(), &size, reinterpret_cast<const Bytef*>(point.window.data()),
                   point.window.size()) != Z_OK ||
        isal_inflate_set_dict(state_.get(), window.data(), static_cast<uint32_t>(size)) !=
            ISAL_DECOMP_OK) {
      return absl::DataLossError(absl::StrCat(path_, ": reading can't begin at byte ", position()));
    }
    return absl::OkStatus();
  }
  int64_t position() const override { return file_->position() - state_->avail_in; }

 private:
  // What a match may refer to.
  static constexpr uint32_t kWindowBytes = 32 << 10;
  static constexpr uint8_t kMemberByte = 0x1f;  // A member begins with it.
  static constexpr int kTrailerBytes = 8;       // A member ends with its checksum and its length.
  // Fewer bytes than the codes of a block take, as a rule, and so few that not much is decoded
  // beyond the end of a block before that is seen.
  static constexpr uint32_t kPieceBytes = 8;

  // `form`: ISAL_GZIP_NO_HDR_VER, or ISAL_DEFLATE behind a point amid a member.
  void Reset(uint32_t form) {
    isal_inflate_reset(state_.get());
    state_->crc_flag = form;
  }

  absl::Status Refill() {
    if (file_ended_) return absl::OkStatus();
    ASSIGN_OR_RETURN(const size_t n, file_->Read(absl::MakeSpan(buffer_)));
    file_ended_ = n == 0;
    state_->next_in = reinterpret_cast<uint8_t*>(buffer_.data());
    state_->avail_in = static_cast<uint32_t>(n);
    return absl::OkStatus();
  }

  absl::Status CutOff() const {
    return absl::DataLossError(absl::StrCat(path_, ": gzip data is cut off at byte ",
                                            file_->position(), ", the end of the file"));
  }
  absl::Status Corrupt(int result) const {
    const char* what = result == ISAL_INVALID_BLOCK        ? "invalid block"
                       : result == ISAL_INVALID_SYMBOL     ? "invalid code"
                       : result == ISAL_INVALID_LOOKBACK   ? "invalid distance"
                       : result == ISAL_INVALID_WRAPPER    ? "not the header of a member"
                       : result == ISAL_UNSUPPORTED_METHOD ? "unknown compression method"
                       : result == ISAL_INCORRECT_CHECKSUM ? "checksum or length differs"
                                                           : "ISA-L error";
    return absl::DataLossError(
        absl::StrCat(path_, ": corrupt gzip data near byte ", position(), ": ", what));
  }

  // Between members: false at the end of the file. Zeros after the last member are padding.
  absl::StatusOr<bool> BeginMember() {
    while (members_ > 0 && state_->avail_in > 0 && *state_->next_in == 0) {
      ++state_->next_in;
      if (--state_->avail_in == 0) RETURN_IF_ERROR(Refill());
    }
    if (state_->avail_in == 0) return false;
    if (*state_->next_in != kMemberByte) return Corrupt(ISAL_INVALID_WRAPPER);
    if (WantsPoint(offset_)) GivePoint({offset_, position(), -1, ""});
    Reset(ISAL_GZIP_NO_HDR_VER);
    header_ = {};
    in_member_ = in_header_ = true;
    return true;
  }

  // Reads what buffer_ has of a member's header. isal_inflate() would, too, but not a header that
  // lies in two buffers.
  absl::Status ReadHeader() {
    if (state_->avail_in == 0) return CutOff();
    const int result = isal_read_gzip_header(state_.get(), &header_);
    if (result != ISAL_DECOMP_OK && result != ISAL_END_INPUT) return Corrupt(result);
    in_header_ = result == ISAL_END_INPUT;
    return absl::OkStatus();
  }

  // Decodes what buffer_ has, as far as there is room. `wanted`: the room as the Read began.
  absl::Status Inflate(size_t wanted) {
    const bool seeks_point = WantsPoint(offset_);
    const bool has_input = state_->avail_in > 0;
    do {
      const uint32_t held = state_->avail_in - PieceBytes(seeks_point);
      state_->avail_in -= held;
      const int result = isal_inflate(state_.get());
      state_->avail_in += held;
      if (result != ISAL_DECOMP_OK) return Corrupt(result);
      if (state_->block_state == ISAL_BLOCK_FINISH) return EndMember();
      if (seeks_point && IsInBlockHeader() && HasHandedOut()) {
        GiveBlockPoint(offset_ + static_cast<int64_t>(wanted - state_->avail_out));
        return absl::OkStatus();
      }
    } while (seeks_point && state_->avail_in > 0 && state_->avail_out > 0);
    return has_input || state_->avail_out < wanted ? absl::OkStatus() : CutOff();
  }

  // How much input is decoded at once. Where a point is sought, text before a block is handed out
  // before more of the block's header is read.
  uint32_t PieceBytes(bool seeks_point) const {
    if (!seeks_point) return state_->avail_in;
    return IsInBlockHeader() && !HasHandedOut() ? 0 : std::min(state_->avail_in, kPieceBytes);
  }

  // Whether a part of the header of a block has been read, and no more.
  bool IsInBlockHeader() const { return state_->block_state == ISAL_BLOCK_HDR; }

  // Whether all text that was decoded has been handed out.
  bool HasHandedOut() const { return state_->tmp_out_processed == state_->tmp_out_valid; }

  // In the header of a block, whose text begins at `offset`.
  void GiveBlockPoint(int64_t offset) {
    const uint32_t size = std::min<uint32_t>(state_->tmp_out_valid, kWindowBytes);
    uLongf packed = compressBound(size);
    std::string window(packed, '\0');
    if (compress2(reinterpret_cast<Bytef*>(window.data()), &packed,
                  state_->tmp_out_buffer + state_->tmp_out_valid - size, size,
                  Z_BEST_SPEED) != Z_OK) {
      return;
    }
    window.resize(packed);
    // What ISA-L has taken of the header waits in a buffer, behind bits that wait for being
    // decoded.
    const int64_t bit = (position() - state_->tmp_in_size) * 8 - state_->read_in_length;
    GivePoint({offset, (bit + 7) / 8, static_cast<int>(-bit & 7), std::move(window)});
  }

  absl::Status EndMember() {
    in_member_ = false;
    ++members_;
    // Behind a point amid the member ISA-L knows only of the deflated data.
    if (state_->crc_flag != ISAL_DEFLATE) return absl::OkStatus();
    for (int left = kTrailerBytes - state_->read_in_length / 8; left > 0; --left) {
      if (state_->avail_in == 0) RETURN_IF_ERROR(Refill());
      if (state_->avail_in == 0) return CutOff();
      ++state_->next_in;
      --state_->avail_in;
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<inflate_state> state_;
  isal_gzip_header header_ = {};  // What has been read of the member's header.
  bool file_ended_ = false;
  bool in_member_ = false;
  bool in_header_ = false;
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
