// The command line of jobs over several hosts: what the flags of its commands say, and the
// commands.
#ifndef THERMOCLINE_DEPLOY_CLI_HOST_COMMANDS_H_
#define THERMOCLINE_DEPLOY_CLI_HOST_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "deploy/cli/command_line.h"

namespace thermocline {

// An empty text means that its flag was not given.

struct NodeFlags {
  std::string controller, run_dir, name, dir, address;
  std::vector<std::string> roles;
  std::string bin_dir;
  int64_t controller_timeout_s = 0;  // 0: none
  std::string tls_certificate, tls_private_key, tls_ca;
  bool insecure = false;
};

struct LogsFlags {
  std::string run_dir;
  std::string process;  // "server-0"; "": all
  int64_t lines = 100;
  bool follows = false;
  std::string tls_certificate, tls_private_key, tls_ca;
};

struct CertificatesFlags {
  std::string job, out;
  std::vector<std::string> hosts;
  int64_t days = 365;
};

struct SubmitFlags : JobFlags {
  std::string engine;  // "slurm", "ssh"
  int64_t nodes = 0;   // 0: as many as --hosts
  std::vector<std::string> hosts;
  std::string controller;  // one of --hosts; "": this machine
  bool resume = false, write_only = false, detach = false;
  std::string partition, account, time;
  int64_t notice_s = 0;  // 0: the default
  std::vector<std::string> sbatch;
  std::string memory;
  std::string figures;
  bool scan = false;
  int64_t cores = 0;  // 0: as the job needs
  int64_t gpus = -1;  // -1: as the job needs
  int64_t port = 0;   // 0: the engine's default
  std::string node_dir, program;
};

struct JobsFlags {
  bool json = false;
};

struct StopFlags {
  std::string target;  // a run directory, or an engine's number
  int64_t timeout_s = 300;
};

// The commands; each returns the exit code.
int RunNodeCommand(const NodeFlags& flags);
int RunLogs(const LogsFlags& flags);
int RunCertificates(const CertificatesFlags& flags);
int RunSubmit(const SubmitFlags& flags);
int RunJobs(const JobsFlags& flags);
int RunStop(const StopFlags& flags);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_HOST_COMMANDS_H_
