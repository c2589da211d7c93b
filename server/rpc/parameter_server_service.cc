#include "server/rpc/parameter_server_service.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "common/math/table_spec.h"
#include "common/net/roles.h"
#include "common/net/rpc.h"
#include "common/wire/codec.h"
#include "common/wire/messages.h"
#include "server/rpc/pull_handling.h"

namespace thermocline {
namespace {

// Runs a blocking handler and counts it; its errors begin with `where`, if any. kUnavailable, which
// means "not yet", is no error where the caller only asks whether the server is ready.
template <typename Handler>
grpc::Status Measured(MethodStats* stats, const std::string& where, Handler handler,
                      bool asks_whether_ready = false) {
  stats->Begin();
  const int64_t start_us = MonotonicMicros();
  const absl::Status status = handler();
  const bool not_yet = asks_whether_ready && absl::IsUnavailable(status);
  stats->End(status.ok() || not_yet, MonotonicMicros() - start_us);
  return ToGrpcStatus(where.empty() ? status : WithContext(status, where));
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

absl::Status RefusedByAdmission(const char* what, uint64_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("this server works on ", limit, " ", what, " already; come again"));
}

// The time until the caller's deadline.
int64_t TimeLeftUs(const grpc::CallbackServerContext& context) {
  using std::chrono::system_clock;
  const system_clock::time_point deadline = context.deadline();
  if (deadline == system_clock::time_point::max()) return WaitingPulls::kNoDeadline;
  return std::chrono::duration_cast<std::chrono::microseconds>(deadline - system_clock::now())
      .count();
}

std::string DescribePush(const wire::PushChunk& chunk) {
  return absl::StrCat("rank ", chunk.header.rank.value(), ", step ", chunk.step.value(), ", chunk ",
                      chunk.chunk, " of ", chunk.num_chunks, ", ", chunk.tables.size(), " tables, ",
                      chunk.keys.size(), " keys");
}

}  // namespace

// One Pull on its way through the server; deletes itself when gRPC is done with it. Runs on gRPC's
// thread: decodes, asks the core, gathers, replies. A held pull keeps no thread waiting; its reply
// is made on a thread of its lane, as is that of a pull whose rows may be on the disk: a thread of
// gRPC must not wait for a disk. The threads of readers delay no push.
class ParameterServerService::PullReactor final : public grpc::ServerUnaryReactor {
 public:
  PullReactor(ParameterServerService* service, grpc::CallbackServerContext* context,
              grpc::ByteBuffer* reply);
  void Start(const grpc::ByteBuffer& request);
  void OnCancel() override;
  void OnDone() override;

 private:
  absl::Status Decode(const grpc::ByteBuffer& request);
  absl::Status ReserveForRequest(uint64_t bytes);
  void Reply(const absl::StatusOr<wire::PullAnswer>& answer);
  absl::Status MakeReply(const absl::StatusOr<wire::PullAnswer>& answer);
  void FinishWith(const absl::Status& status);
  std::string Describe() const;

  ParameterServerService* const service_;
  PullLane* lane_ = nullptr;  // The lane of the pull's kind; set by Start.
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const reply_;
  std::optional<PullHandling> handling_;  // Set by Start.
  PullTicket ticket_ = kNoTicket;
  bool admitted_ = false;
  uint64_t request_bytes_ = 0;  // Reserved in lane_.
  uint64_t reply_bytes_ = 0;
  wire::PullRequest request_;
};

// One chunk of a push on its way through the server; deletes itself when gRPC is done with it. Runs
// on a handler thread from decoding on: the core may apply whole steps before it returns.
class ParameterServerService::PushReactor final : public grpc::ServerUnaryReactor {
 public:
  PushReactor(ParameterServerService* service, grpc::ByteBuffer* reply);
  void Start(const grpc::ByteBuffer& request);
  void OnDone() override;

 private:
  void Take();
  void OnAnswer(const std::string& what, const absl::StatusOr<wire::PushAnswer>& answer);
  void FinishWith(const absl::Status& status);

