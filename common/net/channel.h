// gRPC's settings for the data plane, the same on both ends, and for what it prints.
#ifndef THERMOCLINE_COMMON_NET_CHANNEL_H_
#define THERMOCLINE_COMMON_NET_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

namespace thermocline {

// Largest message by default: tables, rows and all.
inline constexpr int kDefaultMaxMessageBytes = 4 << 20;
// What gRPC itself lets through beyond the limit, so that a message a little over it gets our own
// answer, which names the request.
inline constexpr int kMessageSlackBytes = 64 << 10;

// From now on gRPC's own lines don't get to stderr: our errors say what a user can do something
// about. With GRPC_VERBOSITY in the environment (ERROR, INFO, DEBUG) they do. For a program's main.
void KeepGrpcQuiet();

grpc::ChannelArguments DataPlaneArguments(int max_message_bytes);

// A channel with a connection of its own, shared with no other channel to the same address.
// Connecting starts with the first call.
std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    int max_message_bytes);

void SetDataPlaneOptions(int max_message_bytes, grpc::ServerBuilder* builder);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_CHANNEL_H_
