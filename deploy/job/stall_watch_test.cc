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

// A worker that waits, first for what comes first.
WorkerReport Waiting(uint32_t rank, const std::vector<WorkerWait>& waits) {
  WorkerReport report = At(rank, "training", 0);
  for (const WorkerWait& wait : waits) *report.stats->add_waits() = wait;
  return report;
}
WorkerWait ForWorker(uint32_t worker, WorkerWait::Kind kind, int64_t step, int64_t needed_step) {
  WorkerWait wait;
  wait.set_worker(worker);
  wait.set_kind(kind);
  wait.set_step(step);
  wait.set_needed_step(needed_step);
  wait.set_seconds(61.2);
  return wait;
}
WorkerWait ForServer(uint32_t server, WorkerWait::Kind kind, int64_t step) {
  WorkerWait wait = ForWorker(0, kind, step, step);
  wait.set_server(server);
  wait.set_last_error("connection lost");
  return wait;
}
ServerReport Serving(const std::vector<int64_t>& accepted_through) {
  ServerReport report = Report(9, 0, accepted_through);
  report.stats->set_configured(true);
  return report;
}

TEST(StallWatch, TheFirstWaitNamesTheWorkerThatAllOthersWaitFor) {
  StallWatch watch(1);
  WorkerWait first = ForWorker(2, WorkerWait::GRADIENTS, 41, 41);
  first.set_last_error("broken pipe");
  // 1 waits for 0, who waits for 2. All have pushed the same.
  watch.Look({Serving({40, 40, 40})},
             {Waiting(0, {first}), Waiting(1, {ForWorker(0, WorkerWait::DENSE_WEIGHTS, 41, 41)}),
              SilentWorker()},
             absl::Seconds(1));
  EXPECT_THAT(watch.Behind({0, 1, 2}), ElementsAre(2));
  EXPECT_EQ(
      watch.WhoIsWaitedFor({0, 1, 2}),
      "worker 2 is waited for: worker 0 has waited 61s for the gradients of step 41 of worker 2 "
      "(broken pipe); its last push is of step 40");
  EXPECT_EQ(watch.WaitFor(2), "worker 0 waited for the gradients of step 41");
  EXPECT_EQ(watch.WaitFor(0), "worker 1 waited for the dense weights of step 41");
  EXPECT_EQ(watch.WaitFor(1), "");
  // Waits are those of the last look.
  watch.Look({Serving({40, 40, 40})}, {At(0, "training", 0)}, absl::Seconds(2));
  EXPECT_THAT(watch.Behind({0, 1, 2}), ElementsAre(0, 1, 2));
  EXPECT_EQ(watch.WaitFor(2), "");
}

// Worker 2 has sent its keys of step 49 to worker 0 alone, and died: 1 can't plan step 41, and 0
// waits for its rows.
TEST(StallWatch, KeysAreNeededForThePlanOfAnEarlierStep) {
  StallWatch watch(1);
  watch.Look({Serving({40, 40, 40})},
             {Waiting(0, {ForWorker(1, WorkerWait::ROWS, 41, 41)}),
              Waiting(1, {ForWorker(2, WorkerWait::KEYS, 49, 41)})},
             absl::Seconds(1));
  EXPECT_THAT(watch.Behind({0, 1, 2}), ElementsAre(2));
}

TEST(StallWatch, AWaitForAServerThatCanNotGoOnBlamesNoWorker) {
  StallWatch watch(2);
  ServerReport recovering = Serving({});
  recovering.stats->set_configured(false);
  const std::vector<WorkerReport> workers = {
      Waiting(0, {ForServer(1, WorkerWait::SERVER_ACKNOWLEDGEMENT, 40)}),
      Waiting(1, {ForWorker(0, WorkerWait::ROWS, 41, 41)})};
  watch.Look({Serving({40, 40}), recovering}, workers, absl::Seconds(1));
  EXPECT_THAT(watch.Behind({0, 1}), ElementsAre());
  EXPECT_EQ(watch.WhoIsWaitedFor({0, 1}),
            "server 1 at a:1 is waited for: worker 0 has waited 61s for the acknowledgement of "
            "the push of step 40 of server 1 (connection lost); it recovers");
  watch.Look({Serving({40, 40}), Silent()}, workers, absl::Seconds(2));
  EXPECT_THAT(watch.Behind({0, 1}), ElementsAre());
  EXPECT_EQ(watch.WhoIsWaitedFor({0, 1}),
            "server 1 at b:2 does not answer: GetStats at b:2: too late");
}

// The server holds the pull until worker 1 has pushed the step before.
TEST(StallWatch, AWaitForAServerThatCanGoOnLeadsToTheOldestPushes) {
  StallWatch watch(1);
  watch.Look({Serving({40, 39})}, {Waiting(0, {ForServer(0, WorkerWait::SERVER_ROWS, 41)})},
             absl::Seconds(1));
  EXPECT_THAT(watch.Behind({0, 1}), ElementsAre(1));
  EXPECT_EQ(watch.WhoIsWaitedFor({0, 1}),
            "server 0 at a:1 is waited for: worker 0 has waited 61s for the rows of step 41 of "
            "server 0 (connection lost); worker 1 is waited for: its last push is of step 39");
}

TEST(StallWatch, AWorkerThatHasEndedIsNotBlamed) {
  StallWatch watch(1);
  watch.Look({Serving({40, 39})}, {Waiting(0, {ForWorker(2, WorkerWait::ROWS, 41, 41)})},
             absl::Seconds(1));
  EXPECT_THAT(watch.Behind({0, 1}), ElementsAre(1));
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
