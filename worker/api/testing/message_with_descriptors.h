// A message with file descriptors, which tests send over a Unix socket.
#ifndef THERMOCLINE_WORKER_API_TESTING_MESSAGE_WITH_DESCRIPTORS_H_
#define THERMOCLINE_WORKER_API_TESTING_MESSAGE_WITH_DESCRIPTORS_H_

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/check.h"

namespace thermocline {

class MessageWithDescriptors {
 public:
  // `bytes` outlives it. REQUIRES: at most kMost descriptors.
  MessageWithDescriptors(const std::string& bytes, const std::vector<int>& fds)
      : piece_{const_cast<char*>(bytes.data()), bytes.size()} {
    CHECK(fds.size() <= kMost);
    message_.msg_iov = &piece_;
    message_.msg_iovlen = 1;
    if (fds.empty()) return;
    message_.msg_control = control_;
    message_.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  MessageWithDescriptors(const MessageWithDescriptors&) = delete;
  MessageWithDescriptors& operator=(const MessageWithDescriptors&) = delete;

  // For sendmsg().
  const msghdr* get() const { return &message_; }

 private:
  static constexpr size_t kMost = 64;

  iovec piece_;
  alignas(cmsghdr) char control_[CMSG_SPACE(kMost * sizeof(int))] = {};
  msghdr message_ = {};
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_API_TESTING_MESSAGE_WITH_DESCRIPTORS_H_
