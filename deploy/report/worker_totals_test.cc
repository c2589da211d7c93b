#include "deploy/report/worker_totals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

WorkerReport Report(uint32_t rank, double uptime_s, uint64_t hits, uint64_t loaded, uint64_t sent,
                    const std::vector<double>& waits) {
  WorkerStats stats;
  stats.set_worker_rank(rank);
  stats.set_step(40 + rank);
  stats.set_uptime_s(uptime_s);
  stats.set_bytes_pulled(1 << 20);
  stats.set_bytes_pushed(2 << 20);
  stats.set_bytes_to_device(100 * (rank + 1) + sent);
  stats.set_bytes_from_device(10);
  stats.mutable_cache()->set_hits(hits);
  stats.mutable_cache()->set_loaded(loaded);
  stats.mutable_cache()->set_bypassed(10);
  for (const uint64_t bytes : {sent, uint64_t{1} << 20}) {
    ExchangeStats::PhaseStats& phase = *stats.mutable_exchange()->add_phases();
    phase.set_name(bytes == sent ? "rows" : "gradients");
    phase.set_bytes_sent(bytes);
    phase.set_wait_s(bytes == sent ? 1.5 : 1);
  }
  for (const double wait : waits) stats.mutable_exchange()->add_wait_for_rank_s(wait);
  return {"w:1", stats};
}

TEST(WorkerTotals, SumsTheWorkersThatAnswered) {
  const WorkerTotals totals = SumOf({Report(0, 10, 30, 10, 3 << 20, {0, 1, 4}),
                                     Report(1, 11, 50, 0, 1 << 20, {0.5, 0, 5}),
                                     {"w:2", absl::UnavailableError("gone")}});
  EXPECT_EQ(totals.workers, 2u);
  EXPECT_EQ(totals.step, 41);
  EXPECT_EQ(totals.bytes_pulled, 2u << 20);
  EXPECT_EQ(totals.bytes_pushed, 4u << 20);
  EXPECT_EQ(totals.bytes_exchanged, 6u << 20);
  EXPECT_THAT(totals.bytes_to_device, ElementsAre((3 << 20) + 100, (1 << 20) + 200));
  EXPECT_THAT(totals.bytes_from_device, ElementsAre(10, 10));
  EXPECT_THAT(totals.wait_for_rank_s, ElementsAre(0.5, 1, 9));
  EXPECT_THAT(totals.wait_in_phase_s, ElementsAre(Pair("gradients", 1), Pair("rows", 4.5)));
  EXPECT_DOUBLE_EQ(*totals.hit_rate(), 80.0 / 110);
  EXPECT_EQ(SlowestOf(totals)->rank, 2u);
  EXPECT_DOUBLE_EQ(SlowestOf(totals)->share, 9.0 / 11);
  EXPECT_EQ(Describe(totals),
            "cache hits 72.7%, 6.0 MiB exchanged, 2.0 MiB from servers, 4.0 MiB to them; the "
            "others waited 82% of the time for worker 2, the slowest");
}

TEST(WorkerTotals, OfATimeTheyAreTheDifference) {
  const WorkerTotals before =
      SumOf({Report(0, 10, 30, 10, 1 << 20, {0, 2}), Report(1, 10, 0, 0, 0, {0, 0})});
  const WorkerTotals after =
      SumOf({Report(0, 14, 40, 10, 3 << 20, {0, 2}), Report(1, 14, 30, 0, 0, {2, 0})});
  const WorkerTotals since = after.Since(before);
  EXPECT_EQ(since.step, 0);
  EXPECT_DOUBLE_EQ(since.seconds, 4);
  EXPECT_EQ(since.bytes_exchanged, 2u << 20);
  EXPECT_THAT(since.bytes_to_device, ElementsAre(2 << 20, 0));
  EXPECT_DOUBLE_EQ(*since.hit_rate(), 1);
  EXPECT_EQ(SlowestOf(since)->rank, 0u);
  EXPECT_DOUBLE_EQ(SlowestOf(since)->share, 0.5);
}

TEST(WorkerTotals, WorkersThatExchangeNothingHaveNoSlowest) {
  WorkerStats stats;
  stats.set_uptime_s(3);
  const WorkerTotals totals = SumOf({{"w:0", stats}, {"w:1", stats}});
  EXPECT_FALSE(SlowestOf(totals).has_value());
  EXPECT_FALSE(totals.hit_rate().has_value());
  EXPECT_EQ(Describe(totals), "0 B from servers, 0 B to them");
}

TEST(WorkerTotals, TheTableNamesWhatEachWorkerWaitsFor) {
  WorkerReport waiting = Report(0, 10, 30, 10, 3 << 20, {0, 1});
  WorkerWait& wait = *waiting.stats->add_waits();
  wait.set_worker(1);
  wait.set_kind(WorkerWait::GRADIENTS);
  wait.set_step(41);
  wait.set_seconds(61);
  wait.set_last_error("broken pipe");
  *waiting.stats->add_waits() = wait;
  waiting.stats->mutable_waits(1)->set_seconds(0.2);  // The normal course of a step.
  const std::string text = RenderWorkerStats({waiting, Report(1, 10, 0, 0, 0, {0, 0})});
  EXPECT_THAT(text, ::testing::HasSubstr("exchange of worker"));
  EXPECT_THAT(text, ::testing::HasSubstr("2.5 s      rows"));
  EXPECT_THAT(text, ::testing::HasSubstr("all workers: cache hits 50.0%, 5.0 MiB exchanged"));
  EXPECT_THAT(text, ::testing::EndsWith("worker 0 has waited 61s for the gradients of step 41 of "
                                        "worker 1 (broken pipe)\n"));
}

}  // namespace
}  // namespace thermocline
