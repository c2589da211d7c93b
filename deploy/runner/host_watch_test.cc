#include "deploy/runner/host_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Four hosts, each with a server and a worker. A window is ten seconds of 100 steps.
class HostWatchTest : public testing::Test {
 protected:
  static constexpr size_t kHostsOfTest = 4;

  HostWatchTest() {
    for (uint32_t i = 0; i < kHostsOfTest; ++i) {
      for (const ProcessRole role : {ProcessRole::kServer, ProcessRole::kWorker}) {
        watch_.OnStart({role, i, 1, 1}, absl::StrCat("h", i));
      }
    }
  }

  // What each process of the window takes of its own for a step.
  std::vector<std::string> Window(const std::vector<double>& servers_s,
                                  const std::vector<double>& workers_s, int64_t steps = 100) {
    for (size_t i = 0; i < kHostsOfTest; ++i) {
      servers_[i].own_s += servers_s[i] * static_cast<double>(steps);
      workers_[i].own_s += workers_s[i] * static_cast<double>(steps);
      servers_[i].steps += steps;
      workers_[i].steps += steps;
    }
    now_ += absl::Seconds(10);
    return Look();
  }
  std::vector<std::string> Look() {
    std::vector<ServerReport> servers;
    std::vector<WorkerReport> workers;
    for (size_t i = 0; i < kHostsOfTest; ++i) {
      ServerStats server;
      server.set_complete_through(servers_[i].steps);
      StageStats* stage = server.add_stages();
      stage->set_stage("apply");
      stage->set_total_s(servers_[i].own_s);
      servers.push_back({absl::StrCat("server ", i), server, absl::Seconds(answers_s_[i])});
      WorkerStats worker;
      worker.set_worker_rank(static_cast<uint32_t>(i));
      const auto add = [&](const char* name, double total_s) {
        stage = worker.add_stages();
        stage->set_stage(name);
        stage->set_count(static_cast<uint64_t>(workers_[i].steps));
        stage->set_total_s(total_s);
      };
      // What is not its own: the slow host's are the ones that do not wait.
      add("read (ahead)", 1e6 * static_cast<double>(i));
      add("wait for rows", 1e6 - workers_[i].own_s);
      add("push embeddings", 1e6 - workers_[i].own_s);
      add("forward", workers_[i].own_s / 2);
      add("wait for data", workers_[i].own_s / 2);
      workers.push_back({absl::StrCat("worker ", i), worker, absl::Seconds(answers_s_[i])});
    }
    std::vector<std::string> texts;
    for (const SlowHost& change : watch_.Look(now_, servers, workers).changes) {
      texts.push_back(absl::StrCat(change.host,
                                   change.role == ProcessRole::kServer ? " servers" : " workers",
                                   change.is_slow ? "" : " over"));
    }
    return texts;
  }

  struct Totals {
    double own_s = 0;
    int64_t steps = 0;
  };
  std::vector<Totals> servers_ = std::vector<Totals>(kHostsOfTest);
  std::vector<Totals> workers_ = std::vector<Totals>(kHostsOfTest);
  std::vector<double> answers_s_ = std::vector<double>(kHostsOfTest, 0.002);
  absl::Duration now_;
  HostWatch watch_;
  const std::vector<double> even_ = {0.03, 0.03, 0.035, 0.03};
  const std::vector<double> third_ = {0.03, 0.03, 0.08, 0.03};
};

TEST_F(HostWatchTest, ASlowHostIsNamedAfterThreeWindowsAndOnce) {
  EXPECT_THAT(Look(), IsEmpty());
  EXPECT_THAT(Window(even_, third_), IsEmpty());
  EXPECT_THAT(Window(even_, third_), IsEmpty());
  EXPECT_THAT(Window(even_, third_), ElementsAre("h2 workers"));
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Window(even_, third_), IsEmpty());
  ASSERT_EQ(watch_.slow().size(), 1u);
  EXPECT_EQ(
      Describe(watch_.slow()[0]),
      "host h2 is slow: its workers take 0.08 s of their own for a step, those of other hosts "
      "0.03 s; a step takes 0.1 s");
}

TEST_F(HostWatchTest, ServersAreComparedWithServers) {
  Look();
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Window(third_, even_), IsEmpty());
  EXPECT_THAT(Window(third_, even_), ElementsAre("h2 servers"));
}

TEST_F(HostWatchTest, AHiccupIsNotSlow) {
  Look();
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(Window(even_, third_), IsEmpty());
    EXPECT_THAT(Window(even_, third_), IsEmpty());
    EXPECT_THAT(Window(even_, even_), IsEmpty());
  }
}

TEST_F(HostWatchTest, ItIsOverAfterThreeWindows) {
  Look();
  for (int i = 0; i < 3; ++i) Window(even_, third_);
  EXPECT_THAT(Window(even_, even_), IsEmpty());
  EXPECT_THAT(Window(even_, even_), IsEmpty());
  EXPECT_THAT(Window(even_, even_), ElementsAre("h2 workers over"));
  EXPECT_THAT(watch_.slow(), IsEmpty());
}

TEST_F(HostWatchTest, WhatHardlyDelaysAStepIsNotSlow) {
  Look();
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(Window({0.001, 0.001, 0.01, 0.001}, even_), IsEmpty());
  }
}

TEST_F(HostWatchTest, LooksWithinAWindowAndProcessesThatStandStillShowNothing) {
  Look();
  for (int i = 0; i < 10; ++i) {
    now_ += absl::Seconds(9);
    EXPECT_THAT(Look(), IsEmpty());
    now_ += absl::Seconds(1);
    EXPECT_THAT(Look(), IsEmpty());
  }
  EXPECT_THAT(watch_.slow(), IsEmpty());
}

