// What a node finds out about its own host, and about what that shares with the controller.
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

// Closed by default, as servers are: plain text is for loopback, unless `insecure` says otherwise.
// Errors: kInvalidArgument
absl::Status CheckMayConnect(const std::string& controller, const TlsFiles& tls, bool insecure);

// The address of this machine on its way to `controller` (host:port), without a port; no packet is
// sent. Errors: kInvalidArgument (no host:port, or no host of that name), kUnavailable (no way
// there)
absl::StatusOr<std::string> AddressTowards(const std::string& controller);

// Name, address, resources and build. Errors: those of AddressTowards and DigestOfPrograms
absl::StatusOr<NodeHello> MakeHello(const NodeOptions& options);

// The controller's, from its run directory, with the folder of its checkpoints. The file may come
// late: waits for it up to two seconds.
absl::StatusOr<Job> LoadJobOf(const NodeOrder& order);

// Errors: kFailedPrecondition (the controller is not that of the agent's run: names both)
absl::Status CheckRun(const NodeOptions& options, const NodeOrder& order);

// Whether this host shares the job's run directory and that of its checkpoints with the controller.
// Errors: kFailedPrecondition (names the host, the folder and what it lacks), those of LoadJobOf
absl::Status CheckFolders(const std::string& host, const NodeOrder& order);

// Makes the folder of an agent of `user` where it is missing, for this user alone: keys lie in it,
// and programs' files. Returns its absolute path, without symbolic links. Errors:
// kFailedPrecondition (what is there is a link or a file, another user's, who is named, or a folder
// that others may write to), kUnavailable
absl::StatusOr<std::string> MakeOwnFolder(const std::string& dir, uid_t user);

// Kills the processes that an agent started whose folder was `dir`, by `kill`, and waits for their
// end. They die with their agent; this is for one that could not. Processes of agents whose folders
// lie in `dir` are theirs. Errors: kUnavailable (one is still there after `patience`; names it)
// REQUIRES: no other agent uses `dir`, an absolute path.
absl::Status EndLeftovers(const std::string& dir, absl::Duration patience,
                          absl::FunctionRef<int(pid_t, int)> kill = ::kill);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_HOST_FACTS_H_
