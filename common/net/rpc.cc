#include "common/net/rpc.h"

#include <arpa/inet.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <netinet/in.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

struct TlsTexts {
  std::string certificate;
  std::string private_key;
  std::string ca;
};

absl::StatusOr<std::string> ReadPem(absl::string_view what, const std::string& path) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS needs a certificate, a private key and a CA: no ", what, " is named"));
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("cannot read the TLS ", what, " '", path, "'"));
  }
  if (!absl::StrContains(text.str(), "-----BEGIN ")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the TLS ", what, " '", path, "' is no PEM file"));
  }
  return text.str();
}

absl::StatusOr<TlsTexts> ReadTls(const TlsFiles& files) {
  TlsTexts texts;
  ASSIGN_OR_RETURN(texts.certificate, ReadPem("certificate", files.certificate));
  ASSIGN_OR_RETURN(texts.private_key, ReadPem("private key", files.private_key));
  ASSIGN_OR_RETURN(texts.ca, ReadPem("CA", files.ca));
  return texts;
}

// address: host:port, where the host of an IPv6 address is bracketed.
bool IsOnLoopback(absl::string_view address) {
  const absl::string_view host = address.substr(0, address.rfind(':'));
  return IsLoopbackHost(host) && (!absl::StrContains(host, ':') || absl::StartsWith(host, "["));
}

}  // namespace

static_assert(static_cast<int>(absl::StatusCode::kCancelled) == grpc::StatusCode::CANCELLED &&
              static_cast<int>(absl::StatusCode::kDeadlineExceeded) ==
                  grpc::StatusCode::DEADLINE_EXCEEDED &&
              static_cast<int>(absl::StatusCode::kUnavailable) == grpc::StatusCode::UNAVAILABLE &&
              static_cast<int>(absl::StatusCode::kDataLoss) == grpc::StatusCode::DATA_LOSS &&
              static_cast<int>(absl::StatusCode::kUnauthenticated) ==
                  grpc::StatusCode::UNAUTHENTICATED);

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view message = status.message();
  std::string text(message.substr(0, kMaxStatusMessageBytes));
  if (text.size() < message.size()) text += "...";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::INTERNAL && status.error_message().empty()) {
    return absl::UnavailableError("the call ended without an answer or a reason");
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status WithContext(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureChannelCredentials();
  ASSIGN_OR_RETURN(const TlsTexts texts, ReadTls(files));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = texts.ca;
  options.pem_private_key = texts.private_key;
  options.pem_cert_chain = texts.certificate;
  return grpc::SslCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureServerCredentials();
  ASSIGN_OR_RETURN(const TlsTexts texts, ReadTls(files));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = texts.ca;
  options.pem_key_cert_pairs.push_back({texts.private_key, texts.certificate});
  return grpc::SslServerCredentials(options);
}

absl::Status CheckMayListen(const std::string& address, const TlsFiles& files, bool insecure) {
  if (IsOnLoopback(address) || !files.empty() || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", address,
                   "' is not on loopback: anybody who reaches it could read and change the model. "
                   "Give a TLS certificate, private key and CA, or --insecure"));
}

bool IsLoopbackHost(absl::string_view host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, std::string(host).c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  in6_addr v6;
  return inet_pton(AF_INET6, std::string(host).c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

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
  // We retry ourselves, since only we know which requests may be repeated.
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
