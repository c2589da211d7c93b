#include "deploy/http/monitor_state.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// One that has started start_s after its host.
ServerReport Server(const std::string& address, double start_s, double uptime_s, uint64_t pushes) {
  ServerStats stats;
  stats.set_uptime_s(uptime_s);
  stats.set_clock_ns(static_cast<int64_t>((start_s + uptime_s) * 1e9));
  stats.set_pushes_accepted(pushes);
  return {address, stats, absl::Milliseconds(2)};
}

WorkerReport Worker(const std::string& address, double start_s, uint32_t rank, uint64_t samples) {
  WorkerStats stats;
  stats.set_worker_rank(rank);
  stats.set_uptime_s(1);
  stats.set_clock_ns(static_cast<int64_t>((start_s + 1) * 1e9));
  stats.set_samples(samples);
  return {address, stats, absl::Milliseconds(2)};
}

class MonitorStateTest : public testing::Test {
 protected:
  const MonitoredProcess& Process(int at) const { return state_.snapshot().processes(at); }
  uint64_t Pushes() const { return FoldedServer(Process(0)).pushes_accepted(); }

  MonitorState state_;
};

TEST_F(MonitorStateTest, AProcessOfAServerAddsToTheOnesBeforeIt) {
  state_.OnStart({ProcessRole::kServer, 0, 1, 1}, "h1");
  state_.OnStats({Server("h1:1", 10, 5, 100)}, {});
  ServerReport configured = Server("h1:1", 10, 6, 120);
  configured.stats->set_generation(1);
  state_.OnStats({configured}, {});
  EXPECT_EQ(Pushes(), 120u);
  // It died, and its next process has the same port.
  state_.OnEnd({ProcessRole::kServer, 0, 1, 1}, /*is_done=*/false);
  EXPECT_EQ(Process(0).error(), "it has ended");
  EXPECT_FALSE(Process(0).has_ended());
  state_.OnStart({ProcessRole::kServer, 0, 1, 2}, "h1");
  state_.OnStats({{"h1:1", absl::UnavailableError("gone"), absl::ZeroDuration()}}, {});
  EXPECT_EQ(Pushes(), 120u);
  EXPECT_EQ(Process(0).error(), "gone");
  state_.OnStats({Server("h1:1", 17, 7, 10)}, {});
  EXPECT_EQ(Pushes(), 130u);
  EXPECT_EQ(Process(0).error(), "");
  EXPECT_EQ(Process(0).starts(), 2u);
  // One that had died at once, so that the next is as old as it was when it was seen last.
  state_.OnStats({Server("h1:1", 18, 7, 3)}, {});
  EXPECT_EQ(Pushes(), 133u);
  // It has done what it had to do.
  state_.OnEnd({ProcessRole::kServer, 0, 1, 4}, /*is_done=*/true);
  EXPECT_TRUE(Process(0).has_ended());
  EXPECT_EQ(Pushes(), 133u);
}

TEST_F(MonitorStateTest, WorkersAreKnownByTheirRanks) {
  state_.OnStats({}, {Worker("a:1", 5, 1, 5), Worker("a:0", 5, 0, 7)});
  ASSERT_EQ(state_.snapshot().processes_size(), 2);
  EXPECT_EQ(Process(0).index(), 1u);
  EXPECT_EQ(Process(0).worker().samples(), 5u);
  // One that is asked and doesn't answer, and one that isn't connected any more.
  state_.OnStats({}, {{"a:1", absl::DeadlineExceededError("slow"), absl::ZeroDuration()}});
  EXPECT_EQ(Process(0).error(), "slow");
  EXPECT_EQ(Process(1).error(), "it is not connected");
  EXPECT_EQ(Process(1).worker().samples(), 7u);
}

// A worker says how many samples its job had made when it began, and those of its own.
TEST_F(MonitorStateTest, SamplesThatOthersHaveMadeDoNotCount) {
  const auto samples = [this] { return FoldedWorker(Process(0)).samples(); };
  state_.OnStats({}, {Worker("a:0", 5, 0, 1000)});
  EXPECT_EQ(samples(), 0u);
  state_.OnStats({}, {Worker("a:0", 5, 0, 1500)});
  EXPECT_EQ(samples(), 500u);
  // A rollback to sample 1200.
  state_.OnStats({}, {Worker("a:1", 9, 0, 1200)});
  EXPECT_EQ(samples(), 500u);
  state_.OnStats({}, {Worker("a:1", 9, 0, 1300)});
  EXPECT_EQ(samples(), 600u);
}

