// thermocline node: a host's share of a job over several hosts.
#include <algorithm>

#include "deploy/cli/console.h"
#include "deploy/cli/host_commands.h"
#include "deploy/cli/run_setup.h"
#include "deploy/nodes/node.h"

namespace thermocline {

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
  options.tls = {flags.tls_certificate, flags.tls_private_key, flags.tls_ca};
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

}  // namespace thermocline
