#include "common/net/rpc.h"

#include <arpa/inet.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <netinet/in.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/net/roles.h"

namespace thermocline {
namespace {

// address: host:port, where the host of an IPv6 address is bracketed.
bool IsOnLoopback(absl::string_view address) {
  const absl::string_view host = address.substr(0, address.rfind(':'));
  return IsLoopbackHost(host) && (!absl::StrContains(host, ':') || absl::StartsWith(host, "["));
}

constexpr std::chrono::seconds kHandshakeLogPeriod(10);

// How often files are read again.
constexpr unsigned kTlsRefreshSeconds = 2;

using TlsWatcher = grpc::experimental::FileWatcherCertificateProvider;

// Reads the files again and again, on a thread of its own; connections that are made later use what
// they hold then. One for all that use the same files.
std::shared_ptr<TlsWatcher> WatchTlsFiles(const TlsFiles& files) {
  using Key = std::tuple<std::string, std::string, std::string>;
  struct Watchers {
    absl::Mutex mutex;
    std::map<Key, std::weak_ptr<TlsWatcher>> of_files ABSL_GUARDED_BY(mutex);
  };
  static Watchers& watchers = *new Watchers;
  absl::MutexLock lock(&watchers.mutex);
  std::weak_ptr<TlsWatcher>& kept =
      watchers.of_files[Key(files.certificate, files.private_key, files.ca)];
  std::shared_ptr<TlsWatcher> watcher = kept.lock();
  if (watcher == nullptr) {
    watcher = std::make_shared<TlsWatcher>(files.private_key, files.certificate, files.ca,
                                           kTlsRefreshSeconds);
    kept = watcher;
  }
  return watcher;
}

// gRPC tells of a failed handshake nowhere else, and in these words: "Handshake failed with fatal
// error SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed."
void LogFailedHandshake(gpr_log_func_args* line) {
  absl::string_view why = line->message;
  if (!absl::StartsWith(why, "Handshake failed")) return;
  using std::chrono::steady_clock;
  static std::atomic<steady_clock::time_point> next{steady_clock::time_point()};
  const steady_clock::time_point now = steady_clock::now();
  steady_clock::time_point expected = next.load();
  if (now < expected || !next.compare_exchange_strong(expected, now + kHandshakeLogPeriod)) return;
  why = absl::StripSuffix(why.substr(why.rfind(':') + 1), ".");
  LogLine(absl::StrCat("a TLS handshake failed: ", why, "; the other side's error says more"));
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
  // gRPC's words for a connection that nothing answers.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrReplaceAll(status.error_message(),
                                          {{"tcp handshaker shutdown",
                                            "no answer; does a firewall close the port?"}}));
}

absl::Status FromGrpcStatusOfAnswer(const grpc::Status& status) {
  const absl::Status error = FromGrpcStatus(status);
  if (!absl::IsCancelled(error)) return error;
  return absl::UnavailableError("the process at the other end ended the call without an answer");
}

absl::Status WithContext(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureChannelCredentials();
  RETURN_IF_ERROR(ReadTlsFiles(files, TlsUse::kClient).status());
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(WatchTlsFiles(files));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files, std::string job) {
  if (files.empty()) return grpc::InsecureServerCredentials();
  ASSIGN_OR_RETURN(const TlsTexts texts, ReadTlsFiles(files, TlsUse::kServer));
  if (const auto own = IdentityOf(texts.certificate)) {
    if (job.empty()) job = own->job;
    if (job != own->job) {
      return absl::InvalidArgumentError(absl::StrCat("the TLS certificate '", files.certificate,
                                                     "' is of job '", own->job, "', not of job '",
                                                     job, "'"));
    }
  }
  grpc::experimental::TlsServerCredentialsOptions options(WatchTlsFiles(files));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  auto credentials = grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(MakeDoor(std::move(job)));
  return credentials;
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

void KeepGrpcQuiet(bool logs_handshakes) {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function(logs_handshakes ? LogFailedHandshake : [](gpr_log_func_args*) {});
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
  // gRPC takes its threads down with the last channel, and waits for them: for ever where the
  // system did not let it make one. This channel connects to nothing, and stays.
  [[maybe_unused]] static const auto* const kept = new std::shared_ptr<grpc::Channel>(
      grpc::CreateChannel("127.0.0.1:0", grpc::InsecureChannelCredentials()));
  return grpc::CreateCustomChannel(address, credentials, DataPlaneArguments(max_message_bytes));
}

void SetDataPlaneOptions(int max_message_bytes, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(max_message_bytes + kMessageSlackBytes);
  builder->SetMaxSendMessageSize(-1);
  // Without this, Linux lets two servers share a port, and each gets some of the connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Peers with a stream that may be silent for long ask whether we are still there.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
}

}  // namespace thermocline
