#include "server/rpc/data_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/roles.h"
#include "common/net/rpc.h"
#include "common/wire/codec.h"

namespace thermocline {
namespace {

absl::Status RefusedByAdmission(const char* what, uint64_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("this server works on ", limit, " ", what, " already; come again"));
}

// Until the caller's deadline.
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

// PullCall
// ------------------------------------------------------------------------------------------------

ParameterServerService::PullCall::PullCall(ParameterServerService* service,
                                           grpc::CallbackServerContext* context,
                                           grpc::ByteBuffer* reply)
    : service_(service), context_(context), reply_(reply), resumed_us_(MonotonicMicros()) {}

void ParameterServerService::PullCall::Start(const grpc::ByteBuffer& request) {
  lane_ = service_->LaneOf(wire::PeekPullKind(request));
  lane_->stats.Begin();
  const absl::Status decoded = Decode(request);
  if (!decoded.ok()) return FinishWith(WithContext(decoded, service_->Where("Pull")));
  handled_us_ = MonotonicMicros() - resumed_us_;
  ticket_ = service_->core_->Pull(
      request_, [this](absl::StatusOr<wire::PullAnswer> answer) { OnAnswer(std::move(answer)); },
      TimeLeftUs(*context_));
  starting_ = false;
}

// gRPC calls this after Start, and not after OnDone.
void ParameterServerService::PullCall::OnCancel() { service_->core_->DropPull(ticket_); }

absl::Status ParameterServerService::PullCall::Decode(const grpc::ByteBuffer& request) {
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

absl::Status ParameterServerService::PullCall::ReserveForRequest(uint64_t bytes) {
  if (!lane_->requests.TryReserve(bytes)) {
    return RefusedByAdmission("bytes of pulls", lane_->requests.max_bytes());
  }
  request_bytes_ += bytes;
  return absl::OkStatus();
}

void ParameterServerService::PullCall::OnAnswer(absl::StatusOr<wire::PullAnswer> answer) {
  const bool held = std::this_thread::get_id() != start_thread_ || !starting_;
  if (!held && !MayReadDisk()) return Reply(answer);
  // This thread applies pushes, runs timers or is gRPC's: it must not gather the rows of another
  // call's pull, or wait for a disk. The threads of readers delay no push.
  lane_->threads.Run([this, answer = std::move(answer)] {
    resumed_us_ = MonotonicMicros();
    Reply(answer);
  });
}

bool ParameterServerService::PullCall::MayReadDisk() const {
  return std::any_of(
      request_.tables.begin(), request_.tables.end(),
      [this](const wire::KeyRange& range) { return service_->core_->MayReadDisk(range.table); });
}

void ParameterServerService::PullCall::Reply(const absl::StatusOr<wire::PullAnswer>& answer) {
  const absl::Status status = MakeReply(answer);
  FinishWith(status.ok() ? status : WithContext(status, Describe()));
}

absl::Status ParameterServerService::PullCall::MakeReply(
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

std::string ParameterServerService::PullCall::Describe() const {
  return absl::StrCat(service_->Where("Pull"), ", rank ", request_.header.rank.value(), ", step ",
                      request_.step.value(), ", ", request_.tables.size(), " tables, ",
                      request_.keys.size(), " keys");
}

void ParameterServerService::PullCall::FinishWith(const absl::Status& status) {
  lane_->stats.End(status.ok(), handled_us_ + MonotonicMicros() - resumed_us_);
  Finish(ToGrpcStatus(status));  // May destroy this object.
}

void ParameterServerService::PullCall::OnDone() {
  // Only now has gRPC sent the reply's bytes.
  lane_->replies.Release(reply_bytes_);
  lane_->requests.Release(request_bytes_);
  if (admitted_) lane_->requests.Leave();
  delete this;
}

// PushCall
// ------------------------------------------------------------------------------------------------

ParameterServerService::PushCall::PushCall(ParameterServerService* service, grpc::ByteBuffer* reply)
    : service_(service), reply_(reply), start_us_(MonotonicMicros()) {
  service_->push_stats_.Begin();
}

void ParameterServerService::PushCall::Start(const grpc::ByteBuffer& request) {
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

void ParameterServerService::PushCall::Take() {
  absl::StatusOr<wire::PushChunk> chunk = wire::DecodePushChunk(request_);
  if (!chunk.ok()) return FinishWith(WithContext(chunk.status(), service_->Where("Push")));
  request_.Clear();
  const std::string what = DescribePush(*chunk);
  // When `done` has run, this object may be destroyed while the core still applies.
  service_->core_->Push(*std::move(chunk), [this, what](absl::StatusOr<wire::PushAnswer> answer) {
    OnAnswer(what, answer);
  });
}

void ParameterServerService::PushCall::OnAnswer(const std::string& what,
                                                const absl::StatusOr<wire::PushAnswer>& answer) {
  if (!answer.ok()) {
    return FinishWith(
        WithContext(answer.status(), absl::StrCat(service_->Where("Push"), ", ", what)));
  }
  *reply_ = wire::Encode(*answer);
  FinishWith(absl::OkStatus());
}

void ParameterServerService::PushCall::FinishWith(const absl::Status& status) {
  service_->push_stats_.End(status.ok(), MonotonicMicros() - start_us_);
  Finish(ToGrpcStatus(status));  // May destroy this object.
}

void ParameterServerService::PushCall::OnDone() {
  service_->push_admission_.Release(reserved_bytes_);
  if (admitted_) service_->push_admission_.Leave();
  delete this;
}

}  // namespace thermocline
