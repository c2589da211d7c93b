#include "deploy/engines/engine.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "deploy/engines/scripts.h"
#include "deploy/runner/run_directory.h"

extern char** environ;

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// Starts a program with standard output and error at `out_fd`, no input, and no signal blocked.
// Errors: as RunCommand.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& command, int out_fd, bool own_session) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, out_fd, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, out_fd, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  const int session = own_session ? POSIX_SPAWN_SETSID : 0;
  posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | session));
  pid_t pid = -1;
  const int error =
      posix_spawnp(&pid, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == ENOENT) return absl::NotFoundError(absl::StrCat("there is no program ", command[0]));
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("can't start ", command[0], ": ", std::strerror(error)));
  }
  return pid;
}

absl::Status NameThePackage(const absl::Status& status, const char* engine, const char* package) {
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(absl::StrCat(status.message(), " on this machine: --engine ", engine,
                                          " needs it (Debian's package ", package, ")"));
}

absl::StatusOr<CommandOutput> Slurm(const std::vector<std::string>& command) {
  const auto done = RunCommand(command);
  if (!done.ok()) return NameThePackage(done.status(), "slurm", "slurm-client");
  return done;
}

std::string Trimmed(absl::string_view text) {
  return std::string(absl::StripAsciiWhitespace(text));
}

// The value of NAME=VALUE among words; "" where there is none.
std::string FieldOf(absl::string_view text, absl::string_view name) {
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    if (absl::StartsWith(word, absl::StrCat(name, "=")))
      return std::string(word.substr(name.size() + 1));
  }
  return "";
}

std::string RecordFile(const std::string& run_dir) {
  return SubmitFolder(run_dir) + "/engine.json";
}

std::string ListFile() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') {
    return absl::StrCat(state, "/thermocline/jobs");
  }
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "" : home, "/.local/state/thermocline/jobs");
}

EngineState StateOfScript(const EngineJob& job) {
  using What = EngineState::What;
  pid_t pid = 0;
  if (job.host == HostName()) {
    const bool is_number = absl::SimpleAtoi(job.id, &pid) && pid > 0;
    // A child that has ended is there until its parent has asked how.
    if (is_number) waitpid(pid, nullptr, WNOHANG);
    const bool runs = is_number && (kill(pid, 0) == 0 || errno == EPERM);
    return {runs ? What::kRunning : What::kEnded, runs ? "running" : "ended"};
  }
  const bool runs = RunLock::IsHeld(job.run_dir);
  return {runs ? What::kRunning : What::kEnded,
          runs ? "running" : "ended, as far as its lock shows"};
}

}  // namespace

absl::StatusOr<CommandOutput> RunCommand(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("can't make a pipe: ", std::strerror(errno)));
  }
  const absl::Cleanup close_end = [&] { close(ends[0]); };
  const auto pid = Spawn(command, ends[1], /*own_session=*/false);
  close(ends[1]);
  if (!pid.ok()) return pid.status();
  CommandOutput output;
  char buffer[4096];
  while (true) {
    const ssize_t n = read(ends[0], buffer, sizeof(buffer));
    if (n == 0 || (n < 0 && errno != EINTR)) break;
    if (n > 0) output.text.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

absl::Status WriteEngineJob(const EngineJob& job) {
  ASSIGN_OR_RETURN(const RunDirectory directory, RunDirectory::Open(job.run_dir));
  const Json json = {{"engine", job.engine}, {"id", job.id},       {"host", job.host},
                     {"job", job.job},       {"hosts", job.hosts}, {"run_dir", job.run_dir}};
  return directory.Write("submit/engine.json", json.dump(2) + "\n");
}

absl::StatusOr<EngineJob> ReadEngineJob(const std::string& run_dir) {
  std::ifstream file(RecordFile(run_dir));
  if (!file) return absl::NotFoundError(absl::StrCat("no engine was given the job in ", run_dir));
  const Json json = Json::parse(file, nullptr, false);
  EngineJob job;
  try {
    job.engine = json.at("engine").get<std::string>();
    job.id = json.at("id").get<std::string>();
    job.host = json.at("host").get<std::string>();
    job.job = json.at("job").get<std::string>();
    job.hosts = json.at("hosts").get<uint32_t>();
    job.run_dir = run_dir;
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat(RecordFile(run_dir), " can't be read: ", error.what()));
  }
  return job;
}

std::string ResumeCommand(const EngineJob& job) {
  return absl::StrCat(
      "thermocline submit --resume --run-dir ", ShellWord(job.run_dir), " --engine ", job.engine,
      job.engine == "ssh" ? " --hosts HOST,..." : absl::StrCat(" --nodes ", job.hosts));
}

std::vector<std::string> KnownRunDirectories() {
  std::vector<std::string> known;
  std::ifstream file(ListFile());
  std::error_code error;
  for (std::string line; std::getline(file, line);) {
    if (std::find(known.begin(), known.end(), line) != known.end()) continue;
    if (std::filesystem::exists(RecordFile(line), error)) known.push_back(line);
  }
  return known;
}

absl::Status RememberRunDirectory(const std::string& run_dir) {
  const std::string path = ListFile();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  std::ofstream file(path, std::ios::app);
  file << run_dir << "\n";
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("can't write ", path));
  return absl::OkStatus();
}

