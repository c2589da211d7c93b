// Jobs that an engine runs: handing a script to Slurm or starting it for hosts over ssh, what
// became of it, and its end. What is known of a submission is in RUN_DIR/submit/engine.json, so
// that any command on any host finds it.
#ifndef THERMOCLINE_DEPLOY_ENGINES_ENGINE_H_
#define THERMOCLINE_DEPLOY_ENGINES_ENGINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace thermocline {

struct HostNeeds;  // scripts.h

struct CommandOutput {
  int exit_code = 0;  // 128 and more: a signal ended it.
  std::string text;   // Standard output and error.
};
// Runs a program to its end; it is looked for in PATH and gets no input. Errors: kNotFound (there
// is no such program), kDeadlineExceeded (it had not ended after `timeout`, and is killed),
// kUnavailable.
absl::StatusOr<CommandOutput> RunCommand(const std::vector<std::string>& command,
                                         absl::Duration timeout = absl::InfiniteDuration());

struct EngineJob {
  std::string engine;  // "slurm", "ssh"
  std::string id;      // Slurm's number; of ssh the script's process id
  std::string host;    // where it was submitted: where that process is
  std::string job;     // its name
  uint32_t hosts = 0;
  std::string run_dir;
};
absl::Status WriteEngineJob(const EngineJob& job);
// Errors: kNotFound (no engine runs that directory), kDataLoss.
absl::StatusOr<EngineJob> ReadEngineJob(const std::string& run_dir);

// The command that goes on with the job, or begins it where it has not begun; the submission's
// flags are kept in its run directory.
std::string ResumeCommand(const EngineJob& job);

// Directories that this user has submitted jobs in, oldest first, without those that are gone. They
// are remembered in $XDG_STATE_HOME/thermocline/jobs, by default ~/.local/state/thermocline/jobs.
std::vector<std::string> KnownRunDirectories();
absl::Status RememberRunDirectory(const std::string& run_dir);
// The submission with Slurm's number `id`, or that of a script. Errors: kNotFound
absl::StatusOr<EngineJob> FindEngineJob(const std::string& id);

struct EngineState {
  enum class What { kWaiting, kRunning, kEnded };
  What what = What::kEnded;
  std::string text;  // In the engine's words: "PENDING (Resources)".
};
// How often an engine is asked by one who waits: all users of a cluster share Slurm's one server.
inline constexpr absl::Duration kEnginePeriod = absl::Seconds(3);
// A job runs as long as the lock of its run directory is held, whatever became of its script.
// Errors, where it is not: kNotFound (the engine's programs are not there), kUnavailable (it does
// not answer; says what it says).
absl::StatusOr<EngineState> AskEngine(const EngineJob& job);
// Reads the state from the output of `scontrol show job -o`.
EngineState ParseSlurmState(absl::string_view text);

// Gives the script to sbatch; `folder` is the submission's. Errors: kNotFound (no sbatch: names
// Debian's package), kFailedPrecondition (Slurm has too few hosts with what each needs, or refuses
// it: its words).
absl::StatusOr<std::string> SubmitToSlurm(const std::string& script, uint32_t hosts,
                                          const HostNeeds& needs, const std::string& partition);
// Starts the script in a session of its own, with its output in `log`. Returns its process id.
absl::StatusOr<std::string> StartScript(const std::string& script, const std::string& log);
// Whether ssh reaches each host, and finds there `program` and the file `probe`, which is in the
// run directory. Errors: kNotFound (no ssh: names Debian's package), kFailedPrecondition (names the
// hosts, and what each lacks; a login shell may take `timeout`).
absl::Status CheckSshHosts(const std::vector<std::string>& hosts, const std::string& program,
                           const std::string& probe, absl::Duration timeout = absl::Seconds(30));

// Takes a job that waits out of the engine's queue, or ends it hard.
absl::Status Cancel(const EngineJob& job);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_ENGINES_ENGINE_H_