TEST_F(MonitorStateTest, LinesOfMetricsAreFiguresAndCounts) {
  state_.OnEvent({{"event", "started"}, {"time", 1700000000}});
  state_.OnEvent({{"event", "progress"},
                  {"step", 20},
                  {"samples", 640},
                  {"samples_per_s", 12.5},
                  {"loss", nullptr},
                  {"learning_rate", 0.02}});
  state_.OnEvent({{"event", "eval"}, {"auc", 0.75}, {"gauc", nullptr}, {"seconds", 2}});
  state_.OnEvent({{"event", "checkpoint"}, {"bytes", 100}, {"write_s", 1.5}, {"pause_s", 0.5}});
  state_.OnEvent({{"event", "checkpoint"}, {"bytes", 20}, {"write_s", 1}, {"pause_s", 0}});
  state_.OnEvent({{"event", "checkpoint_called_off"}});
  state_.OnEvent({{"event", "server_restart"}});
  state_.OnEvent({{"event", "warning"}});
  const JobFigures& job = state_.snapshot().job();
  EXPECT_EQ(job.step(), 20);
  EXPECT_FALSE(job.has_loss());
  EXPECT_EQ(job.learning_rate(), 0.02);
  EXPECT_EQ(job.eval_auc(), 0.75);
  EXPECT_FALSE(job.has_eval_gauc());
  EXPECT_EQ(job.evaluations(), 1u);
  EXPECT_EQ(job.evaluating_s(), 2);
  EXPECT_EQ(job.checkpoints(), 2u);
  EXPECT_EQ(job.checkpoint_bytes_written(), 120u);
  EXPECT_EQ(job.checkpoint_write_s(), 2.5);
  EXPECT_EQ(job.checkpoints_called_off(), 1u);
  EXPECT_EQ(job.server_restarts(), 1u);
  EXPECT_EQ(job.warnings(), 1u);
  EXPECT_EQ(job.start_time(), 1700000000);
  state_.OnEvent({{"event", "progress"}, {"tasks", {{{"label", "buy"}, {"loss", 0.5}}}}});
  state_.OnEvent({{"event", "eval"}, {"tasks", {{{"label", "buy"}, {"auc", 0.625}}}}});
  ASSERT_EQ(job.tasks_size(), 1);
  EXPECT_EQ(job.tasks(0).task(), "buy");
  EXPECT_EQ(job.tasks(0).loss(), 0.5);
  EXPECT_EQ(job.tasks(0).eval_auc(), 0.625);
  EXPECT_FALSE(job.tasks(0).has_auc());
  state_.OnEvent({{"event", "rollback"}, {"step", 10}});
  EXPECT_EQ(job.step(), 10);
  EXPECT_EQ(job.rollbacks(), 1u);
}

TEST_F(MonitorStateTest, CountsHostsThatAreSlow) {
  const auto slow = [](const char* host, const char* role, bool is_slow) {
    return Json{{"event", "slow_host"}, {"host", host}, {"role", role}, {"is_slow", is_slow}};
  };
  state_.OnEvent(slow("h1", "server", true));
  state_.OnEvent(slow("h1", "worker", true));
  state_.OnEvent(slow("h2", "worker", true));
  EXPECT_EQ(state_.snapshot().job().slow_hosts(), 2u);
  state_.OnEvent(slow("h1", "server", false));
  EXPECT_EQ(state_.snapshot().job().slow_hosts(), 2u);
  state_.OnEvent(slow("h1", "worker", false));
  EXPECT_EQ(state_.snapshot().job().slow_hosts(), 1u);
  state_.OnEvent({{"event", "rollback"}, {"step", 10}});
  EXPECT_EQ(state_.snapshot().job().slow_hosts(), 0u);
}

}  // namespace
}  // namespace thermocline
