// thermocline node: a host's share of a job over several hosts.
#include <algorithm>
#include <memory>

#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/nodes/node.h"

namespace thermocline {
namespace {

struct NodeFlags {
  std::string controller, run_dir, name, dir, address;
  std::vector<std::string> roles;
  std::string bin_dir;
  int64_t controller_timeout_s = 0;  // 0: none
  TlsFiles tls;
  bool insecure = false;
};

int RunNodeCommand(const NodeFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  NodeOptions options;
  options.controller = flags.controller;
  options.run_dir = flags.run_dir;
  options.name = flags.name;
  options.address = flags.address;
  options.dir = flags.dir;
  const auto takes = [&flags](const char* role) {
    return flags.roles.empty() ||
           std::find(flags.roles.begin(), flags.roles.end(), role) != flags.roles.end();
  };
  options.takes_servers = takes("server");
  options.takes_workers = takes("worker");
  options.tls = flags.tls;
  options.insecure = flags.insecure;
  if (flags.controller_timeout_s > 0) {
    options.controller_timeout = absl::Seconds(flags.controller_timeout_s);
  }
  JobFlags programs;
  programs.bin_dir = flags.bin_dir;
  const auto found = FindProgramsOf(programs);
  if (!found.ok()) return Complain(found.status().message(), kExitUsage);
  options.programs = *found;
  const absl::Status status = RunNode(options, &signals);
  if (status.ok()) return kExitDone;
  return Complain(status.message(), absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed);
}

}  // namespace

void AddNode(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<NodeFlags>();
  CLI::App* command = AddCommand(
      app, "node", "runs a host's share of a job over several hosts",
      R"(The agent on one host: connects to the controller (`thermocline train --nodes`), starts the servers
and workers that it wants here, and ends with the job. It tries to connect until it succeeds; after
a controller was killed it waits for the next one. Without word from the controller for
cluster.node_lease_s it ends all its processes. Ctrl-C ends it and them; SIGTERM, which an engine
sends to the controller as well, gives that 25 s for a last checkpoint.

DIR is a folder on a disk of this host: logs of processes, push logs, rows beyond memory. The run
directory of the job and its data lie on a file system that all hosts see at the same paths.

examples:
  thermocline node --controller=10.0.0.1:7070 --dir=/scratch/thermocline
  thermocline node --controller=10.0.0.1:7070 --dir=/scratch/thermocline --role=server)");
  AddValue(command, "--controller", &flags->controller, "HOST:PORT", "where the controller listens")
      ->required();
  AddValue(command, "--dir", &flags->dir, "DIR", "a folder of this host; one agent a folder")
      ->required();
  AddValue(command, "--name", &flags->name, "NAME", "of this host in the job; default: host name");
  AddValue(command, "--role", &flags->roles, "ROLES",
           "what it takes: server, worker or both (server,worker); default: both")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"server", "worker"}));
  AddValue(command, "--run-dir", &flags->run_dir, "DIR",
           "of the job that the agent is for: it leaves a controller of another run");
  AddValue(command, "--address", &flags->address, "ADDRESS",
           "of this host for the other hosts; default: that of the way to the controller");
  AddValue(command, "--bin-dir", &flags->bin_dir, "DIR",
           "the folder of thermocline-server and thermocline-worker");
  AddValue(command, "--controller-timeout", &flags->controller_timeout_s, "SECONDS",
           "ends when no controller has answered for so long; default: tries for ever")
      ->check(WholeNumber(1, 24 * 3600));
  AddTlsFlags(command, &flags->tls);
  command->add_flag("--insecure", flags->insecure, "allows plain text beyond loopback");
  OnCommand(command, action, RunNodeCommand, flags);
}

}  // namespace thermocline
