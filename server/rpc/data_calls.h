// One Pull and one Push on their way through a server. Each deletes itself when gRPC is done with
// it.
#ifndef THERMOCLINE_SERVER_RPC_DATA_CALLS_H_
#define THERMOCLINE_SERVER_RPC_DATA_CALLS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/messages.h"
#include "server/rpc/parameter_server_service.h"

namespace thermocline {

// Runs on gRPC's thread: decode, ask the core, gather, reply. A held pull keeps no thread waiting;
// its reply is made on a handler thread, as is that of a pull whose rows may be on the disk.
class ParameterServerService::PullCall final : public grpc::ServerUnaryReactor {
 public:
  PullCall(ParameterServerService* service, grpc::CallbackServerContext* context,
           grpc::ByteBuffer* reply);
  void Start(const grpc::ByteBuffer& request);
  void OnCancel() override;
  void OnDone() override;

 private:
  absl::Status Decode(const grpc::ByteBuffer& request);
  absl::Status ReserveForRequest(uint64_t bytes);
  void OnAnswer(absl::StatusOr<wire::PullAnswer> answer);
  bool MayReadDisk() const;
  void Reply(const absl::StatusOr<wire::PullAnswer>& answer);
  absl::Status MakeReply(const absl::StatusOr<wire::PullAnswer>& answer);
  void FinishWith(const absl::Status& status);
  std::string Describe() const;

  ParameterServerService* const service_;
  PullLane* lane_ = nullptr;  // Of its kind; known from Start on.
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const reply_;
  const std::thread::id start_thread_ = std::this_thread::get_id();
  bool starting_ = true;  // Only that thread reads it.
  PullTicket ticket_ = kNoTicket;
  bool admitted_ = false;
  uint64_t request_bytes_ = 0;  // Reserved, like reply_bytes_.
  uint64_t reply_bytes_ = 0;
  int64_t resumed_us_;      // When handling began, or began again after the hold.
  int64_t handled_us_ = 0;  // Before that.
  wire::PullRequest request_;
};

// Runs on a handler thread from decoding on: the core may apply whole steps before it returns.
class ParameterServerService::PushCall final : public grpc::ServerUnaryReactor {
 public:
  PushCall(ParameterServerService* service, grpc::ByteBuffer* reply);
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

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_RPC_DATA_CALLS_H_
