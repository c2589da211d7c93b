// The command line of jobs over several hosts.
#include <memory>

#include "deploy/cli/command_pages.h"
#include "deploy/cli/host_commands.h"

namespace thermocline {
namespace {

template <typename Flags>
void AddTlsFlags(CLI::App* command, Flags* flags) {
  AddValue(command, "--tls-certificate", &flags->tls_certificate, "FILE", "PEM file");
  AddValue(command, "--tls-private-key", &flags->tls_private_key, "FILE", "PEM file");
  AddValue(command, "--tls-ca", &flags->tls_ca, "FILE", "PEM file");
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
  AddTlsFlags(command, flags.get());
  command->add_flag("--insecure", flags->insecure, "allows plain text beyond loopback");
  OnCommand(command, action, RunNodeCommand, flags);
}

void AddLogs(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<LogsFlags>();
  CLI::App* command = AddCommand(
      app, "logs", "shows the logs of a job's processes",
      R"(Prints the last lines of the log of a process, such as server-0 or worker-2, or of each process of
the run. Of a job over several hosts they come from the host through the controller; when the job
has ended, the command says on which host the log is, and where.

With --follow it goes on with what they write, wherever they run, until the job ends or Ctrl-C comes.

examples:
  thermocline logs runs/r
  thermocline logs /shared/run server-0 --lines 1000
  thermocline logs /shared/run worker-2 --follow)");
  AddValue(command, "RUN_DIR", &flags->run_dir, "DIR", "the run directory")->required();
  AddValue(command, "PROCESS", &flags->process, "PROCESS", "default: all");
  AddValue(command, "--lines", &flags->lines, "N", "how many; default: 100")
      ->check(WholeNumber(1, 10000));
  command->add_flag("--follow", flags->follows, "shows what comes as well, until the job ends");
  AddTlsFlags(command, flags.get());
  OnCommand(command, action, RunLogs, flags);
}

}  // namespace thermocline
