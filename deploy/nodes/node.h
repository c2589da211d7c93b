// The agent on a host of a job. It starts and watches the processes that the controller wants
// there.
#ifndef THERMOCLINE_DEPLOY_NODES_NODE_H_
#define THERMOCLINE_DEPLOY_NODES_NODE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/net/rpc.h"
#include "deploy/processes/local_processes.h"
#include "deploy/processes/signal_watch.h"

namespace thermocline {

struct NodeOptions {
  std::string controller;  // host:port
  std::string run_dir;  // The run directory of the agent's job; "": whichever the controller has.
  std::string name;     // The name of this host; "": its host name.
  std::string address;  // Where other hosts reach this one; "": as AddressTowards finds it.
  std::string dir;      // A folder on this host's disk for logs, push logs, rows beyond memory.
  bool takes_servers = true, takes_workers = true;
  JobPrograms programs;
  TlsFiles tls;
  bool insecure = false;  // Allows plain text beyond loopback.
  absl::Duration controller_timeout = absl::InfiniteDuration();
};

// Runs until the job has ended. However it ends, it leaves no process of its own. One agent uses a
// folder at a time; it ends the processes that a predecessor has left running there.
//
// Errors: kCancelled (a signal), kUnavailable (no controller has answered for controller_timeout),
// kFailedPrecondition (the controller refuses this host, and says why; the controller is another
// run's; another agent uses the folder), kInvalidArgument (plain text beyond loopback; an address
// of no host), those of files.
//
// REQUIRES: called on the main thread
absl::Status RunNode(const NodeOptions& options, SignalWatch* signals);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_NODE_H_