  ParameterServerService* const service_;
  grpc::ByteBuffer* const reply_;
  grpc::ByteBuffer request_;
  bool admitted_ = false;
  uint64_t reserved_bytes_ = 0;
  const int64_t start_us_;
};

// PullReactor
// ------------------------------------------------------------------------------------------------

ParameterServerService::PullReactor::PullReactor(ParameterServerService* service,
                                                 grpc::CallbackServerContext* context,
                                                 grpc::ByteBuffer* reply)
    : service_(service), context_(context), reply_(reply) {}

void ParameterServerService::PullReactor::Start(const grpc::ByteBuffer& request) {
  NameTraceThread("gRPC");
  lane_ = service_->LaneOf(wire::PeekPullKind(request));
  handling_.emplace(service_->core_, &lane_->stats, &lane_->threads);
  const absl::Status decoded = Decode(request);
  if (!decoded.ok()) return FinishWith(WithContext(decoded, service_->Where("Pull")));
  ticket_ =
      handling_->Ask(request_, TimeLeftUs(*context_), /*may_wait=*/false,
                     [this](const absl::StatusOr<wire::PullAnswer>& answer) { Reply(answer); });
}

// gRPC calls this after Start, and not after OnDone.
void ParameterServerService::PullReactor::OnCancel() { service_->core_->DropPull(ticket_); }

absl::Status ParameterServerService::PullReactor::Decode(const grpc::ByteBuffer& request) {
  admitted_ = lane_->requests.TryEnter();
  if (!admitted_) return RefusedByAdmission("pulls", lane_->requests.max_requests());
  RETURN_IF_ERROR(service_->CheckRequestBytes(request.Length()));
  if (lane_ == &service_->train_) {
    RETURN_IF_ERROR(CheckRole(*context_->auth_context(), "Pull of kind TRAIN", {Role::kWorker}));
  }
  // gRPC keeps the request until the call ends; the keys decoded from it are as large again.
  RETURN_IF_ERROR(ReserveForRequest(2 * request.Length()));
  ASSIGN_OR_RETURN(request_, wire::DecodePullRequest(request));
  // A table without keys takes more room decoded than encoded.
  return ReserveForRequest(request_.tables.size() * sizeof(wire::KeyRange));
}

absl::Status ParameterServerService::PullReactor::ReserveForRequest(uint64_t bytes) {
  if (!lane_->requests.TryReserve(bytes)) {
    return RefusedByAdmission("bytes of pulls", lane_->requests.max_bytes());
  }
  request_bytes_ += bytes;
  return absl::OkStatus();
}

void ParameterServerService::PullReactor::Reply(const absl::StatusOr<wire::PullAnswer>& answer) {
  const absl::Status status = MakeReply(answer);
  FinishWith(status.ok() ? status : WithContext(status, Describe()));
}

absl::Status ParameterServerService::PullReactor::MakeReply(
    const absl::StatusOr<wire::PullAnswer>& answer) {
  RETURN_IF_ERROR(answer.status());
  if (context_->IsCancelled()) return absl::CancelledError("the caller has gone");
  std::vector<wire::PullReplyBuilder::Table> tables;
  if (answer->readiness == wire::Readiness::kReady) {
    tables.reserve(request_.tables.size());
    for (const wire::KeyRange& range : request_.tables) {
      ASSIGN_OR_RETURN(const int floats,
                       service_->core_->FloatsOf(range.table, request_.with_state));
      tables.push_back({range.table, range.count * floats * sizeof(float)});
    }
  }
  const size_t bytes = wire::PullReplyBuilder::EncodedBytes(*answer, tables);
  if (bytes > static_cast<size_t>(service_->options_.max_message_bytes)) {
    return absl::OutOfRangeError(absl::StrCat("the reply would have ", bytes,
                                              " bytes; the limit is ",
                                              service_->options_.max_message_bytes));
  }
  if (!lane_->replies.TryReserve(bytes)) {
    return RefusedByAdmission("bytes of replies", lane_->replies.max_bytes());
  }
  reply_bytes_ = bytes;

  wire::PullReplyBuilder builder(*answer, tables);
  for (size_t i = 0; i < tables.size(); ++i) {
    RETURN_IF_ERROR(service_->core_->ReadRows(tables[i].table, request_.KeysOf(request_.tables[i]),
                                              request_.with_state, builder.rows(i), request_.kind));
  }
  *reply_ = std::move(builder).Finish();
  return absl::OkStatus();
}

std::string ParameterServerService::PullReactor::Describe() const {
  return absl::StrCat(service_->Where("Pull"), ", rank ", request_.header.rank.value(), ", step ",
                      request_.step.value(), ", ", request_.tables.size(), " tables, ",
                      request_.keys.size(), " keys");
}

void ParameterServerService::PullReactor::FinishWith(const absl::Status& status) {
  handling_->End(status.ok());
  Finish(ToGrpcStatus(status));  // May destroy this object.
}

void ParameterServerService::PullReactor::OnDone() {
  // Only now has gRPC sent the reply's bytes.
  lane_->replies.Release(reply_bytes_);
  lane_->requests.Release(request_bytes_);
  if (admitted_) lane_->requests.Leave();
  delete this;
}

// PushReactor
// ------------------------------------------------------------------------------------------------

ParameterServerService::PushReactor::PushReactor(ParameterServerService* service,
                                                 grpc::ByteBuffer* reply)
    : service_(service), reply_(reply), start_us_(MonotonicMicros()) {
  service_->push_stats_.Begin();
}

void ParameterServerService::PushReactor::Start(const grpc::ByteBuffer& request) {
  const std::string where = service_->Where("Push");
  admitted_ = service_->push_admission_.TryEnter();
  if (!admitted_) {
    return FinishWith(
        WithContext(RefusedByAdmission("pushes", service_->push_admission_.max_requests()), where));
  }
  const size_t bytes = request.Length();
  const absl::Status size_status = service_->CheckRequestBytes(bytes);
  if (!size_status.ok()) return FinishWith(WithContext(size_status, where));
  if (!service_->push_admission_.TryReserve(bytes)) {
    return FinishWith(WithContext(
        RefusedByAdmission("bytes of pushes", service_->push_admission_.max_bytes()), where));
  }
  reserved_bytes_ = bytes;
  request_ = request;  // Shares the slices.
  service_->train_.threads.Run([this] { Take(); });
}

void ParameterServerService::PushReactor::Take() {
  NameTraceThread("handle requests");
  absl::StatusOr<wire::PushChunk> chunk = wire::DecodePushChunk(request_);
  if (!chunk.ok()) return FinishWith(WithContext(chunk.status(), service_->Where("Push")));
  request_.Clear();
  const std::string what = DescribePush(*chunk);
  // When `done` has run, this object may be destroyed while the core still applies.
  service_->core_->Push(*std::move(chunk), [this, what](absl::StatusOr<wire::PushAnswer> answer) {
    OnAnswer(what, answer);
  });
}

void ParameterServerService::PushReactor::OnAnswer(const std::string& what,
                                                   const absl::StatusOr<wire::PushAnswer>& answer) {
  if (!answer.ok()) {
    return FinishWith(
        WithContext(answer.status(), absl::StrCat(service_->Where("Push"), ", ", what)));
  }
  *reply_ = wire::Encode(*answer);
  FinishWith(absl::OkStatus());
}

void ParameterServerService::PushReactor::FinishWith(const absl::Status& status) {
  service_->push_stats_.End(status.ok(), MonotonicMicros() - start_us_);
  Finish(ToGrpcStatus(status));  // May destroy this object.
}

void ParameterServerService::PushReactor::OnDone() {
  service_->push_admission_.Release(reserved_bytes_);
  if (admitted_) service_->push_admission_.Leave();
  delete this;
}

// The service
// ------------------------------------------------------------------------------------------------

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
  auto* reactor = new PullReactor(this, context, reply);
  reactor->Start(*request);
  return reactor;
}

