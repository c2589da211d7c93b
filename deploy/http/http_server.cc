#include "deploy/http/http_server.h"

#include <fcntl.h>
#include <httplib.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/base/timing.h"
#include "common/net/x509.h"

namespace thermocline {
namespace {

// How long the end of a connection waits for the client to take the last bytes.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);  // Without file descriptors.

using SslPtr = std::unique_ptr<SSL, x509::Freer<SSL_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, x509::Freer<SSL_CTX_free>>;

// Waits until `fd` is ready for `events` (POLLIN, POLLOUT). False: the time is over.
bool Await(int fd, short events, absl::Duration left) {  // NOLINT: poll's type
  pollfd ready = {fd, events, 0};
  const int64_t left_ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(left));
  return poll(&ready, 1, static_cast<int>(left_ms)) > 0;
}

// One connection as httplib reads and writes it. Its reads fail once the request has too many bytes
// or has taken too long, and its writes once the answer has.
class Connection final : public httplib::Stream {
 public:
  // `ssl` null: plain text. Both are the caller's.
  Connection(int fd, SSL* ssl, const HttpLimits& limits)
      : fd_(fd), ssl_(ssl), limits_(limits), bytes_left_(limits.request_bytes) {}

  bool Handshake() {
    return ssl_ == nullptr || Repeat([&] { return SSL_accept(ssl_); }, limits_.request_time) == 1;
  }

  bool is_readable() const override { return Await(fd_, POLLIN, Left(limits_.request_time)); }
  bool is_writable() const override { return Await(fd_, POLLOUT, Left(limits_.answer_time)); }

  // httplib asks for single bytes of headers.
  ssize_t read(char* data, size_t size) override {
    if (begin_ == end_) {
      const int wanted = static_cast<int>(std::min(sizeof(buffer_), bytes_left_));
      if (wanted == 0) return -1;
      const int got = ssl_ == nullptr ? ReadPlain(wanted)
                                      : Repeat([&] { return SSL_read(ssl_, buffer_, wanted); },
                                               limits_.request_time);
      if (got <= 0) return got;
      begin_ = 0;
      end_ = static_cast<size_t>(got);
      bytes_left_ -= end_;
    }
    const size_t taken = std::min(size, end_ - begin_);
    std::memcpy(data, buffer_ + begin_, taken);
    begin_ += taken;
    return static_cast<ssize_t>(taken);
  }

  // All or nothing.
  ssize_t write(const char* data, size_t size) override {
    for (size_t done = 0; done < size;) {
      const int wanted = static_cast<int>(std::min<size_t>(size - done, 1 << 20));
      const int sent =
          ssl_ == nullptr
              ? WritePlain(data + done, wanted)
              : Repeat([&] { return SSL_write(ssl_, data + done, wanted); }, limits_.answer_time);
      if (sent <= 0) return -1;
      done += static_cast<size_t>(sent);
    }
    return static_cast<ssize_t>(size);
  }

  // Lets the client take the last bytes: to close a socket with unread bytes resets it.
  void Close() {
    if (ssl_ != nullptr) SSL_shutdown(ssl_);
    ERR_clear_error();
    shutdown(fd_, SHUT_WR);
    const Stopwatch watch;
    char rest[4096];
    while (watch.Elapsed() < kLinger && Await(fd_, POLLIN, kLinger - watch.Elapsed())) {
      if (recv(fd_, rest, sizeof(rest), MSG_DONTWAIT) <= 0) break;
    }
  }

  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return fd_; }

 private:
  absl::Duration Left(absl::Duration limit) const { return limit - watch_.Elapsed(); }

  int ReadPlain(int wanted) {
    while (is_readable()) {
      const ssize_t got = recv(fd_, buffer_, static_cast<size_t>(wanted), MSG_DONTWAIT);
      if (got >= 0 || (errno != EAGAIN && errno != EINTR)) return static_cast<int>(got);
    }
    return -1;
  }
  int WritePlain(const char* data, int wanted) {
    while (is_writable()) {
      const ssize_t sent =
          send(fd_, data, static_cast<size_t>(wanted), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0 || (errno != EAGAIN && errno != EINTR)) return static_cast<int>(sent);
    }
    return -1;
  }
  // Calls an operation of OpenSSL, which does not block, until it is done or the time is over.
  template <typename Operation>
  int Repeat(const Operation& operation, absl::Duration limit) {
    while (true) {
      ERR_clear_error();
      const int result = operation();
      if (result > 0) return result;
      const int error = SSL_get_error(ssl_, result);
      const bool waits = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
      if (error == SSL_ERROR_ZERO_RETURN) return 0;
      if (!waits) return -1;
      if (!Await(fd_, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, Left(limit))) return -1;
    }
  }

  const int fd_;
  SSL* const ssl_;
  const HttpLimits& limits_;
  const Stopwatch watch_;
  size_t bytes_left_;
  char buffer_[4096];
  size_t begin_ = 0, end_ = 0;  // What of buffer_ is not read yet.
};

// What the client's certificate says, which the authority has signed.
std::optional<Identity> PeerOf(const SSL* ssl) {
  if (ssl == nullptr || SSL_get_verify_result(ssl) != X509_V_OK) return std::nullopt;
  X509* const certificate = SSL_get0_peer_certificate(ssl);
  if (certificate == nullptr) return std::nullopt;
  return IdentityOf(x509::ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); }));
}

std::optional<std::string> ParameterOf(const httplib::Request& request, const char* name) {
  if (!request.has_param(name)) return std::nullopt;
  return request.get_param_value(name);
}

