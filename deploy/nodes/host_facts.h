// Facts that a node finds out about its own host, and about the folders that it shares with the
// controller.
#ifndef THERMOCLINE_DEPLOY_NODES_HOST_FACTS_H_
#define THERMOCLINE_DEPLOY_NODES_HOST_FACTS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/nodes/node.h"
#include "proto/job.pb.h"
#include "proto/node.pb.h"

namespace thermocline {

// Checks that a connection is allowed: plain text only on loopback, unless `insecure` is set.
// Errors: kInvalidArgument
absl::Status CheckMayConnect(const std::string& controller, const TlsFiles& tls, bool insecure);

// Returns the address, without a port, from which this machine reaches `controller` (host:port). It
// sends no packet. Errors: kInvalidArgument (no host:port, or no host of that name), kUnavailable
// (no route)
absl::StatusOr<std::string> AddressTowards(const std::string& controller);

// Returns this host's name, address, resources and build. Errors: AddressTowards',
// DigestOfPrograms'
absl::StatusOr<NodeHello> MakeHello(const NodeOptions& options);

// Loads the controller's job from its run directory, and sets the folder of its checkpoints. The
// file may come late; it waits for it up to two seconds.
absl::StatusOr<Job> LoadJobOf(const NodeOrder& order);

// Checks that the controller is that of the agent's run. Errors: kFailedPrecondition (it is not:
// names both runs)
absl::Status CheckRun(const NodeOptions& options, const NodeOrder& order);

// Checks that this host shares the job's run directory and the folder of its checkpoints with the
// controller. Errors: kFailedPrecondition (names the host, the folder and what it lacks),
// LoadJobOf's
absl::Status CheckFolders(const std::string& host, const NodeOrder& order);

// Makes the folder of an agent of `user`, if it is missing, so that only this user may enter it: it
// has keys and files of processes. Returns its absolute path, without symbolic links. Errors:
// kFailedPrecondition (there is a link or a file, a folder of another user, who is named, or a
// folder that others may write to), kUnavailable
absl::StatusOr<std::string> MakeOwnFolder(const std::string& dir, uid_t user);

// Kills the processes, by `kill`, that an earlier agent with the folder `dir` has left running, and
// waits for their end. (Processes normally die with their agent.) It leaves those of agents whose
// folders are in `dir`. Errors: kUnavailable (a process is still there after `patience`; names it)
// REQUIRES: `dir` is an absolute path, and no other agent uses it.
absl::Status EndLeftovers(const std::string& dir, absl::Duration patience,
                          absl::FunctionRef<int(pid_t, int)> kill = ::kill);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_HOST_FACTS_H_