TEST_F(HostWatchTest, ProcessesThatWereStartedAgainBeginAnew) {
  Look();
  Window(even_, third_);
  Window(even_, third_);
  workers_[2] = {};  // Less than before.
  EXPECT_THAT(Window(even_, third_), IsEmpty());
  EXPECT_THAT(Window(even_, third_), ElementsAre("h2 workers"));
}

// Its processes stand still where they wait, too.
TEST_F(HostWatchTest, AHostThatAnswersLateIsSlow) {
  Look();
  answers_s_ = {0.002, 0.002, 0.09, 0.002};
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Window(even_, even_), IsEmpty());
  answers_s_[2] = 0.3;
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Window(even_, even_), IsEmpty());
  EXPECT_THAT(Window(even_, even_), ElementsAre("h2 servers", "h2 workers"));
  EXPECT_EQ(Describe(watch_.slow()[0]),
            "host h2 is slow: its servers take 0.3 s to answer the controller, those of other "
            "hosts 0.002 s; a step takes 0.1 s");
  answers_s_[2] = 0.002;
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Window(even_, even_), IsEmpty());
  EXPECT_THAT(Window(even_, even_), ElementsAre("h2 servers over", "h2 workers over"));
}

TEST_F(HostWatchTest, LateAnswersOfAJobOfLongStepsDelayNothing) {
  Look();
  answers_s_[2] = 0.3;
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Window(even_, even_, /*steps=*/5), IsEmpty());
}

TEST_F(HostWatchTest, AProcessThatDoesNotAnswerIsNamedOnce) {
  const absl::Status refused = absl::UnavailableError("GetStats at 10.0.0.2:7: no route");
  watch_.OnStart({ProcessRole::kServer, 0, 1, 1}, "h2");
  const auto look = [this](const absl::Status& answer) {
    now_ += absl::Seconds(1);
    const absl::StatusOr<ServerStats> stats =
        answer.ok() ? absl::StatusOr<ServerStats>(ServerStats()) : answer;
    return watch_.Look(now_, {{"10.0.0.2:7", stats}}, {}).silent;
  };
  for (int i = 0; i < 4; ++i) EXPECT_THAT(look(refused), IsEmpty());
  EXPECT_THAT(look(absl::OkStatus()), IsEmpty());
  for (int i = 0; i < 4; ++i) EXPECT_THAT(look(refused), IsEmpty());
  EXPECT_THAT(look(refused), ElementsAre("the controller gets no answer from server 0 on host h2: "
                                         "GetStats at 10.0.0.2:7: no route"));
  EXPECT_THAT(look(refused), IsEmpty());
}

TEST_F(HostWatchTest, AProcessThatHasEndedNeedNotAnswer) {
  const absl::Status refused = absl::UnavailableError("GetStats");
  const auto look = [this, &refused](bool answers) {
    now_ += absl::Seconds(1);
    const absl::StatusOr<ServerStats> stats =
        answers ? absl::StatusOr<ServerStats>(ServerStats()) : refused;
    return watch_.Look(now_, {{"127.0.0.1:7", stats}, {"127.0.0.1:8", stats}}, {}).silent;
  };
  for (const uint32_t index : {0, 1}) watch_.OnStart({ProcessRole::kServer, index, 1, 1}, "");
  EXPECT_THAT(look(true), IsEmpty());
  watch_.OnEnd({ProcessRole::kServer, 0, 1, 1});
  for (int i = 0; i < 4; ++i) EXPECT_THAT(look(false), IsEmpty());
  EXPECT_THAT(look(false), ElementsAre("the controller gets no answer from server 1: GetStats"));
}

// On a busy machine it misses some looks by their deadline, and takes a while from the end of its
// server to its own.
TEST_F(HostWatchTest, AProcessThatIsAboutToEndNeedNotAnswer) {
  WorkerStats stats;
  stats.set_worker_rank(1);
  const auto look = [this](const absl::StatusOr<WorkerStats>& answer) {
    now_ += absl::Seconds(1);
    return watch_.Look(now_, {}, {{"127.0.0.1:7", answer}}).silent;
  };
  watch_.OnStart({ProcessRole::kWorker, 1, 1, 1}, "");
  EXPECT_THAT(look(stats), IsEmpty());
  for (int i = 0; i < 4; ++i) EXPECT_THAT(look(absl::DeadlineExceededError("late")), IsEmpty());
  const absl::Status refused = absl::UnavailableError("last error: Connection refused");
  for (int i = 0; i < 9; ++i) EXPECT_THAT(look(refused), IsEmpty());
  EXPECT_THAT(look(absl::DeadlineExceededError("late")),
              ElementsAre("the controller gets no answer from worker 1: late"));
}

TEST_F(HostWatchTest, AWorkerIsKnownByItsAnswers) {
  WorkerStats stats;
  stats.set_worker_rank(3);
  watch_.OnStart({ProcessRole::kWorker, 3, 1, 1}, "h2");
  const absl::Status silent = absl::DeadlineExceededError("GetStats");
  std::vector<std::string> told;
  for (int i = 0; i < 6; ++i) {
    now_ += absl::Seconds(1);
    const bool answers = i == 0;
    const auto findings =
        watch_.Look(now_, {},
                    {{"10.0.0.2:8", answers ? absl::StatusOr<WorkerStats>(stats) : silent},
                     {"10.0.0.2:9", silent}});
    told.insert(told.end(), findings.silent.begin(), findings.silent.end());
  }
  EXPECT_THAT(told,
              ElementsAre("the controller gets no answer from a worker: GetStats",
                          "the controller gets no answer from worker 3 on host h2: GetStats"));
}

}  // namespace
}  // namespace thermocline
