#include "worker/api/script_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/version/version.h"
#include "worker/api/testing/message_with_descriptors.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += !entry.path().empty();
  }
  return count;
}

size_t MappedSlots() {
  std::ifstream file("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    count += absl::StrContains(line, "memfd:thermocline-script");
  }
  return count;
}

tc_header Header(uint32_t kind, uint32_t slot = 0, uint64_t bytes = 0) {
  tc_header header = {};
  header.kind = kind;
  header.slot = slot;
  header.bytes = bytes;
  return header;
}

// A message as the script's end of the pair gets it.
struct Got {
  ssize_t bytes = 0;
  tc_header header = {};
  std::string payload;
  int fd = -1;  // The test's to close.
};

// The script's end is the test's, which writes to it what it likes.
class ScriptChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    descriptors_before_ = OpenDescriptors();
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    options_.fd = fds[0];
    options_.max_state_bytes = 1000;
    script_ = fds[1];
  }
  void TearDown() override {
    if (!channel_.has_value()) close(options_.fd);
    channel_.reset();
    CloseScript();
    EXPECT_EQ(OpenDescriptors(), descriptors_before_);
  }
  void CloseScript() {
    if (script_ >= 0) close(script_);
    script_ = -1;
  }
  ScriptChannel& Channel() {
    if (!channel_.has_value()) channel_.emplace(options_);
    return *channel_;
  }

  // Sends these bytes with these descriptors from the script's end.
  void SendBytes(const std::string& bytes, const std::vector<int>& fds = {}) {
    const MessageWithDescriptors message(bytes, fds);
    ASSERT_EQ(sendmsg(script_, message.get(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void SendMessage(const tc_header& header, const std::string& payload = "",
                   const std::vector<int>& fds = {}) {
    SendBytes(std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + payload, fds);
  }
  Got GetMessage() {
    Got got;
    std::string bytes(100000, '\0');
    iovec piece = {bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    got.bytes = recvmsg(script_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got.bytes < static_cast<ssize_t>(sizeof(tc_header))) return got;
    std::memcpy(&got.header, bytes.data(), sizeof(tc_header));
    got.payload =
        bytes.substr(sizeof(tc_header), static_cast<size_t>(got.bytes) - sizeof(tc_header));
    const cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    if (rights != nullptr) std::memcpy(&got.fd, CMSG_DATA(rights), sizeof(int));
    return got;
  }
  // The next message; no test waits for one.
  absl::StatusOr<ScriptMessage> Receive() {
    return Channel().Receive([] { return absl::CancelledError("nothing comes"); });
  }
  void ExpectError(absl::StatusCode code, const std::string& words) {
    const absl::StatusOr<ScriptMessage> got = Receive();
    EXPECT_EQ(got.status().code(), code) << got.status();
    EXPECT_THAT(std::string(got.status().message()), HasSubstr(words));
  }
  // A batch of one array of `floats`; returns its slot.
  uint32_t SendBatch(size_t floats) {
    SlotLayout layout;
    layout.Add(TC_LABELS, 0, floats, sizeof(float));
    const absl::StatusOr<uint32_t> slot = Channel().TakeSlot(layout.bytes());
    EXPECT_TRUE(slot.ok()) << slot.status();
    EXPECT_TRUE(Channel().SendBatch(*slot, {}, layout).ok());
    return *slot;
  }
  // Closes the descriptor that came with the next message; returns whether there was one.
  bool TakesMemory() {
    const Got got = GetMessage();
    EXPECT_EQ(got.header.kind, TC_BATCH);
    if (got.fd >= 0) close(got.fd);
    return got.fd >= 0;
  }

  size_t descriptors_before_ = 0;
  ScriptChannelOptions options_;
  std::optional<ScriptChannel> channel_;
  int script_ = -1;
};

TEST(SlotLayout, PlacesArraysAtMultiplesOf64) {
  SlotLayout layout;
  EXPECT_EQ(layout.Add(TC_NUMERIC, 0, 3, 4), 0u);
  EXPECT_EQ(layout.Add(TC_ROWS, 1, 16, 4), 64u);
  EXPECT_EQ(layout.Add(TC_WEIGHTS, 0, 0, 4), 128u);
  EXPECT_EQ(layout.Add(TC_HAS_GRADIENT, 1, 65, 1), 128u);
  EXPECT_EQ(layout.bytes(), 256u);
  ASSERT_EQ(layout.places().size(), 4u);
  EXPECT_EQ(layout.places()[3].kind, TC_HAS_GRADIENT);
  EXPECT_EQ(layout.places()[3].index, 1u);
  EXPECT_EQ(layout.places()[3].offset, 128u);
  EXPECT_EQ(layout.places()[3].count, 65u);
  layout.Clear();
  EXPECT_EQ(layout.bytes(), 0u);
  EXPECT_TRUE(layout.places().empty());
}

TEST(SharedMemory, HasAFixedSize) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create(5000);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->data()[4999], 0);
  EXPECT_NE(ftruncate(memory->fd(), 100), 0);
  EXPECT_NE(ftruncate(memory->fd(), 10000), 0);
  EXPECT_NE(fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  const int fd = memory->fd();
  SharedMemory moved = *std::move(memory);
  EXPECT_EQ(moved.fd(), fd);
  EXPECT_EQ(SharedMemory::Create(0)->bytes(), 1u);
}

// Files of this process may not grow beyond a limit, so that no memory is taken.
TEST(SharedMemory, SaysThatThereIsNotEnough) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = SharedMemory::Create((1 << 20) + 1).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no 1048577 bytes of shared memory: posix_fallocate"));
}

TEST_F(ScriptChannelTest, SaysHelloWithItsVersionAndTheJob) {
  const std::string job(300000, 'j');
  ASSERT_TRUE(Channel().SendHello(job).ok());
  const Got hello = GetMessage();
  EXPECT_EQ(hello.header.kind, TC_HELLO);
  EXPECT_EQ(hello.header.count, TC_PROTOCOL);
  EXPECT_EQ(hello.header.bytes, job.size());
  EXPECT_EQ(hello.payload, THERMOCLINE_VERSION);
  std::string got(job.size() + 1, '\0');
  EXPECT_EQ(pread(hello.fd, got.data(), got.size(), 0), static_cast<ssize_t>(job.size()));
  got.resize(job.size());
  EXPECT_EQ(got, job);
  close(hello.fd);
}

TEST_F(ScriptChannelTest, TakesALibraryOfItsOwnBuildOnly) {
  tc_header ready = Header(TC_READY);
  ready.count = TC_PROTOCOL;
  SendMessage(ready, THERMOCLINE_VERSION);
  EXPECT_TRUE(Receive().ok());
  SendMessage(ready, "9.8.7");
  ExpectError(absl::StatusCode::kFailedPrecondition,
              "of version 9.8.7 and this worker of " THERMOCLINE_VERSION);
  ready.count = TC_PROTOCOL + 1;
  SendMessage(ready, THERMOCLINE_VERSION);
  ExpectError(absl::StatusCode::kFailedPrecondition, "one build");
}

TEST_F(ScriptChannelTest, ReturnsMessagesInTheirOrder) {
  tc_header step = Header(TC_STEP, SendBatch(4));
  step.step = 17;
  step.value = 2.5;
  step.rate = 0.25;
  step.flags = TC_SKIPS;
  SendMessage(step);
  SendMessage(Header(TC_FAILED), "Traceback");
  absl::StatusOr<ScriptMessage> message = Receive();
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(std::memcmp(&message->header, &step, sizeof(step)), 0);
  message = Receive();
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->header.kind, TC_FAILED);
  EXPECT_EQ(message->payload, "Traceback");
  EXPECT_TRUE(TakesMemory());
}

TEST_F(ScriptChannelTest, RefusesMessagesOfAWrongForm) {
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  SendBytes("x");
  ExpectError(invalid, "a message of 1 bytes with 0 descriptors; a message has 48 to 65536");
  SendBytes(std::string(sizeof(tc_header) - 1, '\0'));
  ExpectError(invalid, "one descriptor at most");
  SendMessage(Header(TC_DONE), std::string(TC_PAYLOAD_BYTES + 1, 'x'));
  ExpectError(invalid, "one descriptor at most");
  SendMessage(Header(TC_DONE), "", {script_, script_});
  ExpectError(invalid, "with 2 descriptors");
  SendMessage(Header(TC_DONE), "", std::vector<int>(60, script_));
  ExpectError(invalid, "one descriptor at most");
  for (const uint32_t kind : {0u, 7u, static_cast<uint32_t>(TC_BATCH), 41u, ~0u}) {
    SendMessage(Header(kind));
    ExpectError(invalid, absl::StrCat("a message of kind ", kind));
  }
  // What follows is read as if nothing had been.
  SendMessage(Header(TC_DONE), std::string(TC_PAYLOAD_BYTES, 'x'), {script_});
  EXPECT_EQ(Receive()->payload.size(), TC_PAYLOAD_BYTES);
}

TEST_F(ScriptChannelTest, RefusesAnswersToBatchesThatTheScriptDoesNotHold) {
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  for (const tc_message_kind kind : {TC_STEP, TC_SCORES, TC_RELEASE}) {
    for (const uint32_t slot : {0u, 1u, TC_MAX_SLOTS, ~0u}) {
      SendMessage(Header(kind, slot));
      ExpectError(invalid, absl::StrCat("an answer to batch ", slot));
    }
  }
  const uint32_t slot = SendBatch(4);
  SendMessage(Header(TC_RELEASE, slot));
  SendMessage(Header(TC_STEP, slot));
  ExpectError(invalid, "an answer to batch 0");
  EXPECT_TRUE(TakesMemory());
}

TEST_F(ScriptChannelTest, ReadsAStateThatIsSealed) {
  const int file = memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(write(file, "state", 5), 5);
  ASSERT_EQ(fcntl(file, F_ADD_SEALS, kAllSeals), 0);
  SendMessage(Header(TC_STATE, 0, 5), "", {file});
  absl::StatusOr<ScriptMessage> message = Receive();
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->state, "state");
  SendMessage(Header(TC_STATE, 0, 4), "", {file});
  ExpectError(absl::StatusCode::kInvalidArgument, "of the announced size");
  SendMessage(Header(TC_STATE, 0, 6), "", {file});
  ExpectError(absl::StatusCode::kInvalidArgument, "of the announced size");
  SendMessage(Header(TC_STATE, 0, 5));
  ExpectError(absl::StatusCode::kInvalidArgument, "sealed");
  close(file);
}

