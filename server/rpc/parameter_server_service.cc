#include "server/rpc/parameter_server_service.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"
#include "common/net/roles.h"
#include "common/net/rpc.h"
#include "common/wire/messages.h"
#include "server/rpc/data_calls.h"

namespace thermocline {
namespace {

// Runs a blocking handler and counts it.
template <typename Handler>
grpc::Status Measured(MethodStats* stats, const std::string& where, Handler handler) {
  stats->Begin();
  const int64_t start_us = MonotonicMicros();
  const absl::Status status = handler();
  stats->End(status.ok(), MonotonicMicros() - start_us);
  return ToGrpcStatus(WithContext(status, where));
}

absl::StatusOr<std::optional<LogDurability>> DurabilityFromProto(int durability) {
  switch (durability) {
    case NONE:
      return std::optional<LogDurability>();
    case LOG_ASYNC:
      return std::make_optional(LogDurability::kProcess);
    case LOG_SYNC:
      return std::make_optional(LogDurability::kHost);
    default:
      return absl::InvalidArgumentError(absl::StrCat("durability ", durability, " is unknown"));
  }
}

// `what` and `flag` name the folder and its root in errors.
absl::Status CheckBelow(const std::string& folder, const std::string& root, absl::string_view what,
                        absl::string_view flag) {
  if (folder.empty()) return absl::OkStatus();
  if (root.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, " '", folder, "' is refused: this server was started without ", flag));
  }
  const auto resolve = [](const std::string& path, std::error_code* error) {
    const std::filesystem::path absolute = std::filesystem::absolute(path, *error);
    return *error ? absolute : std::filesystem::weakly_canonical(absolute, *error);
  };
  std::error_code error, root_error;
  const std::filesystem::path here = resolve(folder, &error), above = resolve(root, &root_error);
  const auto [in_root, in_folder] =
      std::mismatch(above.begin(), above.end(), here.begin(), here.end());
  // A '/' at the end of the root makes an empty last part.
  if (!error && !root_error && (in_root == above.end() || in_root->empty())) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(what, " '", folder, "' is not in '", root, "' (", flag, " of this server)"));
}

absl::StatusOr<ServerConfig> ConfigFromProto(const ConfigureRequest& request) {
  if (request.protocol_version() != wire::kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the request speaks protocol version ", request.protocol_version(),
                     ", this server version ", wire::kProtocolVersion,
                     "; launcher, servers and workers have to be of one build"));
  }
  ServerConfig config;
  config.job_id = request.job_id();
  config.generation = request.generation();
  config.server_index = ServerIndex(request.server_index());
  config.num_servers = request.num_servers();
  config.num_workers = request.num_workers();
  config.seed = request.seed();
  config.staleness_steps = request.staleness_steps();
  ASSIGN_OR_RETURN(config.durability, DurabilityFromProto(request.durability()));
  config.checkpoint_directory = request.checkpoint_directory();
  config.base_checkpoint = request.base_checkpoint();
  config.base_generation = request.base_generation();
  config.init_directory = request.init().directory();
  config.init_checkpoint = request.init().name();
  config.init_generation = request.init().generation();
  config.init_steps = request.init().steps();
  config.init_begins_anew = {request.init().begins_anew().begin(),
                             request.init().begins_anew().end()};
  config.checkpoint_every_steps = request.checkpoint_every_steps();
  config.checkpoint_full_every = std::max(1u, request.checkpoint_full_every());
  for (const TableSpec& table : request.tables()) {
    ASSIGN_OR_RETURN(TableLayout layout, TableLayoutFromProto(table));
    config.tables.push_back(std::move(layout));
  }
  return config;
}

}  // namespace

ParameterServerService::ParameterServerService(const ServiceOptions& options, ServerCore* core)
    : options_(options),
      core_(core),
      push_admission_(options.max_pushes, options.max_push_bytes),
      read_(options, "Read"),
      train_(options, "Pull") {}

ParameterServerService::~ParameterServerService() = default;

std::string ParameterServerService::Where(const char* method) const {
  const int64_t index = server_index_.load(std::memory_order_acquire);
  if (index < 0) return absl::StrCat(method, " at a server without a job");
  return absl::StrCat(method, " at server ", index);
}

absl::Status ParameterServerService::CheckRequestBytes(size_t bytes) const {
  if (bytes <= static_cast<size_t>(options_.max_message_bytes)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("the request has ", bytes, " bytes; this server takes ",
                                            options_.max_message_bytes));
}

grpc::ServerUnaryReactor* ParameterServerService::Pull(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* reply) {
  auto* call = new PullCall(this, context, reply);
  call->Start(*request);
  return call;
}

grpc::ServerUnaryReactor* ParameterServerService::Push(grpc::CallbackServerContext*,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* reply) {
  auto* call = new PushCall(this, reply);
  call->Start(*request);
  return call;
}

