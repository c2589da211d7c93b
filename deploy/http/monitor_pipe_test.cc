#include "deploy/http/monitor_pipe.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace thermocline {
namespace {

class MonitorPipeTest : public testing::Test {
 protected:
  MonitorPipeTest() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  ~MonitorPipeTest() override {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }

  int ends_[2];
};

TEST_F(MonitorPipeTest, MessagesOfAnySizeComeAsTheyWereSent) {
  MonitorMessage first, second;
  first.mutable_setup()->set_job("a");
  // More than the socket keeps: it is read while it is sent.
  second.mutable_snapshot()->add_processes()->set_error(std::string(4 << 20, 'x'));
  std::thread sender([&] {
    EXPECT_TRUE(SendMonitorMessage(ends_[0], first).ok());
    EXPECT_TRUE(SendMonitorMessage(ends_[0], second).ok());
  });
  int passed = 0;
  const auto got = ReceiveMonitorMessage(ends_[1], &passed);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->setup().job(), "a");
  EXPECT_EQ(passed, -1);
  const auto large = ReceiveMonitorMessage(ends_[1], &passed);
  sender.join();
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->SerializeAsString(), second.SerializeAsString());
}

TEST_F(MonitorPipeTest, ADescriptorComesWithAMessage) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_TRUE(SendMonitorMessage(ends_[0], MonitorMessage(), pipe_ends[1]).ok());
  close(pipe_ends[1]);
  int passed = -1;
  ASSERT_TRUE(ReceiveMonitorMessage(ends_[1], &passed).ok());
  ASSERT_GE(passed, 0);
  EXPECT_EQ(write(passed, "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(pipe_ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  close(passed);
  close(pipe_ends[0]);
}

TEST_F(MonitorPipeTest, EitherSideSeesThatTheOtherIsGone) {
  close(std::exchange(ends_[0], -1));
  int passed = -1;
  EXPECT_EQ(ReceiveMonitorMessage(ends_[1], &passed).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(SendMonitorMessage(ends_[1], MonitorMessage()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(MonitorPipeTest, WhatIsNoMessageIsAnError) {
  ASSERT_EQ(write(ends_[0], "\1\0\0\0\xff", 5), 5);
  int passed = -1;
  EXPECT_EQ(ReceiveMonitorMessage(ends_[1], &passed).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(write(ends_[0], "\xff\xff\xff\xff", 4), 4);
  EXPECT_EQ(ReceiveMonitorMessage(ends_[1], &passed).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace thermocline