TEST_F(ScriptChannelTest, RefusesAStateThatCanChangeOrIsTooLarge) {
  for (const int seal : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE}) {
    const int file = memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(write(file, "state", 5), 5);
    ASSERT_EQ(fcntl(file, F_ADD_SEALS, kAllSeals & ~seal), 0);
    SendMessage(Header(TC_STATE, 0, 5), "", {file});
    ExpectError(absl::StatusCode::kInvalidArgument, "sealed");
    close(file);
  }
  // A file of a disk has no seals, nor has a socket.
  const std::string path = testing::TempDir() + "/state";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_EQ(write(file, "state", 5), 5);
  SendMessage(Header(TC_STATE, 0, 5), "", {file});
  ExpectError(absl::StatusCode::kInvalidArgument, "sealed");
  SendMessage(Header(TC_STATE, 0, 0), "", {script_});
  ExpectError(absl::StatusCode::kInvalidArgument, "sealed");
  close(file);
  const int large = memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(large, 1001), 0);
  ASSERT_EQ(fcntl(large, F_ADD_SEALS, kAllSeals), 0);
  SendMessage(Header(TC_STATE, 0, 1001), "", {large});
  ExpectError(absl::StatusCode::kResourceExhausted, "at most 1000");
  close(large);
}

TEST_F(ScriptChannelTest, GivesAllThatCameBeforeTheEndOfTheScript) {
  // The script has not read all when it ends, which its socket says first.
  ASSERT_TRUE(Channel().Send(Header(TC_SAVE)).ok());
  SendMessage(Header(TC_FAILED), "Traceback");
  CloseScript();
  absl::Status sent = Channel().Send(Header(TC_SAVE));
  EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable) << sent;
  absl::StatusOr<ScriptMessage> message = Receive();
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->payload, "Traceback");
  ExpectError(absl::StatusCode::kUnavailable, "closed its end");
  ExpectError(absl::StatusCode::kUnavailable, "closed its end");
}

