// A core behind a gRPC server on a free port, and the requests that clients send it.
#ifndef THERMOCLINE_SERVER_RPC_TESTING_SERVED_CORE_H_
#define THERMOCLINE_SERVER_RPC_TESTING_SERVED_CORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/scheduler.h"
#include "common/net/control_client.h"
#include "common/net/grpc_server.h"
#include "common/net/rpc.h"
#include "common/wire/messages.h"
#include "gtest/gtest.h"
#include "server/rpc/parameter_server_service.h"

namespace thermocline::testing_rpc {

inline constexpr absl::Duration kTimeout = absl::Seconds(30);
inline constexpr int kDim = 4;

// One server and table 3, dim kDim, SGD.
ConfigureRequest JobOf(uint32_t workers);
PullRequest PullOf(int64_t step, const std::vector<Key>& keys);
// values: [keys, kDim]
PushRequest PushOf(int64_t step, const std::vector<Key>& keys, const std::vector<float>& values);
// Its message contains all of `parts`.
void ExpectError(const absl::Status& status, absl::StatusCode code,
                 const std::vector<std::string>& parts);
// float32, packed.
std::vector<float> ToFloats(const std::string& bytes);

// A client of a server.
struct RpcClient {
  RpcClient(const std::string& address, const TlsFiles& tls)
      : channel(OpenChannel(address, *MakeChannelCredentials(tls), 64 << 20)),
        stub(ParameterServer::NewStub(channel)),
        control(*ControlClient::Create(address, tls)) {}

  absl::Status Pull(const PullRequest& request, PullReply* reply) {
    grpc::ClientContext context;
    return FromGrpcStatus(stub->Pull(&context, request, reply));
  }
  absl::Status Pull(const PullRequest& request) {
    PullReply reply;
    return Pull(request, &reply);
  }
  absl::Status Push(const PushRequest& request, PushReply* reply) {
    grpc::ClientContext context;
    return FromGrpcStatus(stub->Push(&context, request, reply));
  }
  absl::Status Push(const PushRequest& request) {
    PushReply reply;
    return Push(request, &reply);
  }

  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<ParameterServer::Stub> stub;
  const std::unique_ptr<ControlClient> control;
};

// A served core. `tls` of the client may differ from the server's.
struct ServedCore {
  explicit ServedCore(ServiceOptions service_options = {}, TlsFiles server_tls = {},
                      TlsFiles client_tls = {}, ServerLimits limits = {},
                      Scheduler* other_scheduler = nullptr) {
    core = std::make_unique<ServerCore>(limits,
                                        other_scheduler != nullptr ? other_scheduler : &scheduler);
    service = std::make_unique<ParameterServerService>(service_options, core.get());
    GrpcServer::Options options;
    options.tls = server_tls;
    options.max_message_bytes = service_options.max_message_bytes;
    options.service = ParameterServer::service_full_name();
    options.memory_bytes = service_options.max_bytes_in_flight();
    auto started = GrpcServer::Start(options, {service.get()});
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    client = std::make_unique<RpcClient>(server->address(), client_tls);
    channel = client->channel;
    stub = client->stub.get();
    control = client->control.get();
  }
  ~ServedCore() {
    core->Shutdown();
    server->Shutdown(0);
  }

  absl::Status Configure(const ConfigureRequest& request) {
    return control->Configure(request, kTimeout).status();
  }
  absl::Status Pull(const PullRequest& request, PullReply* reply) {
    return client->Pull(request, reply);
  }
  absl::Status Pull(const PullRequest& request) { return client->Pull(request); }
  absl::Status Push(const PushRequest& request, PushReply* reply) {
    return client->Push(request, reply);
  }
  absl::Status Push(const PushRequest& request) { return client->Push(request); }

  // Waits until `pulls` pulls are held; each poll is a round trip.
  void AwaitPullsWaiting(uint64_t pulls) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (true) {
      const auto stats = control->GetStats(kTimeout);
      ASSERT_TRUE(stats.ok()) << stats.status();
      if (stats->pulls_waiting() == pulls) return;
      ASSERT_LT(absl::Now(), deadline) << stats->pulls_waiting() << " pulls wait, not " << pulls;
    }
  }

  ThreadScheduler scheduler;
  std::unique_ptr<ServerCore> core;
  std::unique_ptr<ParameterServerService> service;
  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<RpcClient> client;
  // These belong to `client`.
  std::shared_ptr<grpc::Channel> channel;
  ParameterServer::Stub* stub = nullptr;
  ControlClient* control = nullptr;
};

}  // namespace thermocline::testing_rpc

#endif  // THERMOCLINE_SERVER_RPC_TESTING_SERVED_CORE_H_
