// Who may call what, decided at the door of every server that listens with TLS: before a request
// reaches its handler, its method and the role that the peer's certificate names (certificates.h)
// are looked up in one table. What the table does not have is refused.
//
// A certificate without a job and role, as users' own are, may call everything. Without TLS (plain
// text on loopback) there are no certificates, and everything is allowed.
#ifndef THERMOCLINE_COMMON_NET_ROLES_H_
#define THERMOCLINE_COMMON_NET_ROLES_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/net/certificates.h"

namespace thermocline {

// The roles that may call a method, by its full name: "/thermocline.Worker/Decide". Empty: none.
absl::Span<const Role> RolesOf(absl::string_view method);

// For what a method's name does not say: whether the peer has one of the roles `allowed`. `what` is
// how the error calls it: "Pull of kind TRAIN".
// Errors: kPermissionDenied (names role and `what`).
absl::Status CheckRole(const grpc::AuthContext& peer, absl::string_view what,
                       absl::Span<const Role> allowed);

// For grpc::ServerCredentials: refuses calls by RolesOf, and peers of another job, with
// PERMISSION_DENIED. `job`: ours; "": that of any peer.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeDoor(std::string job);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_ROLES_H_