TEST_F(ScriptChannelTest, SeesTheEndOfTheScriptWhoseChildHoldsItsEnd) {
  const pid_t script = fork();
  if (script == 0) {
    pause();
    _exit(0);
  }
  options_.pidfd = static_cast<int>(syscall(SYS_pidfd_open, script, 0));
  ASSERT_GE(options_.pidfd, 0);
  int waits = 0;
  const auto kill_once = [&] {
    if (++waits > 1) return absl::CancelledError("waits on");
    kill(script, SIGKILL);
    return absl::OkStatus();
  };
  EXPECT_EQ(Channel().Receive(kill_once).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waits, 1);
  SendMessage(Header(TC_FAILED), "what it had sent");
  EXPECT_EQ(Receive()->payload, "what it had sent");
  ExpectError(absl::StatusCode::kUnavailable, "closed its end");
  waitpid(script, nullptr, 0);
  close(options_.pidfd);
}

TEST_F(ScriptChannelTest, WaitsUntilItsCallerWantsNoMore) {
  int waits = 0;
  const absl::StatusOr<ScriptMessage> got = Channel().Receive([&] {
    if (++waits == 1)
      SendMessage(Header(TC_RELEASE, 0));  // It names no slot: an error of the script.
    return waits == 1 ? absl::OkStatus() : absl::CancelledError("no more");
  });
  EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
  ExpectError(absl::StatusCode::kCancelled, "nothing comes");
}

