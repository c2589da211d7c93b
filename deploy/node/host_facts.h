// What a node finds out about its own host, and about what that shares with the controller.
#ifndef THERMOCLINE_DEPLOY_NODE_HOST_FACTS_H_
#define THERMOCLINE_DEPLOY_NODE_HOST_FACTS_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/node/node.h"
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

// Whether this host shares the job's run directory and that of its checkpoints with the controller.
// Errors: kFailedPrecondition (names the host, the folder and what it lacks), those of LoadJobOf
absl::Status CheckFolders(const std::string& host, const NodeOrder& order);

// Whether an agent of `user` may use the folder: keys lie in it, and programs' files. Errors:
// kFailedPrecondition (another user made it, who is named), kUnavailable
absl::Status CheckOwner(const std::string& dir, uid_t user);

// Kills the processes that an agent started whose folder was `dir`, and waits for their end. They
// die with their agent; this is for one that could not.
// REQUIRES: no other agent uses `dir`, an absolute path.
void EndLeftovers(const std::string& dir);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODE_HOST_FACTS_H_
