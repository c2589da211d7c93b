// Where the processes of a job run. Carries out; the job machine decides.
#ifndef THERMOCLINE_DEPLOY_PROCESSES_PROCESSES_H_
#define THERMOCLINE_DEPLOY_PROCESSES_PROCESSES_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "deploy/job/job_actions.h"
#include "deploy/job/job_events.h"

namespace thermocline {

// Implementations: LocalProcesses (child processes), NodeProcesses (through agents on hosts). Not
// thread-safe; lives on the main thread.
class Processes {
 public:
  virtual ~Processes() = default;

  // There are no results yet. `on_metrics` gets what rank 0 reports, during TakeEvents or
  // Supervisor::Poll.
  virtual void BeginGeneration(uint64_t generation,
                               std::function<void(absl::string_view data)> on_metrics) = 0;
  // Errors: those of files and of starting a program, as far as they are known now; else NotStarted
  // comes.
  virtual absl::Status Start(const action::StartProcess& start) = 0;
  // What happened since the call before, in the order in which the job machine is to learn of it. A
  // worker that ended well ends here once its metrics have been read.
  virtual std::vector<JobEvent> TakeEvents() = 0;
  // When TakeEvents is due even if nothing wakes the main thread.
  virtual absl::Duration UntilNextLook() const = 0;
  // Asks the processes of a role to stop, waits up to `grace`, then kills. No process of it is
  // left, and none is seen to end.
  virtual void Stop(ProcessRole role, absl::Duration grace) = 0;

  // By rank, of workers that ended well; they come through memory: a full disk takes none away.
  virtual const std::vector<nlohmann::ordered_json>& results() const = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PROCESSES_PROCESSES_H_
