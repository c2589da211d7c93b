#include "tests/simulation/forgetful_disk.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

// The part after "generation-N" in the name of a rows file.
absl::string_view WithoutGeneration(absl::string_view path) {
  const size_t server = path.find("-server-");
  return server == absl::string_view::npos ? "" : path.substr(server);
}

}  // namespace

void ForgetfulDisk::RemoveOfOtherGenerations(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/'));
  const auto files = disk_.List(folder);
  if (!files.ok() || WithoutGeneration(path).empty()) return;
  for (const std::string& file : *files) {
    if (WithoutGeneration(file) == WithoutGeneration(path)) {
      disk_.Remove(absl::StrCat(folder, "/", file)).IgnoreError();
    }
  }
}

absl::StatusOr<std::unique_ptr<AppendFile>> ForgetfulDisk::Create(const std::string& path) {
  if (deceptions_.generations) RemoveOfOtherGenerations(path);
  ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, disk_.Create(path));
  if (!deceptions_.files) return file;
  return std::make_unique<UnsyncedFile>(std::move(file));
}

absl::StatusOr<std::unique_ptr<AppendFile>> ForgetfulDisk::OpenToAppend(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, disk_.OpenToAppend(path));
  if (!deceptions_.files) return file;
  return std::make_unique<UnsyncedFile>(std::move(file));
}

}  // namespace thermocline