HttpRequest RequestOf(const httplib::Request& from) {
  HttpRequest request;
  request.method = from.method;
  request.path = from.path;
  // A request with two of them is unclear, and shows none.
  const auto header = [&](const char* name) {
    return from.get_header_value_count(name) == 1 ? from.get_header_value(name) : std::string();
  };
  request.host = header("Host");
  request.authorization = header("Authorization");
  request.cookie = header("Cookie");
  request.token = ParameterOf(from, "token");
  request.cursor = ParameterOf(from, "cursor");
  request.peer = PeerOf(from.ssl);
  return request;
}

}  // namespace

// The certificates of the server, as their files are: they may be renewed in place.
class HttpServer::Tls {
 public:
  // Errors: those of ReadTlsFiles.
  static absl::StatusOr<std::unique_ptr<Tls>> Open(const TlsFiles& files) {
    const Times times = TimesOf(files);
    ASSIGN_OR_RETURN(ContextPtr context, MakeContext(files));
    return std::unique_ptr<Tls>(new Tls(files, times, std::move(context)));
  }

  // Null: there is no memory for one.
  SslPtr NewConnection() {
    absl::MutexLock lock(&mutex_);
    LookAtFiles();
    return SslPtr(SSL_new(context_.get()));
  }

 private:
  using Times = std::vector<std::filesystem::file_time_type>;
  static constexpr absl::Duration kLookPeriod = absl::Seconds(2);

  Tls(TlsFiles files, Times times, ContextPtr context)
      : files_(std::move(files)), times_(std::move(times)), context_(std::move(context)) {}

  static Times TimesOf(const TlsFiles& files) {
    Times times;
    std::error_code error;  // A file that is away for a moment has another time.
    for (const std::string& path : {files.certificate, files.private_key, files.ca}) {
      times.push_back(std::filesystem::last_write_time(path, error));
    }
    return times;
  }
  static absl::StatusOr<ContextPtr> MakeContext(const TlsFiles& files);
  // Files that can't be used leave what was there before, and are looked at again.
  void LookAtFiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (watch_.Elapsed() - looked_at_ < kLookPeriod) return;
    looked_at_ = watch_.Elapsed();
    Times times = TimesOf(files_);
    if (times == times_) return;
    absl::StatusOr<ContextPtr> context = MakeContext(files_);
    if (!context.ok()) return;
    context_ = *std::move(context);
    times_ = std::move(times);
  }

  const TlsFiles files_;
  const Stopwatch watch_;
  absl::Mutex mutex_;
  absl::Duration looked_at_ ABSL_GUARDED_BY(mutex_);
  Times times_ ABSL_GUARDED_BY(mutex_);
  ContextPtr context_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<ContextPtr> HttpServer::Tls::MakeContext(const TlsFiles& files) {
  RETURN_IF_ERROR(ReadTlsFiles(files, TlsUse::kServer).status());
  ContextPtr owned(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* const context = owned.get();
  RETURN_IF_ERROR(x509::Must(
      context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
          SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) == 1 &&
          SSL_CTX_use_PrivateKey_file(context, files.private_key.c_str(), SSL_FILETYPE_PEM) == 1 &&
          SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) == 1,
      "set TLS up"));
  SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(files.ca.c_str()));
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  return owned;
}

// httplib's reading of requests and writing of answers, without its sockets and threads.
class HttpServer::Parser : public httplib::Server {
 public:
  explicit Parser(HttpServer::Handler handler) {
    set_pre_routing_handler(
        [handler = std::move(handler)](const httplib::Request& from, httplib::Response& to) {
          HttpAnswer answer = handler(RequestOf(from));
          to.status = answer.status;
          for (const auto& [name, value] : answer.headers) to.set_header(name, value);
          if (answer.status != 204) to.set_content(std::move(answer.body), answer.type);
          return HandlerResponse::Handled;
        });
  }

  void Process(Connection* connection, const SSL* ssl) {
    bool is_closed = false;
    process_request(*connection, /*close_connection=*/true, is_closed,
                    [ssl](httplib::Request& request) {
                      request.ssl = ssl;
                      // Answers are whole, and are not compressed.
                      request.ranges.clear();
                      request.headers.erase("Accept-Encoding");
                    });
  }
};

HttpServer::HttpServer(int fd, std::unique_ptr<Tls> tls, const HttpLimits& limits, Handler handler)
    : fd_(fd),
      limits_(limits),
      tls_(std::move(tls)),
      parser_(std::make_unique<Parser>(std::move(handler))) {
  for (int i = 0; i < limits_.connections; ++i) {
    threads_.push_back(MakeThread([this] { Serve(); }));
  }
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(int fd, const TlsFiles& files,
                                                              const HttpLimits& limits,
                                                              Handler handler) {
  std::unique_ptr<Tls> tls;
  if (!files.empty()) {
    ASSIGN_OR_RETURN(tls, Tls::Open(files));
  }
  return std::unique_ptr<HttpServer>(
      new HttpServer(fd, std::move(tls), limits, std::move(handler)));
}

HttpServer::~HttpServer() {
  shutdown(fd_, SHUT_RDWR);  // It ends the accepts.
  for (std::thread& thread : threads_) thread.join();
  close(fd_);
}

void HttpServer::Serve() {
  while (true) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      AnswerOne(fd);
      close(fd);
    } else if (errno == EINVAL || errno == EBADF) {
      return;  // The server ends.
    } else {
      absl::SleepFor(kAcceptPause);
    }
  }
}

void HttpServer::AnswerOne(int fd) {
  SslPtr ssl;
  if (tls_ != nullptr) {
    ssl = tls_->NewConnection();
    if (ssl == nullptr || SSL_set_fd(ssl.get(), fd) != 1) return;
  }
  Connection connection(fd, ssl.get(), limits_);
  if (connection.Handshake()) parser_->Process(&connection, ssl.get());
  connection.Close();
}

}  // namespace thermocline
