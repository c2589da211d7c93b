#include "deploy/job/stall_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace thermocline {
namespace {

using ::testing::ElementsAre;

ServerReport Report(uint64_t pushes, uint64_t keys_pulled,
                    const std::vector<int64_t>& accepted_through) {
  ServerStats stats;
  stats.set_pushes_accepted(pushes);
  stats.add_tables()->set_keys_pulled(keys_pulled);
  stats.add_tables()->set_keys_pulled(1);
  for (const int64_t step : accepted_through) stats.add_accepted_through(step);
  return {"a:1", stats};
}

WorkerReport At(uint32_t rank, const std::string& phase, uint64_t advances) {
  WorkerStats stats;
  stats.set_worker_rank(rank);
  stats.mutable_phase()->set_name(phase);
  stats.mutable_phase()->set_advances(advances);
  return {"w:1", stats};
}

WorkerReport SilentWorker() { return {"w:2", absl::DeadlineExceededError("too late")}; }

ServerReport Silent() { return {"b:2", absl::DeadlineExceededError("GetStats at b:2: too late")}; }

TEST(StallWatch, PushesAndAnsweredPullsAreAdvances) {
  StallWatch watch(2);
  EXPECT_EQ(watch.last_advance(), absl::ZeroDuration());
  watch.Look({Report(1, 0, {0, -1}), Report(0, 0, {-1, -1})}, {}, absl::Seconds(1));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(1));
  watch.Look({Report(1, 0, {0, -1}), Report(1, 0, {0, -1})}, {}, absl::Seconds(2));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(2));
  // A training pull that was answered; those of readers are counted apart.
  watch.Look({Report(1, 0, {0, -1}), Report(1, 7, {0, -1})}, {}, absl::Seconds(3));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(3));
  watch.Look({Report(1, 0, {0, -1}), Report(1, 7, {0, -1})}, {}, absl::Seconds(4));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(3));
}

TEST(StallWatch, RecoveryIsAnAdvance) {
  StallWatch watch(1);
  ServerReport report = Report(0, 0, {});
  report.stats->set_loaded_rows(100);
  watch.Look({report}, {}, absl::Seconds(2));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(2));
  report.stats->set_replayed_chunks(1);
  watch.Look({report}, {}, absl::Seconds(3));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(3));
  watch.Look({report}, {}, absl::Seconds(4));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(3));
}

TEST(StallWatch, WorkersThatScanOrEvaluateAdvance) {
  StallWatch watch(1);
  const ServerReport server = Report(0, 0, {-1, -1});
  watch.Look({server}, {At(0, "counting lines", 0), At(1, "counting lines", 5)}, absl::Seconds(1));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(1));
  watch.Look({server}, {At(0, "counting lines", 1), At(1, "counting lines", 5)}, absl::Seconds(2));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(2));
  // A worker that hangs does not advance, whether it answers or not.
  watch.Look({server}, {At(0, "skipping to step 9", 1), SilentWorker()}, absl::Seconds(3));
  watch.Look({server}, {At(0, "skipping to step 9", 1), At(1, "counting lines", 5)},
             absl::Seconds(4));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(2));
  // One worker that advances is enough, also where another has ended.
  watch.Look({server}, {At(1, "evaluating", 6)}, absl::Seconds(5));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(5));
}

TEST(StallWatch, SaysWhatTheWorkersDoThatAreWaitedFor) {
  StallWatch watch(1);
  watch.Look({Report(0, 0, {-1, 3})}, {At(0, "counting lines", 0), At(1, "training", 0)},
             absl::Seconds(1));
  EXPECT_EQ(watch.WhoIsWaitedFor({0, 1}),
            "worker 0 is waited for: it has pushed nothing; it is counting lines");
  EXPECT_EQ(watch.WhoIsWaitedFor({1}),
            "worker 1 is waited for: its last push is of step 3; it is training");
  watch.Look({Report(0, 0, {-1, 3})}, {SilentWorker()}, absl::Seconds(2));
  EXPECT_EQ(watch.WhoIsWaitedFor({0, 1}), "worker 0 is waited for: it has pushed nothing");
}

TEST(StallWatch, WhatWasReachedIsTheFurthestThatAnybodyHasSaid) {
  StallWatch watch(2);
  EXPECT_EQ(watch.reached(), kNoStep);
  ServerReport first = Report(1, 0, {}), second = Report(1, 0, {});
  first.stats->set_complete_through(7);
  second.stats->set_complete_through(8);
  watch.Look({first, second}, {}, absl::Seconds(1));
  EXPECT_EQ(watch.reached(), Step(8));
  // It does not answer, or it was restarted and still recovers.
  watch.Look({first, Silent()}, {}, absl::Seconds(2));
  EXPECT_EQ(watch.reached(), Step(8));
}

