#include "deploy/http/monitor_pipe.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kMaxBytes = INT32_MAX;  // The largest that protobuf reads.

std::array<char, kLengthBytes> LengthOf(const std::string& bytes) {
  std::array<char, kLengthBytes> length;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<char>(bytes.size() >> (8 * i) & 0xff);
  }
  return length;
}

size_t ReadLength(const std::array<char, kLengthBytes>& length) {
  size_t bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes |= static_cast<size_t>(static_cast<uint8_t>(length[i])) << (8 * i);
  }
  return bytes;
}

// Room for one descriptor beside the bytes of a message.
struct Beside {
  explicit Beside(msghdr* header) {
    header->msg_control = bytes;
    header->msg_controllen = sizeof(bytes);
  }
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

absl::Status SendBytes(int fd, const char* data, size_t size, int passed_fd) {
  while (size > 0) {
    iovec part = {const_cast<char*>(data), size};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    msghdr with_fd = header;
    const Beside beside(&with_fd);
    if (passed_fd >= 0) {
      cmsghdr* const control = CMSG_FIRSTHDR(&with_fd);
      control->cmsg_level = SOL_SOCKET;
      control->cmsg_type = SCM_RIGHTS;
      control->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(control), &passed_fd, sizeof(int));
    }
    const ssize_t sent = sendmsg(fd, passed_fd >= 0 ? &with_fd : &header, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) {
      return absl::UnavailableError(absl::StrCat("the receiver is gone: ", std::strerror(errno)));
    }
    passed_fd = -1;  // It went with the first bytes.
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

// Keeps the last descriptor that comes, if any.
absl::Status ReceiveBytes(int fd, char* data, size_t size, int* passed_fd) {
  while (size > 0) {
    iovec part = {data, size};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    const Beside beside(&header);
    const ssize_t got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::UnavailableError(absl::StrCat("can't read: ", std::strerror(errno)));
    if (got == 0) return absl::OutOfRangeError("the sender is gone");
    const cmsghdr* const control = CMSG_FIRSTHDR(&header);
    if (control != nullptr && control->cmsg_type == SCM_RIGHTS) {
      std::memcpy(passed_fd, CMSG_DATA(control), sizeof(int));
    }
    data += got;
    size -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SendMonitorMessage(int fd, const MonitorMessage& message, int passed_fd) {
  const std::string bytes = message.SerializeAsString();
  if (bytes.size() > kMaxBytes || bytes.size() != message.ByteSizeLong()) {
    return absl::ResourceExhaustedError("the message is too large");
  }
  const auto length = LengthOf(bytes);
  RETURN_IF_ERROR(SendBytes(fd, length.data(), length.size(), passed_fd));
  return SendBytes(fd, bytes.data(), bytes.size(), -1);
}

absl::StatusOr<MonitorMessage> ReceiveMonitorMessage(int fd, int* passed_fd) {
  *passed_fd = -1;
  std::array<char, kLengthBytes> length;
  RETURN_IF_ERROR(ReceiveBytes(fd, length.data(), length.size(), passed_fd));
  const size_t size = ReadLength(length);
  if (size > kMaxBytes) return absl::DataLossError("the length of a message is too large");
  std::string bytes(size, '\0');
  RETURN_IF_ERROR(ReceiveBytes(fd, bytes.data(), bytes.size(), passed_fd));
  MonitorMessage message;
  if (!message.ParseFromString(bytes)) return absl::DataLossError("what came is no message");
  return message;
}

}  // namespace thermocline
