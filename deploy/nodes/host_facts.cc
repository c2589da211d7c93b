#include "deploy/nodes/host_facts.h"

#include <limits.h>
#include <netdb.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/net/host_port.h"
#include "common/net/rpc.h"
#include "deploy/nodes/node_table.h"
#include "deploy/nodes/shared_folder.h"
#include "deploy/plan/machine.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {
namespace {

// How long a file that another host wrote may take to be seen.
constexpr absl::Duration kFilePatience = absl::Seconds(2);

absl::StatusOr<HostPort> ParseController(const std::string& address) {
  return ParseHostPort(address, "of a controller", /*lowest_port=*/1);
}

// Identifies the machine's boot. Containers of one machine have the same, but differ by their
// addresses.
std::string MachineId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// The command line of each names a file in the folder.
std::vector<pid_t> ProcessesOf(const std::string& dir) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    for (std::string word; std::getline(file, word, '\0');) {
      absl::string_view port_file = word;
      if (!absl::ConsumePrefix(&port_file, "--port_file=")) continue;
      if (std::filesystem::path(std::string(port_file)).parent_path() == dir) found.push_back(pid);
    }
  }
  return found;
}

}  // namespace

absl::Status CheckMayConnect(const std::string& controller, const TlsFiles& tls, bool insecure) {
  ASSIGN_OR_RETURN(const HostPort parsed, ParseController(controller));
  if (IsLoopbackHost(parsed.host) || !tls.empty() || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", controller,
                   "' is not on loopback: anybody on the way could read and change what is "
                   "said. Give --tls-certificate, --tls-private-key and --tls-ca, or --insecure"));
}

absl::StatusOr<std::string> AddressTowards(const std::string& controller) {
  ASSIGN_OR_RETURN(const HostPort parsed, ParseController(controller));
  const std::string port = absl::StrCat(parsed.port);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parsed.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
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
  hello.set_machine(MachineId());
  hello.set_folder(options.dir);
  return hello;
}

absl::StatusOr<Job> LoadJobOf(const NodeOrder& order) {
  absl::StatusOr<Job> job;
  RETURN_IF_ERROR(LookUntilFound(kFilePatience, [&] {
    job = LoadJob(absl::StrCat(order.run_dir(), "/job.textproto"), {});
    return job.status();
  }));
  // The file leaves the defaults out.
  ASSIGN_OR_RETURN(const RunDirectory run, RunDirectory::Open(order.run_dir()));
  if (WritesCheckpoints(*job) && job->checkpoint().directory().empty()) {
    job->mutable_checkpoint()->set_directory(run.CheckpointDirectory());
  }
  run.FillHotDirectory(&*job);
  return job;
}

absl::Status CheckRun(const NodeOptions& options, const NodeOrder& order) {
  if (options.run_dir.empty() || options.run_dir == order.run_dir()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the controller at ", options.controller, " runs job '", order.job(), "' in ",
                   order.run_dir(), ", and this agent is for the run in ", options.run_dir));
}

absl::Status CheckFolders(const std::string& host, const NodeOrder& order) {
  PosixDisk disk;
  const FolderMark mark = {order.check_file(), order.check_text()};
  const FolderTester tester = {host, order.nonce(), kFilePatience};
  RETURN_IF_ERROR(TestSharedFolder(&disk, tester, "run directory", order.run_dir(), mark));
  if (order.eval_only()) return absl::OkStatus();
  const absl::StatusOr<Job> job = LoadJobOf(order);
  if (!job.ok()) return WithContext(job.status(), absl::StrCat("host ", host));
  if (const std::string& hot = job->calibration().directory(); !hot.empty()) {
    RETURN_IF_ERROR(TestSharedFolder(&disk, tester, "calibration.directory", hot, mark));
  }
  if (!WritesCheckpoints(*job)) return absl::OkStatus();
  return TestSharedFolder(&disk, tester, "checkpoint directory", job->checkpoint().directory(),
                          mark);
}

absl::StatusOr<std::string> MakeOwnFolder(const std::string& dir, uid_t user) {
  // Without a slash at its end, behind which a link would be followed.
  std::filesystem::path path = std::filesystem::path(dir).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error || (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)) {
    return absl::UnavailableError(absl::StrCat("can't make the folder ", dir, ": ",
                                               error ? error.message() : std::strerror(errno)));
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat("can't look at ", dir, ": ", std::strerror(errno)));
  }
  constexpr char kOther[] = ": name another with --dir (of submit: --node-dir)";
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, " is ", S_ISLNK(info.st_mode) ? "a symbolic link" : "no folder",
                     ", and an agent makes its folder itself", kOther));
  }
  // What root may do with our processes it may do anyway.
  if (info.st_uid != user && info.st_uid != 0) {
    const passwd* const owner = getpwuid(info.st_uid);
    return absl::FailedPreconditionError(
        absl::StrCat("the folder ", dir, " belongs to user ",
                     owner == nullptr ? absl::StrCat(info.st_uid) : owner->pw_name,
                     ", who could change what lies in it", kOther));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "other users may write to the folder ", dir, " (mode ",
        absl::StrFormat("%04o", info.st_mode & 07777), "): chmod 700 it, or name one in it, ",
        (std::filesystem::path(dir) / "agent").string(), ", with --dir (of submit: --node-dir)"));
  }
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return absl::UnavailableError(absl::StrCat(dir, ": ", error.message()));
  return real.string();
}

absl::Status EndLeftovers(const std::string& dir, absl::Duration patience,
                          absl::FunctionRef<int(pid_t, int)> kill) {
  const Stopwatch watch;
  while (true) {
    pid_t left = 0;
    for (const pid_t pid : ProcessesOf(dir)) {
      if (kill(pid, SIGKILL) == 0) left = pid;
    }
    if (left == 0) return absl::OkStatus();
    if (watch.Elapsed() >= patience) {
      return absl::UnavailableError(
          absl::StrCat("process ", left, ", which an earlier agent in ", dir,
                       " started, has been killed and does not end: its disk may hang"));
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
}

}  // namespace thermocline
