#include "deploy/clicklog/click_log_writer.h"

#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/disk/npy.h"

namespace thermocline {
namespace {

// Text compresses about three times; higher levels gain little and cost much.
constexpr int kGzipLevel = 2;
constexpr int kGzipWindowBits = 15 + 16;

class NpyClickLogWriter : public ClickLogWriter {
 public:
  static absl::StatusOr<std::unique_ptr<ClickLogWriter>> Create(const std::string& folder,
                                                                const std::string& split) {
    auto writer = std::make_unique<NpyClickLogWriter>();
    const std::string prefix = absl::StrCat(folder, "/", split);
    writer->files_ = {prefix + "_dense.npy", prefix + "_sparse.npy", prefix + "_labels.npy"};
    ASSIGN_OR_RETURN(writer->dense_, NpyWriter::Create(writer->files_[0], "<f4", {kClickDense}));
    ASSIGN_OR_RETURN(writer->sparse_, NpyWriter::Create(writer->files_[1], "<i4", {kClickSparse}));
    ASSIGN_OR_RETURN(writer->labels_, NpyWriter::Create(writer->files_[2], "<i4", {1}));
    return writer;
  }

  void Encode(const ClickBlock&, std::string*) const override {}
  absl::Status Append(const ClickBlock& block, const std::string&) override {
    RETURN_IF_ERROR(dense_->Append(block.dense.data(), block.rows));
    RETURN_IF_ERROR(sparse_->Append(block.ids.data(), block.rows));
    return labels_->Append(block.labels.data(), block.rows);
  }
  absl::Status Finish() override {
    RETURN_IF_ERROR(dense_->Finish());
    RETURN_IF_ERROR(sparse_->Finish());
    return labels_->Finish();
  }
  std::vector<std::string> files() const override { return files_; }

 private:
  std::vector<std::string> files_;
  std::unique_ptr<NpyWriter> dense_;
  std::unique_ptr<NpyWriter> sparse_;
  std::unique_ptr<NpyWriter> labels_;
};

// Appends `value` and a tab.
void AppendNumber(int32_t value, std::string* text) {
  char digits[12];
  char* p = digits + sizeof(digits);
  *--p = '\t';
  do {
    *--p = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value > 0);
  text->append(p, digits + sizeof(digits) - p);
}

// Appends eight digits and `end`.
void AppendHex(uint32_t value, char end, std::string* text) {
  char digits[9];
  for (int i = 7; i >= 0; --i, value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  digits[8] = end;
  text->append(digits, sizeof(digits));
}

// One gzip member: a file may have many.
void Compress(const std::string& text, std::string* out) {
  z_stream stream = {};
  CHECK_EQ(deflateInit2(&stream, kGzipLevel, Z_DEFLATED, kGzipWindowBits, 9, Z_DEFAULT_STRATEGY),
           Z_OK);
  out->resize(deflateBound(&stream, text.size()));
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(&(*out)[0]);
  stream.avail_out = static_cast<uInt>(out->size());
  CHECK_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out->resize(stream.total_out);
  deflateEnd(&stream);
}

class TsvClickLogWriter : public ClickLogWriter {
 public:
  static absl::StatusOr<std::unique_ptr<ClickLogWriter>> Create(std::string path, bool gzip) {
    auto writer = std::make_unique<TsvClickLogWriter>(std::move(path), gzip);
    if (writer->file_ == nullptr) return writer->Error("cannot create");
    return writer;
  }

  TsvClickLogWriter(std::string path, bool gzip)
      : path_(std::move(path)),
        part_path_(path_ + ".part"),
        gzip_(gzip),
        file_(std::fopen(part_path_.c_str(), "wbe")) {}
  ~TsvClickLogWriter() override {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(part_path_.c_str());
  }

  void Encode(const ClickBlock& block, std::string* encoded) const override {
    std::string text;
    text.reserve(static_cast<size_t>(block.rows) * 300);
    const int32_t* count = block.counts.data();
    const int32_t* id = block.ids.data();
    for (int row = 0; row < block.rows; ++row) {
      AppendNumber(block.labels[row], &text);
      for (int i = 0; i < kClickDense; ++i) AppendNumber(*count++, &text);
      for (int c = 0; c < kClickSparse; ++c) {
        AppendHex(static_cast<uint32_t>(*id++), c + 1 < kClickSparse ? '\t' : '\n', &text);
      }
    }
    if (gzip_) {
      Compress(text, encoded);
    } else {
      *encoded = std::move(text);
    }
  }
  absl::Status Append(const ClickBlock&, const std::string& encoded) override {
    if (std::fwrite(encoded.data(), 1, encoded.size(), file_) != encoded.size()) {
      return Error("cannot write");
    }
    return absl::OkStatus();
  }
  absl::Status Finish() override {
    std::FILE* const file = std::exchange(file_, nullptr);
    if (std::fclose(file) != 0) return Error("cannot write");
    if (std::rename(part_path_.c_str(), path_.c_str()) != 0) return Error("cannot rename to it");
    return absl::OkStatus();
  }
  std::vector<std::string> files() const override { return {path_}; }

 private:
  absl::Status Error(const char* what) const {
    const int error = errno;
    const std::string message = absl::StrCat(path_, ": ", what, ": ", std::strerror(error));
    if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
    if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
    return absl::UnavailableError(message);
  }

  const std::string path_;
  const std::string part_path_;
  const bool gzip_;
  std::FILE* file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ClickLogWriter>> ClickLogWriter::Create(ClickLogFormat format,
                                                                       const std::string& folder,
                                                                       const std::string& split) {
  if (format == ClickLogFormat::kNpy) return NpyClickLogWriter::Create(folder, split);
  const bool gzip = format == ClickLogFormat::kTsvGzip;
  return TsvClickLogWriter::Create(absl::StrCat(folder, "/", split, gzip ? ".tsv.gz" : ".tsv"),
                                   gzip);
}

}  // namespace thermocline
