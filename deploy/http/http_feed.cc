#include "deploy/http/http_feed.h"

#include <netdb.h>
#include <netinet/in.h>
#include <openssl/rand.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/disk/file_list.h"
#include "common/job/resolved_job.h"
#include "common/net/certificates.h"
#include "common/net/host_port.h"
#include "common/net/rpc.h"
#include "common/net/tls_files.h"
#include "deploy/http/host_names.h"
#include "deploy/http/monitor_pipe.h"

namespace thermocline {
namespace {

constexpr size_t kTokenBytes = 32;
constexpr int kBacklog = 64;

// Closes a descriptor unless it is given away.
class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status CannotListen(const std::string& address, int error) {
  return absl::UnavailableError(
      absl::StrCat("can't serve the job's page at ", address, " (--http): ", std::strerror(error),
                   error == EADDRINUSE ? "; port 0 takes a free one" : ""));
}

// A listening socket. *port: its own.
absl::StatusOr<int> Listen(const std::string& address, uint16_t* port) {
  ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(address, "to serve the job's page at"));
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int failed =
      getaddrinfo(where.host.c_str(), absl::StrCat(where.port).c_str(), &hints, &found);
  if (failed != 0) {
    return absl::UnavailableError(absl::StrCat("can't serve the job's page at ", address,
                                               " (--http): ", gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  OwnedFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
      bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
    return CannotListen(address, errno);
  }
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return CannotListen(address, errno);
  }
  *port = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  return fd.Release();
}

// The token of the run, which stays the same when it is resumed.
absl::StatusOr<std::string> TokenIn(const std::string& path) {
  std::ifstream file(path);
  if (!file && errno != ENOENT) {
    return absl::UnavailableError(absl::StrCat("can't read ", path, ": ", std::strerror(errno)));
  }
  if (file) {
    std::string token;
    std::getline(file, token);
    if (token.size() == 2 * kTokenBytes &&
        std::all_of(token.begin(), token.end(), absl::ascii_isxdigit)) {
      return token;
    }
    return absl::DataLossError(
        absl::StrCat(path, " holds no token of the job's page; remove it to get a new one"));
  }
  unsigned char bytes[kTokenBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) {
    return absl::UnavailableError("the system gives no random bytes for the page's token");
  }
  const std::string token = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)));
  RETURN_IF_ERROR(WritePrivateFile(path, token + "\n", /*replaces=*/false));
  return token;
}

