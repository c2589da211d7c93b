#include "server/tables/spiller.h"

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

// Returns the number of this process's threads.
int64_t NumThreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

void NeverBroken(const absl::Status& status) { ADD_FAILURE() << status; }

TEST(SpillerTest, RunsARoundWhereOneIsDue) {
  std::atomic<int> rounds{0};
  absl::Notification second;
  Spiller spiller(
      [&] {
        if (++rounds == 2) second.Notify();
        return absl::OkStatus();
      },
      NeverBroken);
  spiller.RunNow();
  EXPECT_EQ(rounds.load(), 1);
  spiller.Wake();
  second.WaitForNotification();
  EXPECT_TRUE(spiller.full().ok());
}

TEST(SpillerTest, AFullDiskIsTriedAgainUntilThereIsRoom) {
  std::atomic<int> rounds{0};
  std::atomic<bool> has_room{false};
  Spiller spiller(
      [&] {
        ++rounds;
        return has_room ? absl::OkStatus() : absl::ResourceExhaustedError("no space");
      },
      NeverBroken);
  spiller.Wake();
  while (rounds < 3) std::this_thread::yield();  // It goes on without being woken.
  EXPECT_EQ(spiller.full(), absl::ResourceExhaustedError("no space"));
  has_room = true;
  while (!spiller.full().ok()) std::this_thread::yield();
}

TEST(SpillerTest, AFinalErrorIsToldOnceAndEndsTheThread) {
  const int64_t threads_before = NumThreads();
  std::atomic<int> rounds{0};
  std::vector<absl::Status> broken;
  {
    Spiller spiller(
        [&] {
          ++rounds;
          return absl::UnavailableError("input/output error");
        },
        [&](const absl::Status& status) { broken.push_back(status); });
    spiller.Wake();
    // Were it to look at what is due again and again, this would never end.
    while (NumThreads() > threads_before) absl::SleepFor(absl::Milliseconds(1));
    spiller.Wake();
    spiller.RunNow();
    EXPECT_TRUE(spiller.full().ok());
  }
  EXPECT_EQ(rounds.load(), 1);
  EXPECT_EQ(broken, std::vector<absl::Status>{absl::UnavailableError("input/output error")});
}

TEST(SpillerTest, AFinalErrorOfARoundOnAnotherThreadEndsItToo) {
  const int64_t threads_before = NumThreads();
  int broken = 0;
  Spiller spiller([] { return absl::DataLossError("checksum"); },
                  [&](const absl::Status&) { ++broken; });
  spiller.RunNow();
  EXPECT_EQ(broken, 1);
  while (NumThreads() > threads_before) absl::SleepFor(absl::Milliseconds(1));
}

}  // namespace
}  // namespace thermocline
