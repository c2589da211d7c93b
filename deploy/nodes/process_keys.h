// The keys and certificates of an agent's processes, where each needs one of its own
// (LocalProcesses::NeedsOwnCertificate): keys are made on this host and stay here; the controller
// signs.
#ifndef THERMOCLINE_DEPLOY_NODES_PROCESS_KEYS_H_
#define THERMOCLINE_DEPLOY_NODES_PROCESS_KEYS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/job/process.h"
#include "deploy/processes/local_processes.h"
#include "deploy/processes/run_directory.h"
#include "proto/job.pb.h"
#include "proto/node.pb.h"

namespace thermocline {

// Makes a key, writes it where the process takes it, and returns the request that the controller
// signs. Errors: those of writing.
absl::StatusOr<std::string> MakeKey(const LocalProcesses& processes, const ProcessId& id);
// Writes the signed certificate; a process that runs takes the file by itself (common/net/rpc.h).
absl::Status WriteCertificate(const LocalProcesses& processes, const WantedProcess& wanted);

// Of a process that has ended, or of all of the cluster. What can't be removed expires.
void RemoveKey(const LocalProcesses& processes, const RunDirectory& directory, const ProcessId& id);
void RemoveKeys(const LocalProcesses& processes, const RunDirectory& directory,
                const Cluster& cluster);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_PROCESS_KEYS_H_
