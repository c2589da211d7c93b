#include "tests/simulation/forgetful_disk.h"

#include <utility>

#include "common/base/status_macros.h"

namespace thermocline {
namespace {

class UnsyncedFile : public AppendFile {
 public:
  explicit UnsyncedFile(std::unique_ptr<AppendFile> file) : file_(std::move(file)) {}

  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    return file_->Append(pieces);
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }

 private:
  const std::unique_ptr<AppendFile> file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AppendFile>> ForgetfulDisk::Create(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, disk_.Create(path));
  if (!deceptions_.files) return file;
  return std::make_unique<UnsyncedFile>(std::move(file));
}

}  // namespace thermocline
