#include "worker/exchange/local_socket.h"

#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/net/rpc.h"

namespace thermocline {
namespace {

constexpr absl::string_view kExchangeMethod = "/thermocline.Worker/Exchange";

// The process of a younger socket may be about to listen.
constexpr time_t kStaleAfterSeconds = 60;

// Whether a URI's path may have this character unescaped.
bool IsPlain(char c) {
  return absl::ascii_isalnum(c) || absl::string_view("-._~/:@+,=").find(c) != std::string::npos;
}

absl::Status CheckFolder(const std::string& folder) {
  struct stat found, parent;
  const std::string above = std::filesystem::path(folder).parent_path().string();
  if (lstat(folder.c_str(), &found) != 0 || stat(above.c_str(), &parent) != 0) {
    return absl::NotFoundError(absl::StrCat(folder, ": ", std::strerror(errno)));
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(folder, " is no folder that only user ", geteuid(), " may enter"));
  }
  // No other user may be able to put another folder in its place.
  const bool is_owned = parent.st_uid == geteuid() || parent.st_uid == 0;
  if (!is_owned || ((parent.st_mode & 022) != 0 && (parent.st_mode & S_ISVTX) == 0)) {
    return absl::PermissionDeniedError(absl::StrCat("others may rename folders in ", above));
  }
  return absl::OkStatus();
}

// Returns 0 if a process listens there, else the error of connecting.
int TryToConnect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const bool is_connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const int error = is_connected ? 0 : errno;
  close(fd);
  return error == EAGAIN ? 0 : error;  // EAGAIN: its queue is full of connections to be accepted.
}

// Returns the end of the names of sockets of this network namespace: its inode and the host's boot,
// so that hosts may share a folder.
absl::StatusOr<std::string> Place() {
  std::error_code error;
  // The link reads "net:[4026531840]".
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("/proc/self/ns/net: ", error.message()));
  }
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) {
    return absl::FailedPreconditionError("/proc/sys/kernel/random/boot_id can't be read");
  }
  return absl::StrCat("-", absl::StripSuffix(absl::StripPrefix(space, "net:["), "]"), "-",
                      boot.substr(0, 8));
}

// Removes sockets of this network namespace whose processes are gone. Those of other hosts stay,
// since this host can't see whether their processes are there.
void RemoveStale(const std::string& folder, const std::string& place) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    struct stat found;
    if (!absl::EndsWith(path, place) || lstat(path.c_str(), &found) != 0) continue;
    if (!S_ISSOCK(found.st_mode) || found.st_mtime + kStaleAfterSeconds > time(nullptr)) continue;
    if (TryToConnect(path) == ECONNREFUSED) unlink(path.c_str());
  }
}

// The plugin for reflection would come with threads of its own.
class WithoutPlugins final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

class Refusal final : public GrpcExchangeServer::Reactor {
 public:
  explicit Refusal(const absl::Status& why) { Finish(ToGrpcStatus(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

class LocalSocket::Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(GrpcExchangeServer* exchange) : exchange_(*exchange) {}
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    const absl::string_view method = context->method();
    if (method == kExchangeMethod) return exchange_.Exchange(context);
    return new Refusal(absl::PermissionDeniedError(
        absl::StrCat(method.substr(method.rfind('/') + 1),
                     " is not for the socket between workers, which is for Exchange")));
  }

 private:
  GrpcExchangeServer& exchange_;
};

std::string LocalSocketFolder() {
  const char* const folder = std::getenv("TMPDIR");
  return absl::StrCat(folder == nullptr || *folder == '\0' ? "/tmp" : folder,
                      "/thermocline-exchange-", geteuid());
}

absl::StatusOr<std::string> LocalSocketPath(const std::string& folder, const std::string& address) {
  ASSIGN_OR_RETURN(const std::string place, Place());
  // An IPv6 address loses its brackets and its zone.
  const std::string name = absl::StrReplaceAll(address, {{"[", ""}, {"]", ""}, {"%", "-"}});
  const std::string path = absl::StrCat(folder, "/", name, place);
  const bool is_plain = std::all_of(path.begin(), path.end(), IsPlain);
  if (is_plain && path.size() < sizeof(sockaddr_un::sun_path)) return path;
  return absl::FailedPreconditionError(
      absl::StrCat("'", path, "' is no path of a socket: ",
                   is_plain ? absl::StrCat("it has ", path.size(), " bytes, at most ",
                                           sizeof(sockaddr_un::sun_path) - 1, " fit")
                            : "it has other characters than letters, digits and -._~/:@+,="));
}

absl::Status CheckLocalSocket(const std::string& path) {
  RETURN_IF_ERROR(CheckFolder(std::filesystem::path(path).parent_path().string()));
  if (TryToConnect(path) == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no process listens on ", path));
}

std::string LocalSocketTarget(const std::string& path) { return absl::StrCat("unix:", path); }

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Listen(const std::string& folder,
                                                                 const std::string& address,
                                                                 GrpcExchangeServer* exchange) {
  ASSIGN_OR_RETURN(std::string path, LocalSocketPath(folder, address));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(
        absl::StrCat("can't make the folder ", folder, ": ", std::strerror(errno)));
  }
  RETURN_IF_ERROR(CheckFolder(folder));
  ASSIGN_OR_RETURN(const std::string place, Place());
  RemoveStale(folder, place);
  std::unique_ptr<LocalSocket> socket(new LocalSocket(std::move(path), exchange));
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<WithoutPlugins>());
  // gRPC removes a socket that is there already: a process that had the address before left it.
  builder.AddListeningPort(LocalSocketTarget(socket->path()), grpc::InsecureServerCredentials());
  SetDataPlaneOptions(kDefaultMaxMessageBytes, &builder);
  builder.RegisterCallbackGenericService(socket->service_.get());
  socket->server_ = builder.BuildAndStart();
  if (socket->server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("can't listen on ", socket->path()));
  }
  return socket;
}

LocalSocket::LocalSocket(std::string path, GrpcExchangeServer* exchange)
    : path_(std::move(path)), service_(std::make_unique<Service>(exchange)) {}

LocalSocket::~LocalSocket() {
  if (server_ != nullptr) Shutdown(0);
}

void LocalSocket::Shutdown(int grace_ms) {
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms));
  server_->Wait();
}

}  // namespace thermocline