TEST_F(ScriptChannelTest, SendsNothingMoreToAFullSocket) {
  options_.send_timeout = absl::Milliseconds(20);
  const std::string payload(TC_PAYLOAD_BYTES, 'x');
  absl::Status status;
  int sent = 0;
  for (; status.ok() && sent < 10000; ++sent) status = Channel().Send(Header(TC_PHASE), payload);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has read no message for 20ms"));
  EXPECT_EQ(GetMessage().payload, payload);
  while (GetMessage().bytes > 0) {
  }
  EXPECT_TRUE(Channel().Send(Header(TC_PHASE), payload).ok());
}

TEST_F(ScriptChannelTest, UsesASlotAgainOnceItIsReleased) {
  EXPECT_EQ(SendBatch(100), 0u);
  EXPECT_TRUE(TakesMemory());
  EXPECT_EQ(SendBatch(100), 1u) << "The script holds the first.";
  EXPECT_TRUE(TakesMemory());
  const uint8_t* const memory = Channel().slot(0);
  SendMessage(Header(TC_RELEASE, 0));
  SendMessage(Header(TC_EVALUATE));
  ASSERT_TRUE(Receive().ok());
  EXPECT_EQ(SendBatch(100), 0u);
  EXPECT_FALSE(TakesMemory()) << "The script has mapped it.";
  EXPECT_EQ(Channel().slot(0), memory);
}

