#include "deploy/node/host_facts.h"

#include <limits.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "deploy/plan/machine.h"
#include "deploy/runner/node_table.h"
#include "deploy/runner/run_directory.h"

namespace thermocline {
namespace {

// The host of host:port, without the brackets of an IPv6 address.
absl::StatusOr<std::string> HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is no address of a controller; host:port is"));
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

}  // namespace

absl::Status CheckMayConnect(const std::string& controller, const TlsFiles& tls, bool insecure) {
  ASSIGN_OR_RETURN(const std::string host, HostOf(controller));
  if (IsLoopbackHost(host) || !tls.empty() || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", controller,
                   "' is not on loopback: anybody on the way could read and change what is "
                   "said. Give --tls-certificate, --tls-private-key and --tls-ca, or --insecure"));
}

absl::StatusOr<std::string> AddressTowards(const std::string& controller) {
  ASSIGN_OR_RETURN(const std::string host, HostOf(controller));
  const std::string port = controller.substr(controller.rfind(':') + 1);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(controller, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  const bool is_known = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  char text[NI_MAXHOST] = "";
  if (!is_known || getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr,
                               0, NI_NUMERICHOST) != 0) {
    return absl::UnavailableError(absl::StrCat("no way to ", controller, " (", std::strerror(error),
                                               "); --address names this host's address"));
  }
  return std::string(text);
}

absl::StatusOr<NodeHello> MakeHello(const NodeOptions& options) {
  NodeHello hello;
  hello.set_protocol_version(kNodeProtocolVersion);
  hello.set_host(options.name.empty() ? HostName() : options.name);
  if (hello.host().empty()) return absl::InvalidArgumentError("this host has no name: give --name");
  std::string address = options.address;
  if (address.empty()) {
    ASSIGN_OR_RETURN(address, AddressTowards(options.controller));
  }
  hello.set_address(address);
  hello.set_takes_servers(options.takes_servers);
  hello.set_takes_workers(options.takes_workers);
  const Machine machine = ThisMachine(options.dir);
  hello.set_cores(machine.cores);
  hello.set_gpus(static_cast<uint32_t>(machine.gpus.size()));
  hello.set_memory_bytes(machine.available_memory_bytes);
  hello.set_free_disk_bytes(machine.free_disk_bytes);
  ASSIGN_OR_RETURN(const std::string build, DigestOfPrograms(options.programs));
  hello.set_build(build);
  return hello;
}

// The command line of each names a file in the folder.
void EndLeftovers(const std::string& dir) {
  const std::string mark = absl::StrCat("--port_file=", dir, "/");
  bool is_any_left = true;
  while (is_any_left) {
    is_any_left = false;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      pid_t pid = 0;
      if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
      std::ifstream file(entry.path() / "cmdline", std::ios::binary);
      const std::string command{std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>()};
      if (!absl::StrContains(command, mark)) continue;
      is_any_left = kill(pid, SIGKILL) == 0 || is_any_left;
    }
    if (!is_any_left) return;
    absl::SleepFor(absl::Milliseconds(10));
  }
}

}  // namespace thermocline