grpc::ServerUnaryReactor* ParameterServerService::Push(grpc::CallbackServerContext*,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* reply) {
  auto* reactor = new PushReactor(this, reply);
  reactor->Start(*request);
  return reactor;
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
  RETURN_IF_ERROR(CheckBelow(request.trace_directory(), options_.trace_root, "trace_directory",
                             "--trace_root"));
  RETURN_IF_ERROR(CheckOpenFiles("this server", 1 + uint64_t{config.num_workers}));
  RETURN_IF_ERROR(core_->Configure(config));
  server_index_.store(config.server_index.value(), std::memory_order_release);
  BeginTrace(request);
  return absl::OkStatus();
}

// A replay of pushes is not traced, nor are steps that were applied before.
void ParameterServerService::BeginTrace(const ConfigureRequest& request) {
  if (!request.has_trace() || request.trace_directory().empty()) return;
  ServerStats stats;
  core_->FillStats(&stats);
  const Step last(static_cast<int64_t>(request.trace().last_step()));
  if (Step(stats.complete_through()) >= last) return;
  absl::MutexLock lock(&trace_mutex_);
  if (trace_.has_value()) return;  // The launcher has repeated its request.
  ProcessTraceOptions options;
  options.directory = request.trace_directory();
  options.job = request.job_id();
  options.role = "server";
  options.index = request.server_index();
  options.generation = request.generation();
  options.first = Step(static_cast<int64_t>(request.trace().first_step()));
  options.last = last;
  trace_.emplace(std::move(options));
}

grpc::Status ParameterServerService::Configure(grpc::ServerContext* context,
                                               const ConfigureRequest* request,
                                               ConfigureReply* reply) {
  // A server that is without a job until now can't say which of the job's servers it is.
  const bool has_job = server_index_.load(std::memory_order_acquire) >= 0;
  return Measured(
      &configure_stats_, has_job ? Where("Configure") : "",
      [&] {
        reply->set_protocol_version(wire::kProtocolVersion);
        return ConfigureCore(*context->auth_context(), *request);
      },
      request->check_only());
}

grpc::Status ParameterServerService::GetStats(grpc::ServerContext*, const GetStatsRequest*,
                                              ServerStats* stats) {
  return Measured(&get_stats_stats_, Where("GetStats"), [&] {
    core_->FillStats(stats);
    stats->set_uptime_s(UptimeSeconds());
    stats->set_resident_bytes(ResidentBytes());
    stats->set_clock_ns(MonotonicNanos());
    stats->set_embedded(options_.is_embedded);
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

// A cut is named on a handler thread, since pushes may have to be applied after a cut that begins
// at once.
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
