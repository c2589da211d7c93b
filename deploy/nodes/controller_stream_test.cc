#include "deploy/nodes/controller_stream.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace thermocline {
namespace {

// What a server says first: SETTINGS with the largest INITIAL_WINDOW_SIZE, and a WINDOW_UPDATE of
// the connection to match. What a client sends then waits for room in sockets alone.
constexpr absl::string_view kNoFlowControl(
    "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff"
    "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\x00\x00",
    28);

// A controller's machine that vanishes: it takes one connection, reads from it until a report has
// begun to come, and then nothing any more.
class VanishingController {
 public:
  VanishingController() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~VanishingController() {
    close(connection_);
    close(listener_);
  }

  void ReadTheBeginning() {
    connection_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(connection_, 0);
    ASSERT_EQ(write(connection_, kNoFlowControl.data(), kNoFlowControl.size()),
              static_cast<ssize_t>(kNoFlowControl.size()));
    constexpr ssize_t kMoreThanTheOpening = 1 << 20;
    std::string buffer(1 << 16, '\0');
    for (ssize_t all = 0; all < kMoreThanTheOpening;) {
      const ssize_t got = read(connection_, buffer.data(), buffer.size());
      ASSERT_GT(got, 0);
      all += got;
    }
  }
  const std::string& address() const { return address_; }

 private:
  const int listener_;
  int connection_ = -1;
  std::string address_;
};

NodeReport LargeReport() {
  NodeReport report;
  report.mutable_metrics()->set_data(std::string(64 << 20, 'x'));  // No socket takes it whole.
  return report;
}

// Only the end of the connection, which a keepalive or the kernel brings about much later, lets
// gRPC end a call with such a report. What ends calls `wake`.
TEST(ControllerStreamTest, AReportInAFullSendQueueHoldsNobodyUp) {
  VanishingController controller;
  std::atomic<int> wakes{0};
  auto stream = *ControllerStream::Create(controller.address(), {}, [&wakes] { ++wakes; });
  ASSERT_TRUE(stream->Work(absl::InfiniteDuration()).ok());  // Opens it.
  ASSERT_TRUE(stream->CanWrite());
  std::thread reads([&] { controller.ReadTheBeginning(); });
  stream->Write(LargeReport());
  reads.join();
  stream->AwaitWritten(absl::ZeroDuration());
  EXPECT_FALSE(stream->CanWrite()) << "the report has not left";
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream->Work(absl::ZeroDuration()).status()));
  EXPECT_EQ(wakes, 0) << "it waited for the end of the call";
  stream->Close(absl::ZeroDuration());
  stream.reset();
  EXPECT_EQ(wakes, 0);
}

}  // namespace
}  // namespace thermocline
