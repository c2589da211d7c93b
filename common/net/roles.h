// Which roles may call which methods. Every server that listens with TLS checks this before a
// request reaches its handler: one table has the roles for each method, and the peer's certificate
// names its role (certificates.h). Methods that the table doesn't have are refused.
//
// Peers whose certificate has no job and role, such as users' own certificates, may call
// everything. Without TLS (plain text on loopback) there are no certificates, and everything is
// allowed.
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

// Checks that the peer has one of the roles `allowed`, where the method alone doesn't decide.
// `what` is for the error: "Pull of kind TRAIN". Errors: kPermissionDenied (names role and `what`).
absl::Status CheckRole(const grpc::AuthContext& peer, absl::string_view what,
                       absl::Span<const Role> allowed);

// For grpc::ServerCredentials: refuses calls that RolesOf doesn't allow, and peers of another job,
// with PERMISSION_DENIED. `job`: this process's; "": peers of any job are taken.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeDoor(std::string job);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_ROLES_H_