TEST_F(ScriptChannelTest, ReplacesMemoryThatIsTooSmall) {
  EXPECT_EQ(SendBatch(100), 0u);
  const Got small = GetMessage();
  SendMessage(Header(TC_RELEASE, 0));
  SendMessage(Header(TC_EVALUATE));
  ASSERT_TRUE(Receive().ok());
  EXPECT_EQ(SendBatch(100000), 0u);
  const Got large = GetMessage();
  ASSERT_GE(large.fd, 0);
  EXPECT_EQ(MappedSlots(), 1u) << "The old memory is dropped.";
  struct stat small_file = {}, large_file = {};
  ASSERT_EQ(fstat(small.fd, &small_file), 0);
  ASSERT_EQ(fstat(large.fd, &large_file), 0);
  EXPECT_NE(small_file.st_ino, large_file.st_ino);
  EXPECT_GE(large_file.st_size, 400000);
  close(small.fd);
  close(large.fd);
  // What fits is used as it is.
  SendMessage(Header(TC_RELEASE, 0));
  SendMessage(Header(TC_EVALUATE));
  ASSERT_TRUE(Receive().ok());
  EXPECT_EQ(SendBatch(10), 0u);
  EXPECT_FALSE(TakesMemory());
}

TEST_F(ScriptChannelTest, SharesTheValuesOfABatch) {
  SlotLayout layout;
  layout.Add(TC_LABELS, 0, 2, sizeof(float));
  const size_t gradients = layout.Add(TC_GRADIENTS, 3, 2, sizeof(float));
  const absl::StatusOr<uint32_t> slot = Channel().TakeSlot(layout.bytes());
  ASSERT_TRUE(slot.ok());
  const float labels[] = {1, 0};
  std::memcpy(Channel().slot(*slot), labels, sizeof(labels));
  tc_header header = {};
  header.step = 5;
  header.bytes = 2;
  header.flags = TC_EVALUATES;
  ASSERT_TRUE(Channel().SendBatch(*slot, header, layout).ok());
  const Got batch = GetMessage();
  EXPECT_EQ(batch.header.kind, TC_BATCH);
  EXPECT_EQ(batch.header.step, 5);
  EXPECT_EQ(batch.header.bytes, 2u);
  EXPECT_EQ(batch.header.flags, TC_EVALUATES);
  EXPECT_EQ(batch.header.count, 2u);
  ASSERT_EQ(batch.payload.size(), 2 * sizeof(tc_array_place));
  tc_array_place places[2];
  std::memcpy(places, batch.payload.data(), sizeof(places));
  EXPECT_EQ(places[1].kind, TC_GRADIENTS);
  EXPECT_EQ(places[1].index, 3u);
  EXPECT_EQ(places[1].offset, gradients);
  EXPECT_EQ(places[1].count, 2u);
  float got[2] = {};
  EXPECT_EQ(pread(batch.fd, got, sizeof(got), static_cast<off_t>(places[0].offset)), 8);
  EXPECT_EQ(got[0], 1);
  const float written[] = {0.5f, -0.5f};
  EXPECT_EQ(pwrite(batch.fd, written, sizeof(written), static_cast<off_t>(places[1].offset)), 8);
  EXPECT_EQ(std::memcmp(Channel().slot(*slot) + gradients, written, sizeof(written)), 0);
  close(batch.fd);
}

TEST_F(ScriptChannelTest, RefusesBatchesOfTooManyArrays) {
  SlotLayout layout;
  for (uint32_t i = 0; i < 3000; ++i) layout.Add(TC_INDICES, i, 1, sizeof(int32_t));
  const absl::StatusOr<uint32_t> slot = Channel().TakeSlot(layout.bytes());
  ASSERT_TRUE(slot.ok());
  const absl::Status sent = Channel().SendBatch(*slot, {}, layout);
  EXPECT_EQ(sent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sent.message()), HasSubstr("3000 arrays"));
}

TEST_F(ScriptChannelTest, HasALimitOfBatchesThatAScriptKeeps) {
  for (uint32_t i = 0; i < TC_MAX_SLOTS; ++i) {
    const absl::StatusOr<uint32_t> slot = Channel().TakeSlot(1);
    ASSERT_TRUE(slot.ok()) << slot.status();
    ASSERT_EQ(*slot, i);
    ASSERT_TRUE(Channel().SendBatch(*slot, {}, SlotLayout()).ok());
    TakesMemory();
  }
  const absl::Status status = Channel().TakeSlot(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("keeps 4096 batches"));
}

}  // namespace
}  // namespace thermocline