absl::StatusOr<EngineJob> FindEngineJob(const std::string& id) {
  std::vector<std::string> known = KnownRunDirectories();
  std::reverse(known.begin(), known.end());  // A number may come again.
  for (const std::string& run_dir : known) {
    auto job = ReadEngineJob(run_dir);
    if (job.ok() && job->id == id) return job;
  }
  return absl::NotFoundError(absl::StrCat(
      "'", id, "' is neither a run directory nor the number of a job in `thermocline jobs`"));
}

EngineState ParseSlurmState(absl::string_view text) {
  using What = EngineState::What;
  const std::string state = FieldOf(text, "JobState");
  if (state.empty()) return {What::kEnded, "ended"};  // Slurm forgets jobs after a while.
  if (state == "PENDING" || state == "REQUEUED" || state == "CONFIGURING" ||
      state == "REQUEUE_HOLD") {
    const std::string reason = FieldOf(text, "Reason");
    return {What::kWaiting,
            reason.empty() || reason == "None" ? state : absl::StrCat(state, " (", reason, ")")};
  }
  if (state == "RUNNING" || state == "COMPLETING" || state == "SUSPENDED" || state == "STOPPED" ||
      state == "SIGNALING" || state == "RESIZING") {
    return {What::kRunning, state};
  }
  return {What::kEnded, state};
}

absl::StatusOr<EngineState> AskEngine(const EngineJob& job) {
  if (job.engine != "slurm") return StateOfScript(job);
  ASSIGN_OR_RETURN(const CommandOutput shown, Slurm({"scontrol", "show", "job", "-o", job.id}));
  if (shown.exit_code != 0 && !absl::StrContains(shown.text, "Invalid job id")) {
    return absl::UnavailableError(absl::StrCat("Slurm does not answer: ", Trimmed(shown.text)));
  }
  return ParseSlurmState(shown.text);
}

absl::StatusOr<std::string> SubmitToSlurm(const std::string& script, uint32_t hosts,
                                          const std::string& partition) {
  std::vector<std::string> count = {"sinfo", "--noheader", "--format=%D"};
  if (!partition.empty()) count.push_back("--partition=" + partition);
  ASSIGN_OR_RETURN(const CommandOutput counted, Slurm(count));
  if (counted.exit_code != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("Slurm does not answer: ", Trimmed(counted.text)));
  }
  uint64_t there = 0, more = 0;
  for (const absl::string_view line : absl::StrSplit(counted.text, '\n')) {
    if (absl::SimpleAtoi(line, &more)) there += more;
  }
  if (there < hosts) {
    return absl::FailedPreconditionError(
        absl::StrCat("too few hosts: --nodes is ", hosts, ", and Slurm has ", there,
                     partition.empty() ? "" : " in partition " + partition));
  }
  ASSIGN_OR_RETURN(const CommandOutput submitted, Slurm({"sbatch", "--parsable", script}));
  if (submitted.exit_code != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("Slurm refuses the job: ", Trimmed(submitted.text)));
  }
  for (const absl::string_view line : absl::StrSplit(submitted.text, '\n')) {
    const absl::string_view id = line.substr(0, line.find(';'));  // "12;cluster"
    if (!id.empty() && std::all_of(id.begin(), id.end(), absl::ascii_isdigit))
      return std::string(id);
  }
  return absl::UnavailableError(absl::StrCat("sbatch names no job: ", Trimmed(submitted.text)));
}

absl::StatusOr<std::string> StartScript(const std::string& script, const std::string& log) {
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0)
    return absl::UnavailableError(absl::StrCat("can't write ", log, ": ", std::strerror(errno)));
  const auto pid = Spawn({"bash", script}, fd, /*own_session=*/true);
  close(fd);
  if (!pid.ok()) return pid.status();
  return absl::StrCat(*pid);
}

absl::Status CheckSshHosts(const std::vector<std::string>& hosts, const std::string& program,
                           const std::string& probe) {
  std::vector<std::string> errors;
  const std::string look =
      absl::StrCat("test -x ", ShellWord(program), " && echo program; test -e ", ShellWord(probe),
                   " && echo run_dir; true");
  for (const std::string& host : hosts) {
    const auto answer =
        RunCommand({"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host, look});
    if (!answer.ok()) return NameThePackage(answer.status(), "ssh", "openssh-client");
    const std::vector<std::string> lines = absl::StrSplit(answer->text, '\n');
    const auto has = [&](const char* line) {
      return std::find(lines.begin(), lines.end(), line) != lines.end();
    };
    if (answer->exit_code != 0) {
      errors.push_back(absl::StrCat(host, ": ssh does not work: ", Trimmed(answer->text)));
    } else if (!has("program")) {
      errors.push_back(absl::StrCat(host, ": has no ", program, " (--program names it)"));
    } else if (!has("run_dir")) {
      errors.push_back(absl::StrCat(host, ": does not see ", probe,
                                    ": --run-dir must be on a file system that all hosts share"));
    }
  }
  if (errors.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrJoin(errors, "\n"));
}

absl::Status Cancel(const EngineJob& job) {
  if (job.engine == "slurm") {
    ASSIGN_OR_RETURN(const CommandOutput canceled, Slurm({"scancel", job.id}));
    if (canceled.exit_code == 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("scancel ", job.id, ": ", Trimmed(canceled.text)));
  }
  pid_t pid = 0;
  if (job.host != HostName() || !absl::SimpleAtoi(job.id, &pid) || pid <= 0) {
    return absl::FailedPreconditionError(absl::StrCat("its script runs on host ", job.host));
  }
  if (kill(-pid, SIGTERM) == 0 || errno == ESRCH) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("kill ", pid, ": ", std::strerror(errno)));
}

}  // namespace thermocline
