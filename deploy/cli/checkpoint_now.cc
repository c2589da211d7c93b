// thermocline checkpoint now.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/job/job_loader.h"
#include "deploy/cli/checkpoint_command.h"
#include "deploy/cli/command.h"
#include "deploy/cli/train_job.h"
#include "deploy/runner/checkpoint_requests.h"
#include "deploy/runner/run_directory.h"
#include "deploy/runner/signal_watch.h"

namespace thermocline {
namespace {

constexpr int64_t kDefaultTimeoutS = 600;

int Now(const Flags& flags) {
  SignalWatch signals;
  const auto timeout_s = flags.GetInt("timeout", kDefaultTimeoutS, 1, 24 * 3600);
  if (!timeout_s.ok()) return Complain(timeout_s.status().message(), kExitUsage);
  const std::string run_dir = flags.Get("run-dir");
  if (run_dir.empty() || !flags.positional().empty()) {
    return Complain("checkpoint now takes --run-dir DIR; see thermocline help checkpoint",
                    kExitUsage);
  }
  auto job = LoadJob(run_dir + "/job.textproto", {});
  if (!job.ok()) return Complain(job.status().message(), kExitUsage);
  if (!job->has_checkpoint()) {
    return Complain(absl::StrCat("job '", job->name(), "' has no checkpoint policy"), kExitUsage);
  }
  const auto directory = RunDirectory::Open(run_dir);
  if (!directory.ok()) return Complain(directory.status().message(), kExitUsage);
  FillCheckpointDirectory(*directory, &*job);
  const auto name = AskForCheckpoint(run_dir, absl::Seconds(*timeout_s), [&signals] {
    signals.Drain();
    return signals.stop_requests() > 0;
  });
  if (!name.ok()) return Complain(name.status().message(), kExitFailed);
  std::printf("%s/%s\n", job->checkpoint().directory().c_str(), name->c_str());
  return kExitDone;
}

}  // namespace

CheckpointAction CheckpointNowAction() {
  CheckpointAction action;
  action.name = "now";
  action.summary = "makes a running job write a checkpoint; prints its path once it is whole";
  action.flags = {
      {"run-dir", "DIR", "the run directory of the job"},
      {"timeout", "SECONDS", "how long to wait; default 600"},
  };
  action.run = Now;
  return action;
}

}  // namespace thermocline