absl::Status ParameterServerService::ConfigureCore(const grpc::AuthContext& peer,
                                                   const ConfigureRequest& request) {
  // Workers only look.
  if (!request.check_only()) RETURN_IF_ERROR(CheckRole(peer, "Configure", {Role::kController}));
  ASSIGN_OR_RETURN(const ServerConfig config, ConfigFromProto(request));
  if (!options_.job_id.empty() && config.job_id != options_.job_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this server was started for job '", options_.job_id, "', not for '", config.job_id, "'"));
  }
  if (request.check_only()) return core_->CheckConfigured(config);
  RETURN_IF_ERROR(CheckBelow(config.checkpoint_directory, options_.checkpoint_root,
                             "checkpoint_directory", "--checkpoint_root"));
  RETURN_IF_ERROR(
      CheckBelow(config.init_directory, options_.init_root, "init.directory", "--init_root"));
  RETURN_IF_ERROR(CheckOpenFiles("this server", 1 + uint64_t{config.num_workers}));
  RETURN_IF_ERROR(core_->Configure(config));
  server_index_.store(config.server_index.value(), std::memory_order_release);
  return absl::OkStatus();
}

grpc::Status ParameterServerService::Configure(grpc::ServerContext* context,
                                               const ConfigureRequest* request,
                                               ConfigureReply* reply) {
  return Measured(&configure_stats_, Where("Configure"), [&] {
    reply->set_protocol_version(wire::kProtocolVersion);
    return ConfigureCore(*context->auth_context(), *request);
  });
}

grpc::Status ParameterServerService::GetStats(grpc::ServerContext*, const GetStatsRequest*,
                                              ServerStats* stats) {
  return Measured(&get_stats_stats_, Where("GetStats"), [&] {
    core_->FillStats(stats);
    stats->set_uptime_s(UptimeSeconds());
    stats->set_resident_bytes(ResidentBytes());
    uint64_t refused = stats->requests_refused() + push_admission_.refused();
    for (const PullLane* lane : {&train_, &read_}) {
      refused += lane->requests.refused() + lane->replies.refused();
    }
    stats->set_requests_refused(refused);
    for (const MethodStats* method : {&train_.stats, &push_stats_, &read_.stats, &configure_stats_,
                                      &get_stats_stats_, &get_digest_stats_, &checkpoint_stats_}) {
      method->CopyTo(stats->add_rpcs());
    }
    return absl::OkStatus();
  });
}

// A cut is named on a handler thread, as a digest is computed: after a cut that begins at once,
// pushes may have to be applied.
absl::StatusOr<CheckpointReply> ParameterServerService::TakeCheckpoint(
    const CheckpointRequest& request) {
  absl::StatusOr<CheckpointReply> answer = absl::UnknownError("no answer");
  absl::Notification answered;
  const auto take = [&] {
    core_->Checkpoint(request, [&](absl::StatusOr<CheckpointReply> reply) {
      answer = std::move(reply);
      answered.Notify();
    });
  };
  // The other actions remove files, and would keep a handler thread waiting for the disk.
  request.action() == CheckpointRequest::NAME_CUT ? train_.threads.Run(take) : take();
  answered.WaitForNotification();
  return answer;
}

grpc::Status ParameterServerService::Checkpoint(grpc::ServerContext*,
                                                const CheckpointRequest* request,
                                                CheckpointReply* reply) {
  return Measured(&checkpoint_stats_, Where("Checkpoint"), [&]() -> absl::Status {
    ASSIGN_OR_RETURN(*reply, TakeCheckpoint(*request));
    return absl::OkStatus();
  });
}

// On a handler thread: the call that computes a digest then applies the steps that were completed
// meanwhile, and the answer doesn't wait for that.
absl::StatusOr<ServerCore::DigestAnswer> ParameterServerService::ComputeDigest(
    const GetDigestRequest& request) {
  absl::StatusOr<ServerCore::DigestAnswer> answer = absl::UnknownError("no answer");
  absl::Notification answered;
  train_.threads.Run([&] {
    core_->ComputeDigest(request.job_id(), request.generation(),
                         [&](absl::StatusOr<ServerCore::DigestAnswer> digest) {
                           answer = std::move(digest);
                           answered.Notify();
                         });
  });
  answered.WaitForNotification();
  return answer;
}

grpc::Status ParameterServerService::GetDigest(grpc::ServerContext*,
                                               const GetDigestRequest* request,
                                               GetDigestReply* reply) {
  return Measured(&get_digest_stats_, Where("GetDigest"), [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const ServerCore::DigestAnswer answer, ComputeDigest(*request));
    reply->set_low(answer.digest.low);
    reply->set_high(answer.digest.high);
    reply->set_rows(answer.rows);
    reply->set_complete_through(answer.complete_through.value());
    return absl::OkStatus();
  });
}

}  // namespace thermocline
