#include "common/net/roles.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/net/rpc.h"

namespace thermocline {
namespace {

struct Rule {
  absl::string_view method;
  std::vector<Role> allowed;
};

// docs/security.md has it as a table. What depends on more than the method's name is in the
// handlers, by CheckRole: of a server's Pull, kind TRAIN is for workers; of Configure, what changes
// anything is for the controller.
const std::vector<Rule>& Rules() {
  constexpr Role kController = Role::kController, kWorker = Role::kWorker, kReader = Role::kReader,
                 kNode = Role::kNode;
  static const auto* const rules = new std::vector<Rule>{
      {"/thermocline.ParameterServer/Pull", {kWorker, kReader}},
      {"/thermocline.ParameterServer/Push", {kWorker}},
      {"/thermocline.ParameterServer/Configure", {kController, kWorker}},
      {"/thermocline.ParameterServer/GetStats", {kController, kWorker, kReader}},
      {"/thermocline.ParameterServer/GetDigest", {kController}},
      {"/thermocline.ParameterServer/Checkpoint", {kController}},
      {"/thermocline.Worker/GetStats", {kController, kReader}},
      {"/thermocline.Worker/Checkpoint", {kController}},
      {"/thermocline.Worker/Decide", {kController}},
      {"/thermocline.Worker/Introduce", {kController}},
      {"/thermocline.Worker/Exchange", {kWorker}},
      {"/thermocline.Controller/Attach", {kNode}},
      {"/thermocline.Controller/GetLog", {kController, kReader}},
  };
  return *rules;
}

// Methods that reveal nothing about a job: the standard health checks, and the list of services.
bool IsForAll(absl::string_view method) {
  return absl::StartsWith(method, "/grpc.health.v1.Health/") ||
         absl::StartsWith(method, "/grpc.reflection.");
}

absl::Status Refusal(const Identity& peer, absl::string_view what, absl::Span<const Role> allowed) {
  const std::string roles = absl::StrJoin(
      allowed, ", ", [](std::string* text, Role role) { absl::StrAppend(text, RoleName(role)); });
  return absl::PermissionDeniedError(
      absl::StrCat("role ", RoleName(peer.role), " may not call ", what, "; ",
                   roles.empty() ? "no role may" : absl::StrCat("it is for ", roles)));
}

// None: the peer has no certificate, or one that names no role.
absl::StatusOr<std::optional<Identity>> IdentityOfPeer(const grpc::AuthContext& peer) {
  std::optional<Identity> found;
  for (const grpc::string_ref& value : peer.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    const absl::string_view uri(value.data(), value.size());
    if (!absl::StartsWith(uri, "thermocline:")) continue;
    auto identity = ParseIdentityUri(uri);
    // One that we do not understand, or a second one, must not pass for none.
    if (!identity.has_value() || found.has_value()) {
      return absl::PermissionDeniedError(
          absl::StrCat("the peer's certificate names ", uri, ", which is no role"));
    }
    found = std::move(identity);
  }
  return found;
}

absl::Status CheckIdentity(const std::optional<Identity>& identity, absl::string_view what,
                           absl::Span<const Role> allowed) {
  if (!identity.has_value() ||
      std::find(allowed.begin(), allowed.end(), identity->role) != allowed.end()) {
    return absl::OkStatus();
  }
  return Refusal(*identity, what, allowed);
}

class Door final : public grpc::AuthMetadataProcessor {
 public:
  explicit Door(std::string job) : job_(std::move(job)) {}

  bool IsBlocking() const override { return false; }  // Runs on gRPC's threads.

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    if (path == metadata.end()) return ToGrpcStatus(absl::PermissionDeniedError("no method"));
    return ToGrpcStatus(Check({path->second.data(), path->second.size()}, *peer));
  }

 private:
  absl::Status Check(absl::string_view method, const grpc::AuthContext& peer) const {
    ASSIGN_OR_RETURN(const std::optional<Identity> identity, IdentityOfPeer(peer));
    if (!identity.has_value()) return absl::OkStatus();
    if (!job_.empty() && identity->job != job_) {
      return absl::PermissionDeniedError(absl::StrCat("the peer's certificate is of job '",
                                                      identity->job, "', this process of job '",
                                                      job_, "'"));
    }
    if (IsForAll(method)) return absl::OkStatus();
    return CheckIdentity(identity, method.substr(method.rfind('/') + 1), RolesOf(method));
  }

  const std::string job_;
};

}  // namespace

absl::Span<const Role> RolesOf(absl::string_view method) {
  for (const Rule& rule : Rules()) {
    if (rule.method == method) return rule.allowed;
  }
  return {};
}

absl::Status CheckRole(const grpc::AuthContext& peer, absl::string_view what,
                       absl::Span<const Role> allowed) {
  ASSIGN_OR_RETURN(const std::optional<Identity> identity, IdentityOfPeer(peer));
  return CheckIdentity(identity, what, allowed);
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeDoor(std::string job) {
  return std::make_shared<Door>(std::move(job));
}

}  // namespace thermocline
