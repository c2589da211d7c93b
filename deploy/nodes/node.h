// The agent on a host of a job: starts and watches the processes that the controller wants there.
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
  std::string run_dir;     // Of the job that the agent is for; "": the controller's, whichever.
  std::string name;        // Of this host; "": its host name.
  std::string address;     // Of this host for the others; "": that of the way to the controller.
  std::string dir;         // On a disk of this host: logs, push logs, rows beyond memory.
  bool takes_servers = true, takes_workers = true;
  JobPrograms programs;
  TlsFiles tls;
  bool insecure = false;  // Allows plain text beyond loopback.
  absl::Duration controller_timeout = absl::InfiniteDuration();
};

// Runs until the job has ended. However it ends, no process of it is left. One agent uses a folder
// at a time; what a predecessor left running there is ended.
//
// Errors: kCancelled (a signal), kUnavailable (no controller has answered for controller_timeout),
// kFailedPrecondition (the controller refuses this host: it says why; it is another run's; another
// agent uses the folder), kInvalidArgument (plain text beyond loopback; an address of no host),
// those of files.
//
// REQUIRES: called on the main thread
absl::Status RunNode(const NodeOptions& options, SignalWatch* signals);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_NODE_H_