TEST(StallWatch, ASilentServerHasNotAdvanced) {
  StallWatch watch(1);
  watch.Look({Report(5, 0, {4})}, {}, absl::Seconds(1));
  watch.Look({Silent()}, {}, absl::Seconds(2));
  watch.Look({Report(5, 0, {4})}, {}, absl::Seconds(3));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(1));
}

TEST(StallWatch, NamesTheWorkersWhosePushesAreTheOldest) {
  StallWatch watch(2);
  // Worker 1's push of step 41 has reached one server only.
  watch.Look({Report(9, 0, {41, 41, 41}), Report(8, 0, {41, 40, 41})}, {}, absl::Seconds(1));
  EXPECT_THAT(watch.Behind({0, 1, 2}), ElementsAre(1));
  EXPECT_EQ(watch.WhoIsWaitedFor({0, 1, 2}), "worker 1 is waited for: its last push is of step 40");
  // A worker that has ended is not waited for.
  EXPECT_THAT(watch.Behind({0, 2}), ElementsAre(0, 2));
  watch.Look({Report(9, 0, {0, -1, 0}), Report(8, 0, {0, 0, 0})}, {}, absl::Seconds(1));
  EXPECT_EQ(watch.WhoIsWaitedFor({0, 1, 2}), "worker 1 is waited for: it has pushed nothing");
}

TEST(StallWatch, NamesTheServersThatHaveNoRoom) {
  StallWatch watch(2);
  ServerReport full = Report(1, 0, {3});
  full.stats->set_requests_refused(5);
  const ServerReport other = Report(1, 0, {3});
  watch.Look({full, other}, {}, absl::Seconds(1));
  full.stats->set_requests_refused(12);
  watch.Look({full, other}, {}, absl::Seconds(2));
  EXPECT_EQ(watch.last_advance(), absl::Seconds(1));  // A refusal is no advance.
  EXPECT_EQ(
      watch.WhoIsWaitedFor({0}),
      "server 0 at a:1 has no room: 7 requests were refused since the look before; worker 0 is "
      "waited for: its last push is of step 3");
  EXPECT_THAT(watch.ServersWaitedFor(), ElementsAre(0));
  watch.Look({full, other}, {}, absl::Seconds(3));
  EXPECT_THAT(watch.ServersWaitedFor(), ElementsAre());
  EXPECT_EQ(watch.WhoIsWaitedFor({0}), "worker 0 is waited for: its last push is of step 3");
  full.stats->set_requests_refused(2);  // It was restarted.
  watch.Look({full, other}, {}, absl::Seconds(4));
  EXPECT_EQ(watch.WhoIsWaitedFor({0}).find("server 0 at a:1 has no room: 2 requests"), 0u);
}

TEST(StallWatch, NamesTheDiskThatIsFull) {
  StallWatch watch(1);
  ServerReport full = Report(1, 0, {3});
  full.stats->set_requests_refused(5);
  full.stats->set_push_log_full("ext4 at /data has 0 bytes free");
  watch.Look({full}, {}, absl::Seconds(1));
  EXPECT_EQ(watch.WhoIsWaitedFor({0}),
            "server 0 at a:1 has no room for its push log: ext4 at /data has 0 bytes free; worker "
            "0 is waited for: its last push is of step 3");
}

TEST(StallWatch, NamesTheServersThatDoNotAnswer) {
  StallWatch watch(2);
  watch.Look({Report(1, 0, {3}), Silent()}, {}, absl::Seconds(1));
  EXPECT_EQ(watch.WhoIsWaitedFor({0}),
            "server 1 at b:2 does not answer: GetStats at b:2: too late; worker 0 is waited for: "
            "its last push is of step 3");
  EXPECT_THAT(watch.ServersWaitedFor(), ElementsAre(1));
  watch.Look({Silent(), Silent()}, {}, absl::Seconds(1));
  EXPECT_THAT(watch.ServersWaitedFor(), ElementsAre(0, 1));
  EXPECT_EQ(watch.WhoIsWaitedFor({0}),
            "server 0 at b:2 does not answer: GetStats at b:2: too late; server 1 at b:2 does not "
            "answer: GetStats at b:2: too late");
}

}  // namespace
}  // namespace thermocline
