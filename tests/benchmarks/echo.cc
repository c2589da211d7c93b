#include "tests/benchmarks/echo.h"

#include <grpc/slice.h>

#include <cstring>
#include <thread>

#include "common/check.h"
#include "common/net/channel.h"
#include "common/net/grpc_server.h"
#include "common/net/log.h"
#include "common/net/status.h"
#include "proto/parameter_server.grpc.pb.h"

namespace thermocline {
namespace {

grpc::ByteBuffer Filled(size_t bytes) {
  const grpc::Slice slice(grpc_slice_malloc(bytes), grpc::Slice::STEAL_REF);
  std::memset(const_cast<uint8_t*>(slice.begin()), 'e', bytes);
  return grpc::ByteBuffer(&slice, 1);
}

class EchoService final
    : public ParameterServer::WithRawCallbackMethod_Pull<ParameterServer::Service> {
 public:
  explicit EchoService(size_t reply_bytes) : reply_(Filled(reply_bytes)) {}
  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                                 grpc::ByteBuffer* reply) override {
    *reply = reply_;  // Shares the slice.
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const grpc::ByteBuffer reply_;
};

}  // namespace

int ServeEcho(size_t reply_bytes, int max_message_bytes, const std::string& port_file) {
  EchoService service(reply_bytes);
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

EchoClient::EchoClient(const std::string& address, int channels, int max_message_bytes,
                       size_t request_bytes)
    : request_(Filled(request_bytes)) {
  for (int i = 0; i < channels; ++i) {
    stubs_.push_back(std::make_unique<grpc::GenericStub>(
        OpenChannel(address, grpc::InsecureChannelCredentials(), max_message_bytes)));
  }
}

void EchoClient::Call(std::function<void(absl::Status, size_t)> done) {
  struct InFlight {
    grpc::ClientContext context;
    grpc::ByteBuffer request, reply;
  };
  auto* call = new InFlight;
  call->request = request_;
  const uint32_t turn = next_stub_.fetch_add(1, std::memory_order_relaxed);
  stubs_[turn % stubs_.size()]->UnaryCall(
      &call->context, "/thermocline.ParameterServer/Pull", grpc::StubOptions(), &call->request,
      &call->reply, [call, done = std::move(done)](grpc::Status status) {
        const size_t bytes = status.ok() ? call->reply.Length() : 0;
        delete call;
        done(FromGrpcStatus(status), bytes);
      });
}

}  // namespace thermocline
