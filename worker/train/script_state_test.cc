#include "worker/train/script_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tests/testing/virtual_scheduler.h"
#include "worker/session/retry_policy.h"
#include "worker/session/testing/fake_transport.h"
#include "worker/train/testing/script_fixture.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr uint32_t kServers = 2;

// Two servers whose rows are in a map.
class ScriptStateTest : public ScriptTest {
 protected:
  // A worker that has trained nothing yet, and its script.
  void Start(const std::string& actions) {
    StopSession();
    ScriptTest::Start(actions);
    PsSessionOptions options;
    options.num_servers = kServers;
    options.tables = {table_};
    session_ = std::make_unique<PsSession>(options, &transport_, &scheduler_);
    state_ = std::make_unique<ScriptState>(table_, kServers, run_.get(), session_.get());
  }
  void StopSession() {
    if (session_ == nullptr) return;
    session_->Fail(absl::CancelledError("the test is over"));
    while (!transport_.pulls.empty()) transport_.AnswerPull(absl::CancelledError(""));
    state_ = nullptr;
    session_ = nullptr;
  }
  void TearDown() override { StopSession(); }

  void AnswerPulls() {
    while (!transport_.pulls.empty()) {
      for (const PullSlice& slice : transport_.pulls.front().call.tables) {
        for (size_t i = 0; i < slice.keys.size(); ++i) {
          const auto row = rows_.find(slice.keys[i]);
          const std::vector<float> none(kDenseBlockFloats);
          const std::vector<float>& from = row == rows_.end() ? none : row->second;
          std::copy(from.begin(), from.end(), &slice.rows[i * kDenseBlockFloats]);
        }
      }
      transport_.AnswerPull(PullReady(1000));
    }
  }
  absl::Status Run(StepTasks* tasks) {
    while (!tasks->empty()) {
      AnswerPulls();
      if (tasks->wait().event != nullptr) tasks->wait().event->Wait();
      RETURN_IF_ERROR(tasks->RunNext());
    }
    return absl::OkStatus();
  }
  absl::Status Load() {
    StepTasks tasks;
    state_->Load(Step(10), /*with_state=*/true, &tasks);
    return Run(&tasks);
  }
  // What the script was sent, where it answers with that.
  std::string Loaded() {
    const absl::Status status = Load();
    if (!status.ok()) return absl::StrCat("not loaded: ", status.message());
    return std::string(run_->Await(TC_STEP).status().message());
  }
  // Lets the servers have what the step pushes. Returns how many rows that is.
  absl::StatusOr<size_t> Push() {
    StepContext context;
    context.writes_back = true;
    StepTasks tasks;
    state_->AddPush(&context, &tasks);
    RETURN_IF_ERROR(Run(&tasks));
    EXPECT_EQ(context.push.work.waves.size(), 1u);
    size_t pushed = 0;
    for (const std::vector<wire::PushSlice>& server : context.push.work.waves[0]) {
      for (const wire::PushSlice& slice : server) {
        EXPECT_EQ(slice.kind, wire::PushKind::kAssign);
        EXPECT_EQ(slice.values.size(), slice.keys.size() * kDenseBlockFloats);
        for (size_t i = 0; i < slice.keys.size(); ++i) {
          const float* const row = &slice.values[i * kDenseBlockFloats];
          rows_[slice.keys[i]].assign(row, row + kDenseBlockFloats);
        }
        pushed += slice.keys.size();
      }
    }
    return pushed;
  }

  const TableLayout table_ = *ResolveTables(MakeJob()).script_state;
  VirtualScheduler scheduler_;
  FakeTransport transport_;
  std::map<Key, std::vector<float>> rows_;
  std::unique_ptr<PsSession> session_;
  std::unique_ptr<ScriptState> state_;
};

TEST_F(ScriptStateTest, ComesBackAsItWas) {
  // The first row has 20 bytes of its own.
  for (const auto& [bytes, rows] :
       std::vector<std::pair<int, size_t>>{{0, 1}, {1, 1}, {748, 1}, {749, 2}, {3000, 4}}) {
    SCOPED_TRACE(bytes);
    rows_.clear();
    Start(absl::StrCat("hello next state,bytes=", bytes));
    const absl::StatusOr<size_t> pushed = Push();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
    EXPECT_EQ(*pushed, rows);
    Start("hello next echo");
    EXPECT_EQ(Loaded(), "the script failed:\n" + std::string(bytes, 'x'));
  }
}

TEST_F(ScriptStateTest, WithoutOneTheScriptGetsAnEmptyOne) {
  Start("hello next echo");
  EXPECT_EQ(Loaded(), "the script failed:\n");
}

// A digest knows no rows that are gone.
TEST_F(ScriptStateTest, AStateThatShrinksKeepsItsRows) {
  Start("hello next state,bytes=3000 next state,bytes=10");
  EXPECT_EQ(*Push(), 4u);
  EXPECT_EQ(*Push(), 4u);
  EXPECT_EQ(rows_.at(3), std::vector<float>(kDenseBlockFloats));
  Start("hello next next state,bytes=5");
  ASSERT_TRUE(Load().ok());
  EXPECT_EQ(*Push(), 1u);
  Start("hello next echo");
  EXPECT_EQ(Loaded(), "the script failed:\nxxxxx");
}

TEST_F(ScriptStateTest, AStepThatDoesNotWriteBackAsksForNone) {
  Start("hello echo");
  StepContext context;
  StepTasks tasks;
  state_->AddPush(&context, &tasks);
  state_->FinishPush(&context, &tasks);
  EXPECT_TRUE(tasks.empty());
}

TEST_F(ScriptStateTest, WhatIsNoState) {
  const ScriptError kErrors[] = {
      {"hello next state,bytes=524289 stay", Code::kResourceExhausted, true,
       "half of cluster.max_pending_size"},
      {"hello next state,bytes=9,unsealed=1 stay", Code::kInvalidArgument, true, "a state"},
      {"hello next evaluate stay", Code::kFailedPrecondition, true, "before training is over"},
      {"hello next done exit=0", Code::kFailedPrecondition, true, "before training was over"},
      {"hello next failed,text=TypeError", Code::kAborted, true, "the script failed:\nTypeError"},
      {"hello next exit=1", Code::kAborted, true, "exited with code 1"},
      {"hello next signal=9", Code::kUnavailable, false, "was killed by signal 9"},
  };
  for (const ScriptError& expected : kErrors) {
    SCOPED_TRACE(expected.actions);
    Start(expected.actions);
    ExpectScriptError(Push().status(), expected);
  }
}

TEST_F(ScriptStateTest, RowsThatHoldNoStateAreALossOfData) {
  Start("hello next state,bytes=3000");
  ASSERT_TRUE(Push().ok());
  const std::map<Key, std::vector<float>> whole = rows_;
  for (const auto& [key, value] :
       std::vector<std::pair<Key, float>>{{0, 0.5f}, {0, 7}, {2, -1}, {2, 8}}) {
    SCOPED_TRACE(absl::StrCat(key, " ", value));
    rows_ = whole;
    rows_[key][1] = value;
    Start("hello stay");
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_FALSE(IsScriptFailure(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("the state of the script"));
  }
}

}  // namespace
}  // namespace thermocline
