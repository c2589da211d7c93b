#include "worker/api/script_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/version/version.h"

namespace thermocline {
namespace {

static_assert(sizeof(tc_header) == 48);
static_assert(sizeof(tc_array_place) == 24);
static_assert(TC_PAYLOAD_BYTES + sizeof(tc_header) == TC_MESSAGE_BYTES);

constexpr size_t kSlotAlignment = 64;
constexpr int kSlotSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kStateSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr int kTickMs = 1000;
// A message has at most one descriptor; further ones are an error, and have to be closed.
constexpr size_t kRoomForDescriptors = 8;

absl::Status ScriptGone() {
  return absl::UnavailableError("the script has closed its end of the connection");
}

// The script breaks the protocol.
absl::Status BadMessage(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the script has sent ", what));
}

absl::Status SocketError(const char* call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

// The descriptors of a received message, which it closes.
class Descriptors {
 public:
  explicit Descriptors(msghdr* message) {
    for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr;
         part = CMSG_NXTHDR(message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      fds_.resize(fds_.size() + count);
      std::memcpy(fds_.data() + fds_.size() - count, CMSG_DATA(part), count * sizeof(int));
    }
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    for (const int fd : fds_) close(fd);
  }

  size_t size() const { return fds_.size(); }
  // -1: the message has none.
  int first() const { return fds_.empty() ? -1 : fds_[0]; }

 private:
  std::vector<int> fds_;
};

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(size_t bytes) {
  const auto error = [bytes](const char* what) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no ", bytes, " bytes of shared memory: ", what, ": ", std::strerror(errno)));
  };
  bytes = std::max<size_t>(bytes, 1);
  const int fd = memfd_create("thermocline-script", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return error("memfd_create");
  absl::Cleanup close_it = [fd] { close(fd); };
  // All memory is taken now: a process that touches a page which the system can't give is killed.
  do {
    errno = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (errno == EINTR);
  if (errno != 0) return error("posix_fallocate");
  if (fcntl(fd, F_ADD_SEALS, kSlotSeals) != 0) return error("F_ADD_SEALS");
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return error("mmap");
  std::move(close_it).Cancel();
  return SharedMemory(fd, static_cast<uint8_t*>(data), bytes);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
  CloseFd();
}

void SharedMemory::CloseFd() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

size_t SlotLayout::Add(tc_array_kind kind, uint32_t index, size_t elements, size_t element_bytes) {
  const size_t offset = bytes_;
  places_.push_back({static_cast<uint32_t>(kind), index, offset, elements});
  bytes_ += (elements * element_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  return offset;
}

ScriptChannel::ScriptChannel(const ScriptChannelOptions& options)
    : options_(options), packet_(TC_MESSAGE_BYTES) {}

ScriptChannel::~ScriptChannel() { close(options_.fd); }

absl::Status ScriptChannel::Send(const tc_header& header, absl::string_view payload, int fd) {
  CHECK_LE(payload.size(), size_t{TC_PAYLOAD_BYTES});
  iovec pieces[] = {{const_cast<tc_header*>(&header), sizeof(header)},
                    {const_cast<char*>(payload.data()), payload.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = payload.empty() ? 1 : 2;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  }
  const absl::Time deadline = absl::Now() + options_.send_timeout;
  while (sendmsg(options_.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    // The kernel reports ECONNRESET once, and EPIPE from then on.
    if (errno == EINTR || errno == ECONNRESET) continue;
    if (errno == EPIPE) return ScriptGone();
    if (errno != EAGAIN && errno != EWOULDBLOCK) return SocketError("sendmsg");
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the script has read no message for ",
                                                      absl::FormatDuration(options_.send_timeout)));
    }
    pollfd room = {options_.fd, POLLOUT, 0};
    const absl::Duration wait = std::min(deadline - absl::Now(), absl::Milliseconds(kTickMs));
    poll(&room, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
  }
  return absl::OkStatus();
}

absl::Status ScriptChannel::SendHello(absl::string_view job) {
  ASSIGN_OR_RETURN(const SharedMemory file, SharedMemory::Create(job.size()));
  std::memcpy(file.data(), job.data(), job.size());
  tc_header header = {};
  header.kind = TC_HELLO;
  header.bytes = job.size();
  header.count = TC_PROTOCOL;
  return Send(header, THERMOCLINE_VERSION, file.fd());
}

absl::StatusOr<ScriptMessage> ScriptChannel::Receive(const std::function<absl::Status()>& on_wait) {
  while (true) {
    pollfd ready[] = {{options_.fd, POLLIN, 0}, {options_.pidfd, POLLIN, 0}};
    const int count = poll(ready, 2, kTickMs);
    if (count < 0 && errno != EINTR) return SocketError("poll");
    if (count <= 0) {
      RETURN_IF_ERROR(on_wait());
      continue;
    }
    // Where the script has ended, all that it had sent is there to be read.
    if (ready[0].revents == 0 && poll(ready, 1, 0) == 0) return ScriptGone();
    ASSIGN_OR_RETURN(ScriptMessage message, Read());
    if (message.header.kind != TC_RELEASE) return message;
    slots_[message.header.slot].is_held = false;
  }
}

absl::StatusOr<ScriptMessage> ScriptChannel::Read() {
  iovec piece = {packet_.data(), packet_.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kRoomForDescriptors * sizeof(int))] = {};
  msghdr packet = {};
  ssize_t bytes;
  do {
    packet = {};
    packet.msg_iov = &piece;
    packet.msg_iovlen = 1;
    packet.msg_control = control;
    packet.msg_controllen = sizeof(control);
    bytes = recvmsg(options_.fd, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // The kernel reports ECONNRESET once where the script has not read everything; what the script
    // had sent can be read after that.
  } while (bytes < 0 && (errno == EINTR || errno == ECONNRESET));
  if (bytes == 0) return ScriptGone();
  if (bytes < 0) return SocketError("recvmsg");
  const Descriptors descriptors(&packet);
  if (static_cast<size_t>(bytes) < sizeof(tc_header) ||
      (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || descriptors.size() > 1) {
    return BadMessage(absl::StrCat("a message of ", bytes, " bytes with ", descriptors.size(),
                                   " descriptors; a message has ", sizeof(tc_header), " to ",
                                   TC_MESSAGE_BYTES, " bytes, and one descriptor at most"));
  }
  ScriptMessage message;
  std::memcpy(&message.header, packet_.data(), sizeof(message.header));
  message.payload.assign(packet_.data() + sizeof(message.header),
                         static_cast<size_t>(bytes) - sizeof(message.header));
  RETURN_IF_ERROR(Check(message));
  if (message.header.kind == TC_STATE) {
    ASSIGN_OR_RETURN(message.state, ReadState(descriptors.first(), message.header.bytes));
  }
  return message;
}

absl::Status ScriptChannel::Check(const ScriptMessage& message) const {
  const tc_header& header = message.header;
  switch (header.kind) {
    case TC_READY:
      if (header.count == TC_PROTOCOL && message.payload == THERMOCLINE_VERSION) break;
      return absl::FailedPreconditionError(
          absl::StrCat("the script's library is of version ", message.payload,
                       " and this worker of " THERMOCLINE_VERSION ": both must be of one build"));
    case TC_STEP:
    case TC_SCORES:
    case TC_RELEASE:
      if (header.slot < slots_.size() && slots_[header.slot].is_held) break;
      return BadMessage(
          absl::StrCat("an answer to batch ", header.slot, ", which it does not hold"));
    case TC_STATE:
    case TC_EVALUATE:
    case TC_FAILED:
    case TC_DONE:
    case TC_WARNING:
      break;
    default:
      return BadMessage(absl::StrCat("a message of kind ", header.kind));
  }
  return absl::OkStatus();
}

// The file can't change while it is read.
absl::StatusOr<std::string> ScriptChannel::ReadState(int fd, uint64_t bytes) const {
  const int seals = fd < 0 ? -1 : fcntl(fd, F_GET_SEALS);
  struct stat file = {};
  if (seals < 0 || (seals & kStateSeals) != kStateSeals || fstat(fd, &file) != 0 ||
      static_cast<uint64_t>(file.st_size) != bytes) {
    return BadMessage("a state that is not a sealed memory file of the announced size");
  }
  if (bytes > options_.max_state_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the script's state has ", bytes,
                                                     " bytes, and at most ",
                                                     options_.max_state_bytes, " can be kept"));
  }
  std::string state(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, state.data() + done, bytes - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return SocketError("pread of the script's state");
    done += static_cast<size_t>(got);
  }
  return state;
}

absl::StatusOr<uint32_t> ScriptChannel::TakeSlot(size_t bytes) {
  const auto is_free = [](const Slot& slot) { return !slot.is_held; };
  const auto has_room = [bytes](const Slot& slot) {
    return !slot.is_held && slot.memory->bytes() >= bytes;
  };
  auto found = std::find_if(slots_.begin(), slots_.end(), has_room);
  if (found == slots_.end()) {
    // A quarter more, since batches differ.
    ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create(bytes + bytes / 4));
    found = std::find_if(slots_.begin(), slots_.end(), is_free);
    if (found == slots_.end()) {
      if (slots_.size() == TC_MAX_SLOTS) {
        return absl::ResourceExhaustedError(absl::StrCat("the script keeps ", TC_MAX_SLOTS,
                                                         " batches: drop those that are trained"));
      }
      found = slots_.insert(slots_.end(), Slot());
    }
    *found = {std::make_unique<SharedMemory>(std::move(memory)), false, false};
  }
  return static_cast<uint32_t>(found - slots_.begin());
}

absl::Status ScriptChannel::SendBatch(uint32_t number, tc_header header, const SlotLayout& layout) {
  Slot& slot = slots_[number];
  CHECK(!slot.is_held);
  CHECK_LE(layout.bytes(), slot.memory->bytes());
  const absl::string_view places(reinterpret_cast<const char*>(layout.places().data()),
                                 layout.places().size() * sizeof(tc_array_place));
  if (places.size() > TC_PAYLOAD_BYTES) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", layout.places().size(), " arrays, and a script's has at most ",
                     TC_PAYLOAD_BYTES / sizeof(tc_array_place), ": the job has too many features"));
  }
  header.kind = TC_BATCH;
  header.slot = number;
  header.count = static_cast<uint32_t>(layout.places().size());
  RETURN_IF_ERROR(Send(header, places, slot.is_known ? -1 : slot.memory->fd()));
  slot.memory->CloseFd();  // The script has its own.
  slot.is_known = slot.is_held = true;
  return absl::OkStatus();
}

}  // namespace thermocline
