// Both ends of our gRPC calls use this: conversion of statuses, credentials (mutual TLS from PEM
// files, or plain text on loopback), and gRPC's settings for the data plane.
#ifndef THERMOCLINE_COMMON_NET_RPC_H_
#define THERMOCLINE_COMMON_NET_RPC_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/net/tls_files.h"

namespace thermocline {

// absl::Status to grpc::Status and back: the only conversion between the two. The codes are the
// same numbers in both.
//
// A message travels in HTTP/2 metadata, which peers limit to 8 KiB; longer ones are truncated.
inline constexpr size_t kMaxStatusMessageBytes = 2048;

grpc::Status ToGrpcStatus(const absl::Status& status);
// gRPC ends a call whose peer disconnects with INTERNAL and no text: that becomes kUnavailable, as
// for other broken connections. Our own programs always send a text.
absl::Status FromGrpcStatus(const grpc::Status& status);
// The same of a call that its caller has not cancelled. A process that ends cancels the calls that
// it has not answered: that becomes kUnavailable, as where a signal kills it.
absl::Status FromGrpcStatusOfAnswer(const grpc::Status& status);

// The same code, with "context: " before the message. An OK status stays as it is.
absl::Status WithContext(const absl::Status& status, absl::string_view context);

// Plain-text credentials where `files` is empty.
// Errors: those of ReadTlsFiles.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files);
// The server demands a client certificate and verifies it; what a client may call depends on the
// role in it (roles.h). Clients of other jobs than `job` are refused; "": than our own
// certificate's, where it names one. Also kInvalidArgument: our own certificate is of another job.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files, std::string job = "");

// Closed by default: plain text is for loopback, unless `insecure` says otherwise.
// Errors: kInvalidArgument (says what would be needed).
absl::Status CheckMayListen(const std::string& address, const TlsFiles& files, bool insecure);

// Whether `host` means the loopback network, which no other machine reaches: a name or an address
// without a port; IPv6 with brackets or without. A name that only looks like an address of the
// loopback network ("127.example.org") is not one.
bool IsLoopbackHost(absl::string_view host);

// The largest message by default.
inline constexpr int kDefaultMaxMessageBytes = 4 << 20;
// gRPC's own limit is higher by this much, so that a message a little over ours gets our own error,
// which names the request.
inline constexpr int kMessageSlackBytes = 64 << 10;

// Keeps gRPC's own lines off stderr, unless GRPC_VERBOSITY is in the environment (ERROR, INFO,
// DEBUG), since users can act on our errors, not on these lines. Called by a program's main. With
// `logs_handshakes`, a failed TLS handshake is logged, at most once in ten seconds; for processes
// that serve.
void KeepGrpcQuiet(bool logs_handshakes = false);

grpc::ChannelArguments DataPlaneArguments(int max_message_bytes);

// A channel with a connection of its own, shared with no other channel to the same address.
// Connecting starts with the first call.
std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    int max_message_bytes);

void SetDataPlaneOptions(int max_message_bytes, grpc::ServerBuilder* builder);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_RPC_H_
