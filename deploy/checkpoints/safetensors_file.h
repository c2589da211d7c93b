// Writes a safetensors file (https://huggingface.co/docs/safetensors) tensor by tensor, in any
// order, without holding a tensor in memory.
#ifndef THERMOCLINE_DEPLOY_CHECKPOINTS_SAFETENSORS_FILE_H_
#define THERMOCLINE_DEPLOY_CHECKPOINTS_SAFETENSORS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace thermocline {

struct SafetensorsEntry {
  enum class Type { kU64, kF32 };

  std::string name;
  Type type = Type::kF32;
  std::vector<uint64_t> shape;

  uint64_t bytes() const;
};

// One thread at a time. Errors of all calls name the file: kResourceExhausted, kUnavailable.
class SafetensorsFile {
 public:
  // Writes to `path`.tmp until Finish. Tensors of 8-byte numbers come first in the file, so that
  // all are aligned. Also kInvalidArgument: two tensors of one name.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Create(
      const std::string& path, const std::vector<SafetensorsEntry>& tensors,
      const std::map<std::string, std::string>& metadata);
  // Removes the file unless it was finished.
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // Appends to tensor `index` of Create. REQUIRES: it doesn't become larger than its shape.
  absl::Status Append(size_t index, const void* data, size_t bytes);

  // Syncs the file and renames it. REQUIRES: every tensor is complete.
  absl::Status Finish();

  uint64_t file_bytes() const { return file_bytes_; }

 private:
  struct Tensor {
    uint64_t offset = 0;  // Where `buffer` will be written in the file.
    uint64_t end = 0;
    std::string buffer;  // Bytes not yet written.
  };

  explicit SafetensorsFile(std::string path) : path_(path), temporary_(std::move(path) + ".tmp") {}
  absl::Status WriteAt(uint64_t offset, const std::string& bytes);
  absl::Status Flush(Tensor* tensor);
  absl::Status Error(const char* what) const;

  const std::string path_;
  const std::string temporary_;
  int fd_ = -1;
  uint64_t file_bytes_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CHECKPOINTS_SAFETENSORS_FILE_H_
