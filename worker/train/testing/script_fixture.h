// For tests of what a worker does with its script: a job whose script is testing/fake_script.cc.
#ifndef THERMOCLINE_WORKER_TRAIN_TESTING_SCRIPT_FIXTURE_H_
#define THERMOCLINE_WORKER_TRAIN_TESTING_SCRIPT_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/session/retry_policy.h"
#include "worker/train/script_run.h"

namespace thermocline {

class ScriptTest : public testing::Test {
 protected:
  // Two tables of one dim; one lookup a sample of the first, lists of the second.
  static Job MakeJob(const std::string& actions = "hello") {
    absl::StatusOr<Job> job = ParseJob(R"(
        name: "script"
        data { format: CRITEO_TSV path: "x.tsv" num_dense: 2 num_categorical: 2 }
        default_table { dim: 4 }
        worker { command: ["worker/train/fake_script"] }
        evaluate { every_steps: 5 own_metric: "own" }
        train { batch_size: 3 learning_rate { base: 0.1 } }
        cluster { max_pending_size: "1MiB" })",
                                       "j.textproto", {});
    EXPECT_TRUE(job.ok()) << job.status();
    for (const auto& action : absl::StrSplit(actions, ' ')) {
      job->mutable_worker()->add_command(std::string(action));
    }
    return *job;
  }
  // Starts a script that does `actions`, which have blanks between them.
  void Start(const std::string& actions) {
    run_ = nullptr;  // One at a time.
    const Job job = MakeJob(actions);
    absl::StatusOr<std::unique_ptr<ScriptRun>> run =
        ScriptRun::Start(job, ResolveTables(job), Step(0));
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *std::move(run);
    ScriptHooks hooks;
    hooks.on_done = [this] { ++done_; };
    hooks.on_warning = [this](const std::string& text) { warnings_.push_back(text); };
    run_->set_hooks(hooks);
  }

  std::unique_ptr<ScriptRun> run_;
  int done_ = 0;
  std::vector<std::string> warnings_;
};

// What becomes of a script that does the actions.
struct ScriptError {
  const char* actions;
  absl::StatusCode code;
  bool is_of_script;  // Marked as the script's failure.
  const char* words;
};

inline void ExpectScriptError(const absl::Status& status, const ScriptError& expected) {
  EXPECT_EQ(status.code(), expected.code) << status;
  EXPECT_EQ(IsScriptFailure(status), expected.is_of_script) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(expected.words));
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_TESTING_SCRIPT_FIXTURE_H_
