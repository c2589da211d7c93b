#include "deploy/checkpoints/safetensors_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kLengthBytes = 8;  // in front of the header

const char* TypeName(SafetensorsEntry::Type type) {
  return type == SafetensorsEntry::Type::kU64 ? "U64" : "F32";
}

uint64_t TypeBytes(SafetensorsEntry::Type type) {
  return type == SafetensorsEntry::Type::kU64 ? 8 : 4;
}

// The header and what is in front of it, a multiple of 8 bytes. ends[i]: of tensor i in the data.
std::string MakeHeader(const std::vector<SafetensorsEntry>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       std::vector<uint64_t>* ends) {
  Json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  ends->resize(tensors.size());
  uint64_t at = 0;
  for (const auto type : {SafetensorsEntry::Type::kU64, SafetensorsEntry::Type::kF32}) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].type != type) continue;
      const uint64_t end = at + tensors[i].bytes();
      header[tensors[i].name] = {
          {"dtype", TypeName(type)}, {"shape", tensors[i].shape}, {"data_offsets", {at, end}}};
      (*ends)[i] = at = end;
    }
  }
  // Replaces what isn't UTF-8 in names.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(&bytes[0], &length, kLengthBytes);
  return bytes + text;
}

}  // namespace

uint64_t SafetensorsEntry::bytes() const {
  uint64_t bytes = TypeBytes(type);
  for (const uint64_t size : shape) bytes *= size;
  return bytes;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Create(
    const std::string& path, const std::vector<SafetensorsEntry>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names = {"__metadata__"};
  for (const SafetensorsEntry& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two tensors of '", path, "' would be called '", tensor.name, "'"));
    }
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path));
  constexpr mode_t kMode = 0644;
  file->fd_ = open(file->temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (file->fd_ < 0) return file->Error("create");
  std::vector<uint64_t> ends;
  const std::string header = MakeHeader(tensors, metadata, &ends);
  RETURN_IF_ERROR(file->WriteAt(0, header));
  file->file_bytes_ = header.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor tensor;
    tensor.end = header.size() + ends[i];
    tensor.offset = tensor.end - tensors[i].bytes();
    file->file_bytes_ += tensors[i].bytes();
    file->tensors_.push_back(std::move(tensor));
  }
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

absl::Status SafetensorsFile::Error(const char* what) const {
  const std::string message =
      absl::StrCat("can't ", what, " '", temporary_, "': ", std::strerror(errno));
  return errno == ENOSPC || errno == EDQUOT || errno == EFBIG
             ? absl::ResourceExhaustedError(message)
             : absl::UnavailableError(message);
}

absl::Status SafetensorsFile::WriteAt(uint64_t offset, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written =
        pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error("write");
    done += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::Flush(Tensor* tensor) {
  RETURN_IF_ERROR(WriteAt(tensor->offset, tensor->buffer));
  tensor->offset += tensor->buffer.size();
  tensor->buffer.clear();
  return absl::OkStatus();
}

absl::Status SafetensorsFile::Append(size_t index, const void* data, size_t bytes) {
  CHECK_LT(index, tensors_.size());
  Tensor& tensor = tensors_[index];
  CHECK_LE(tensor.offset + tensor.buffer.size() + bytes, tensor.end);
  tensor.buffer.append(static_cast<const char*>(data), bytes);
  const bool complete = tensor.offset + tensor.buffer.size() == tensor.end;
  if (tensor.buffer.size() < kBufferBytes && !complete) return absl::OkStatus();
  RETURN_IF_ERROR(Flush(&tensor));
  if (complete) std::string().swap(tensor.buffer);
  return absl::OkStatus();
}

absl::Status SafetensorsFile::Finish() {
  for (const Tensor& tensor : tensors_) CHECK_EQ(tensor.offset, tensor.end);
  if (fsync(fd_) != 0) return Error("sync");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Error("rename");
  close(std::exchange(fd_, -1));
  return absl::OkStatus();
}

}  // namespace thermocline
