#include "deploy/bench/shaped_hosts.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "deploy/engines/engine.h"

namespace thermocline {
namespace {

constexpr char kNetwork[] = "10.77.0.";
constexpr char kBridge[] = "bridge";
constexpr char kQueueBytes[] = "4194304";
constexpr char kBurst[] = "64kb";

// Runs a tool of the system to its end. Errors: kFailedPrecondition (with what it printed)
absl::Status Do(const std::string& line) {
  const auto done = RunCommand(absl::StrSplit(line, ' '));
  if (!done.ok()) return absl::FailedPreconditionError(done.status().message());
  if (done->exit_code == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(line, ": ", absl::StripTrailingAsciiWhitespace(done->text)));
}

std::string LinkName(int host) { return absl::StrCat("host", host); }

std::string ShapeOf(const std::string& device, const std::string& rate) {
  return absl::StrCat("tc qdisc replace dev ", device, " root tbf rate ", rate, " burst ", kBurst,
                      " limit ", kQueueBytes);
}

// Does nothing, in a network namespace of its own, until it is killed or its parent dies.
[[noreturn]] void HoldNamespace(int ready_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char answer = unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
  if (write(ready_fd, &answer, 1) != 1) _exit(1);
  close(ready_fd);
  while (true) pause();
}

// Errors: kFailedPrecondition
absl::StatusOr<pid_t> StartHolder() {
  int fds[2];
  if (pipe(fds) != 0) return absl::FailedPreconditionError(std::strerror(errno));
  const pid_t pid = fork();
  if (pid == 0) {
    close(fds[0]);
    HoldNamespace(fds[1]);
  }
  close(fds[1]);
  char answer = 'n';
  const bool is_read = pid > 0 && read(fds[0], &answer, 1) == 1;
  close(fds[0]);
  if (is_read && answer == 'y') return pid;
  if (pid > 0) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return absl::FailedPreconditionError("a host's network namespace can't be made");
}

// Whether tc takes the rate: asks it to shape the loopback of this process's namespace.
absl::Status CheckRate(const std::string& rate) {
  const absl::Status status = Do(ShapeOf("lo", rate));
  if (status.ok()) return Do("tc qdisc del dev lo root");
  const bool is_rate = absl::StrContains(status.message(), "rate");
  return is_rate ? absl::InvalidArgumentError(absl::StrCat(
                       "--link ", rate, ": tc knows no such rate; one is 1gbit, or 100mbit"))
                 : status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShapedHosts>> ShapedHosts::Create(int count,
                                                                 const std::string& rate) {
  if (geteuid() != 0) {
    return absl::FailedPreconditionError(
        "--link makes network namespaces, which needs root; without it the processes talk over "
        "loopback");
  }
  if (rate.empty() || absl::StrContains(rate, ' ')) {
    return absl::InvalidArgumentError(absl::StrCat("--link '", rate, "' is no rate"));
  }
  for (const char* probe : {"ip -V", "tc -V", "nsenter -V"}) {
    const absl::Status status = Do(probe);
    if (status.ok()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--link needs ip and tc (Debian: iproute2) and nsenter (util-linux): ", status.message()));
  }
  if (unshare(CLONE_NEWNET) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--link: network namespaces are refused here: ", std::strerror(errno)));
  }
  std::unique_ptr<ShapedHosts> hosts(new ShapedHosts(rate));
  RETURN_IF_ERROR(Do("ip link set lo up"));
  RETURN_IF_ERROR(CheckRate(rate));
  RETURN_IF_ERROR(Do(absl::StrCat("ip link add ", kBridge, " type bridge")));
  RETURN_IF_ERROR(Do(absl::StrCat("ip address add ", hosts->own_address(), "/24 dev ", kBridge)));
  RETURN_IF_ERROR(Do(absl::StrCat("ip link set ", kBridge, " up")));
  for (int host = 0; host < count; ++host) RETURN_IF_ERROR(hosts->AddHost());
  return hosts;
}

ShapedHosts::~ShapedHosts() {
  for (const pid_t holder : holders_) {
    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);
  }
}

absl::Status ShapedHosts::AddHost() {
  const int host = count();
  ASSIGN_OR_RETURN(const pid_t holder, StartHolder());
  holders_.push_back(holder);
  const std::string link = LinkName(host);
  RETURN_IF_ERROR(
      Do(absl::StrCat("ip link add ", link, " type veth peer name eth0 netns ", holder)));
  RETURN_IF_ERROR(Do(absl::StrCat("ip link set ", link, " master ", kBridge, " up")));
  const std::string inside = absl::StrJoin(CommandOn(host, {}), " ");
  RETURN_IF_ERROR(Do(absl::StrCat(inside, " ip link set lo up")));
  RETURN_IF_ERROR(Do(absl::StrCat(inside, " ip address add ", address(host), "/24 dev eth0")));
  RETURN_IF_ERROR(Do(absl::StrCat(inside, " ip link set eth0 up")));
  // tc shapes what leaves a device: the host's end shapes what it sends, the bridge's what it gets.
  RETURN_IF_ERROR(Do(ShapeOf(link, rate_)));
  return Do(absl::StrCat(inside, " ", ShapeOf("eth0", rate_)));
}

std::string ShapedHosts::own_address() const { return absl::StrCat(kNetwork, 1); }

std::string ShapedHosts::address(int host) const { return absl::StrCat(kNetwork, host + 2); }

std::vector<std::string> ShapedHosts::CommandOn(int host,
                                                const std::vector<std::string>& command) const {
  std::vector<std::string> whole = {"/usr/bin/env", "nsenter",
                                    absl::StrCat("--net=/proc/", holders_[host], "/ns/net"), "--"};
  whole.insert(whole.end(), command.begin(), command.end());
  return whole;
}

HostLinkBytes ShapedHosts::BytesOf(int host) const {
  // "  eth0: RECEIVED_BYTES packets errs drop fifo frame compressed multicast SENT_BYTES ..."
  std::ifstream file(absl::StrCat("/proc/", holders_[host], "/net/dev"));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string device;
    words >> device;
    if (device != "eth0:") continue;
    uint64_t numbers[9] = {};
    for (uint64_t& number : numbers) words >> number;
    return {numbers[0], numbers[8]};
  }
  return {};
}

}  // namespace thermocline
