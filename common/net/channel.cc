#include "common/net/channel.h"

#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>

#include <cstdlib>

namespace thermocline {

void KeepGrpcQuiet() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

grpc::ChannelArguments DataPlaneArguments(int max_message_bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_message_bytes + kMessageSlackBytes);
  arguments.SetMaxSendMessageSize(-1);  // Checked by us, with a better message.
  // One connection per channel: by default channels to one address share one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A server that restarts should be found again in tenths of a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Despite its name: how long one attempt to connect may take. TLS on a busy machine needs more
  // than the back-off.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  // Retries are ours: they know which requests may be repeated.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return arguments;
}

std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    int max_message_bytes) {
  return grpc::CreateCustomChannel(address, credentials, DataPlaneArguments(max_message_bytes));
}

void SetDataPlaneOptions(int max_message_bytes, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(max_message_bytes + kMessageSlackBytes);
  builder->SetMaxSendMessageSize(-1);
  // Without this, Linux lets two servers share a port, and each gets some of the connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace thermocline