// The names by which readers may call the server, besides those that the job allows.
std::vector<std::string> HostNamesOf(const std::string& host) {
  if (IsLoopbackHost(host)) return {host, "localhost", "127.0.0.1", "::1"};
  std::vector<std::string> names = NamesOfThisHost();
  names.push_back(host);
  return names;
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

absl::StatusOr<std::unique_ptr<HttpFeed>> HttpFeed::Open(const Job& job,
                                                         const RunDirectory& directory) {
  const Http& http = job.cluster().http();
  ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(http.address(), "to serve the page at"));
  const TlsFiles tls = TlsFilesOf(job.cluster().tls(), Role::kController);
  if (!tls.empty()) RETURN_IF_ERROR(ReadTlsFiles(tls, TlsUse::kServer).status());
  // One that a killed controller has left may name a port that is another program's now.
  RETURN_IF_ERROR(directory.Remove(kHttpFile));
  uint16_t port = 0;
  ASSIGN_OR_RETURN(const int listener, Listen(http.address(), &port));
  std::unique_ptr<HttpFeed> feed(new HttpFeed(directory, listener));
  MonitorSetup& setup = feed->setup_;
  setup.set_job(job.name());
  setup.set_run_dir(AbsolutePath(directory.path()));
  setup.set_address(JoinHostPort(where.host, port));
  setup.set_certificate(tls.certificate);
  setup.set_private_key(tls.private_key);
  setup.set_ca(tls.ca);
  std::vector<std::string> names = HostNamesOf(where.host);
  names.insert(names.end(), http.allowed_host().begin(), http.allowed_host().end());
  for (const std::string& name : names) {
    setup.add_host_names(absl::AsciiStrToLower(WithoutBrackets(name)));
  }
  ASSIGN_OR_RETURN(*setup.mutable_token(), TokenIn(feed->token_file()));
  const std::string name = IsWildcard(where.host) ? HostName() : where.host;
  feed->url_ = absl::StrCat(tls.empty() ? "http://" : "https://", JoinHostPort(name, port), "/");
  const nlohmann::ordered_json file = {{"address", setup.address()},
                                       {"url", feed->url_},
                                       {"token_file", AbsolutePath(feed->token_file())}};
  RETURN_IF_ERROR(directory.Write(
      kHttpFile,
      file.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"));
  RETURN_IF_ERROR(feed->StartChild());
  feed->sender_ = MakeThread([raw = feed.get()] { raw->Send(); });
  return feed;
}

HttpFeed::~HttpFeed() {
  {
    absl::MutexLock lock(&mutex_);
    stops_ = true;
    if (connection_ >= 0) shutdown(connection_, SHUT_RDWR);  // The sender may wait for the child.
  }
  if (sender_.joinable()) sender_.join();
  child_.reset();
  for (const int fd : {connection_, next_connection_, fd_}) {
    if (fd >= 0) close(fd);
  }
  directory_.Remove(kHttpFile).IgnoreError();  // The file does no harm.
}

std::string HttpFeed::UrlWithToken() const { return absl::StrCat(url_, "?token=", setup_.token()); }

void HttpFeed::OnStart(const ProcessId& id, const std::string& host) {
  absl::MutexLock lock(&mutex_);
  state_.OnStart(id, host.empty() ? HostName() : host);
  has_news_ = true;
}

void HttpFeed::OnEnd(const ProcessId& id, bool is_done) {
  absl::MutexLock lock(&mutex_);
  state_.OnEnd(id, is_done);
  has_news_ = true;
}

void HttpFeed::OnEvent(const nlohmann::ordered_json& event) {
  absl::MutexLock lock(&mutex_);
  state_.OnEvent(event);
  // It goes with the next answers of processes, which come once a second, or with their ends.
}

void HttpFeed::OnStats(const std::vector<ServerReport>& servers,
                       const std::vector<WorkerReport>& workers, uint64_t checkpoint_bytes) {
  absl::MutexLock lock(&mutex_);
  state_.OnStats(servers, workers);
  state_.OnCheckpointBytes(checkpoint_bytes);
  has_news_ = true;
}

std::optional<std::string> HttpFeed::Look() {
  const absl::Duration now = watch_.Elapsed();
  if (child_.has_value()) {
    if (!child_->HasEnded()) return std::nullopt;
    const std::string how = child_->DescribeEnd();
    child_.reset();
    if (now - started_at_ > kLongLife) pause_ = kFirstPause;
    start_at_ = now + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    if (std::exchange(has_told_, true)) return std::nullopt;
    return absl::StrCat("the process that serves the job's page ", how, " (",
                        directory_.File(kHttpLog), "); it is started again, and the job goes on");
  }
  if (now < start_at_) return std::nullopt;
  const absl::Status started = StartChild();
  if (started.ok()) return std::nullopt;
  start_at_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  return std::nullopt;
}

absl::Status HttpFeed::StartChild() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("no socket: ", std::strerror(errno)));
  }
  OwnedFd own(ends[0]), of_child(ends[1]);
  MonitorMessage message;
  *message.mutable_setup() = setup_;
  // It fits into the socket's buffer, so that this does not wait for the child.
  RETURN_IF_ERROR(SendMonitorMessage(own.get(), message, fd_));
  ChildProcessOptions options;
  options.name = "the process that serves the job's page";
  options.command = {ThisProgram(), "http-child"};
  options.log_path = directory_.File(kHttpLog);
  options.inherited_fd = of_child.get();
  options.ignores_term = true;  // An engine sends it to all; the child ends with the controller.
  options.closes_others = true;
  ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(options));
  child_.emplace(std::move(child));
  started_at_ = watch_.Elapsed();
  absl::MutexLock lock(&mutex_);
  if (connection_ >= 0) shutdown(connection_, SHUT_RDWR);  // The sender closes it.
  if (next_connection_ >= 0) close(next_connection_);
  next_connection_ = own.Release();
  return absl::OkStatus();
}

// Sends the newest snapshot and leaves out those before it that there was no time for.
void HttpFeed::Send() {
  while (true) {
    MonitorMessage message;
    int connection = -1;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &HttpFeed::HasWork));
      if (stops_) return;
      if (next_connection_ >= 0) {
        if (connection_ >= 0) close(connection_);
        connection_ = std::exchange(next_connection_, -1);
      }
      *message.mutable_snapshot() = state_.snapshot();
      has_news_ = false;
      connection = connection_;
    }
    if (SendMonitorMessage(connection, message).ok()) continue;
    // The child is gone; Look starts the next one.
    absl::MutexLock lock(&mutex_);
    close(connection_);
    connection_ = -1;
  }
}

}  // namespace thermocline
