#include "tests/benchmarks/echo.h"

#include <grpc/slice.h>

#include <cstring>
#include <thread>

#include "common/base/check.h"
#include "common/base/process.h"
#include "common/net/grpc_server.h"
#include "common/net/rpc.h"
#include "proto/parameter_server.grpc.pb.h"

namespace thermocline {
namespace {

grpc::ByteBuffer MessageOf(const std::vector<uint8_t>& bytes) {
  const grpc::Slice slice(grpc_slice_malloc(bytes.size()), grpc::Slice::STEAL_REF);
  std::memcpy(const_cast<uint8_t*>(slice.begin()), bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

void CopyOut(const grpc::ByteBuffer& message, uint8_t* to) {
  std::vector<grpc::Slice> slices;
  CHECK(message.Dump(&slices).ok());
  for (const grpc::Slice& slice : slices) {
    std::memcpy(to, slice.begin(), slice.size());
    to += slice.size();
  }
}

class EchoService final
    : public ParameterServer::WithRawCallbackMethod_Pull<ParameterServer::Service> {
 public:
  EchoService(EchoKind kind, size_t reply_bytes)
      : kind_(kind), reply_bytes_(reply_bytes, 'e'), reply_(MessageOf(reply_bytes_)) {}
  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                                 grpc::ByteBuffer* reply) override {
    *reply = kind_ == EchoKind::kDelivered ? MessageOf(reply_bytes_) : reply_;
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const EchoKind kind_;
  const std::vector<uint8_t> reply_bytes_;
  const grpc::ByteBuffer reply_;
};

}  // namespace

int ServeEcho(EchoKind kind, size_t reply_bytes, int max_message_bytes,
              const std::string& port_file) {
  EchoService service(kind, reply_bytes);
  GrpcServer::Options options;
  options.max_message_bytes = max_message_bytes;
  const auto server = GrpcServer::Start(options, {&service});
  absl::Status status = server.status();
  if (status.ok()) status = WritePortFile(port_file, (*server)->address());
  if (!status.ok()) {
    LogLine(status.message());
    return 1;
  }
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

EchoClient::EchoClient(EchoKind kind, const std::string& address, int channels,
                       int max_message_bytes, size_t request_bytes)
    : kind_(kind), request_bytes_(request_bytes, 'q'), request_(MessageOf(request_bytes_)) {
  for (int i = 0; i < channels; ++i) {
    stubs_.push_back(std::make_unique<grpc::GenericStub>(
        OpenChannel(address, grpc::InsecureChannelCredentials(), max_message_bytes)));
  }
}

void EchoClient::Call(uint8_t* reply_bytes, std::function<void(absl::Status)> done) {
  struct InFlight {
    grpc::ClientContext context;
    grpc::ByteBuffer request, reply;
  };
  auto* call = new InFlight;
  call->request = kind_ == EchoKind::kDelivered ? MessageOf(request_bytes_) : request_;
  const uint32_t turn = next_stub_.fetch_add(1, std::memory_order_relaxed);
  stubs_[turn % stubs_.size()]->UnaryCall(
      &call->context, "/thermocline.ParameterServer/Pull", grpc::StubOptions(), &call->request,
      &call->reply, [this, call, reply_bytes, done = std::move(done)](grpc::Status status) {
        if (status.ok() && kind_ == EchoKind::kDelivered) CopyOut(call->reply, reply_bytes);
        delete call;
        done(FromGrpcStatus(status));
      });
}

}  // namespace thermocline
