// The scripts that run a job on several hosts: one batch script for Slurm, one for a list of hosts
// over ssh. Each runs the controller (`thermocline train --nodes`) and one agent (`thermocline
// node`) a host. They are text that a user can read, keep, change and run again; `thermocline
// submit` writes them.
#ifndef THERMOCLINE_DEPLOY_ENGINES_SCRIPTS_H_
#define THERMOCLINE_DEPLOY_ENGINES_SCRIPTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "deploy/plan/job_plan.h"
#include "proto/job.pb.h"

namespace thermocline {

// What a job asks of each of its hosts.
struct HostNeeds {
  uint64_t memory_bytes = 0;  // 0: all that the host has.
  uint32_t cores = 0;         // 0: all.
  uint32_t gpus = 0;
};

// Returns the needs of the host with the most processes, if the job's processes are spread evenly
// over `hosts` hosts. Memory: a quarter more than planned, and some for the agent and the
// controller; all of the host's, if the rows of some tables are not known. Cores: as many as the
// threads that the job file names; all of the host's, if it leaves the threads of workers, or of
// the worker's script, to the machine. GPUs: one for each worker, if the device is CUDA. `job` is
// resolved.
HostNeeds NeedsOfHost(const Job& job, const JobPlan& plan, uint32_t hosts);

// Exit code of `train --restarted`: another controller holds the run, so that how it ends is not
// known yet.
inline constexpr int kExitInUse = 75;

struct Submission {
  std::string job_name;
  std::string program;                   // thermocline; where hosts have it.
  std::string folder;                    // Relative paths of the job and of flags begin here.
  std::vector<std::string> train_flags;  // After `train`: JOB and the flags that change it.
  std::vector<std::string> node_flags;   // Further flags of the agents.
  std::string run_dir;                   // Absolute; all hosts see it.
  std::string node_dir;                  // On each host's own disk; "": one of this run in /tmp.
  uint32_t hosts = 1;
  uint32_t port = 0;      // The controller's; 0: by the number of Slurm's job, or a free one.
  bool resumable = true;  // Whether the job writes checkpoints.
  bool resumes = false;   // Whether it only goes on with a run, and begins none.
  HostNeeds needs;
};

struct SlurmRequest {
  std::string partition, account, time;  // "": the cluster's defaults.
  uint32_t notice_s = 300;               // How long before the walltime the job ends itself.
  std::vector<std::string> more;         // Further flags of sbatch.
};

struct SshRequest {
  std::vector<std::string> hosts;  // [Submission.hosts] HOST or USER@HOST
  std::string controller;          // One of them; "": the machine where the script runs.
};

// Where the files of a submission are: the script, its log, and one log for each agent.
std::string SubmitFolder(const std::string& run_dir);  // RUN_DIR/submit

// Errors: kInvalidArgument (a value that can't stand in an #SBATCH line).
absl::Status CheckSlurm(const Submission& submission, const SlurmRequest& request);
std::string SlurmScript(const Submission& submission, const SlurmRequest& request);

// Errors: kInvalidArgument (no, doubled or strange hosts; the controller is none of them).
absl::Status CheckSsh(const Submission& submission, const SshRequest& request);
std::string SshScript(const Submission& submission, const SshRequest& request);

// A word of a shell command that stands for `text`, whatever is in it.
std::string ShellWord(const std::string& text);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_ENGINES_SCRIPTS_H_
