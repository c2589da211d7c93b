#include "deploy/report/appended_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

absl::Status CantWrite(const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat("can't write ", path, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AppendedFile>> AppendedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return CantWrite(path, errno);
  return std::unique_ptr<AppendedFile>(new AppendedFile(path, fd));
}

AppendedFile::~AppendedFile() { close(fd_); }

absl::Status AppendedFile::EndLine() {
  const off_t size = lseek(fd_, 0, SEEK_END);
  char last = '\n';
  if (size > 0 && pread(fd_, &last, 1, size - 1) != 1) return CantWrite(path_, errno);
  return last == '\n' ? absl::OkStatus() : Append("\n");
}

absl::Status AppendedFile::Append(absl::string_view record) {
  size_t written = 0;
  while (written < record.size()) {
    const ssize_t bytes = write(fd_, record.data() + written, record.size() - written);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {
      const int error = bytes < 0 ? errno : ENOSPC;
      const off_t end = lseek(fd_, 0, SEEK_END);
      if (written > 0 && (end < 0 || ftruncate(fd_, end - static_cast<off_t>(written)) != 0)) {
        return CantWrite(path_, errno);
      }
      return CantWrite(path_, error);
    }
    written += static_cast<size_t>(bytes);
  }
  return absl::OkStatus();
}

}  // namespace thermocline
