#include "deploy/engines/engine.h"

#include <fcntl.h>
#include <poll.h>
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
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "deploy/engines/scripts.h"
#include "deploy/processes/run_directory.h"

extern char** environ;

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWordsAttempts = 100;

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

// The process of a job's script on this host; 0: there is none. After a boot, its number may be
// another's.
pid_t ScriptOf(const EngineJob& job) {
  pid_t pid = 0;
  if (job.host != HostName() || !absl::SimpleAtoi(job.id, &pid) || pid <= 0) return 0;
  // A child that has ended is there until its parent has asked how.
  waitpid(pid, nullptr, WNOHANG);
  std::string shell, script;
  // One that has only just been started has no words for a moment.
  for (int attempt = 0; attempt < kWordsAttempts; ++attempt) {
    std::ifstream words(absl::StrCat("/proc/", pid, "/cmdline"));
    std::getline(words, shell, '\0');
    std::getline(words, script, '\0');
    if (!shell.empty() || (kill(pid, 0) != 0 && errno == ESRCH)) break;
    absl::SleepFor(absl::Milliseconds(1));
  }
  std::error_code error;
  const bool is_it =
      std::filesystem::equivalent(script, SubmitFolder(job.run_dir) + "/batch.sh", error);
  return is_it ? pid : 0;
}

EngineState StateOfScript(const EngineJob& job) {
  if (ScriptOf(job) != 0) return {EngineState::What::kRunning, "running"};
  return {EngineState::What::kEnded,
          job.host == HostName() ? "ended" : "ended, as far as its lock shows"};
}

absl::StatusOr<EngineState> StateInSlurm(const EngineJob& job) {
  ASSIGN_OR_RETURN(const CommandOutput shown, Slurm({"scontrol", "show", "job", "-o", job.id}));
  if (shown.exit_code != 0 && !absl::StrContains(shown.text, "Invalid job id")) {
    return absl::UnavailableError(absl::StrCat("Slurm does not answer: ", Trimmed(shown.text)));
  }
  return ParseSlurmState(shown.text);
}

}  // namespace

absl::StatusOr<CommandOutput> RunCommand(const std::vector<std::string>& command,
                                         absl::Duration timeout) {
  const Stopwatch watch;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("can't make a pipe: ", std::strerror(errno)));
  }
  const absl::Cleanup close_end = [&] { close(ends[0]); };
  const bool may_end_it = timeout < absl::InfiniteDuration();
  const auto pid = Spawn(command, ends[1], /*own_session=*/may_end_it);
  close(ends[1]);
  if (!pid.ok()) return pid.status();
  CommandOutput output;
  char buffer[4096];
  bool is_late = false;
  while (true) {
    if (may_end_it) {
      pollfd end = {ends[0], POLLIN, 0};
      const absl::Duration left = timeout - watch.Elapsed();
      is_late = left <= absl::ZeroDuration();
      if (is_late) break;
      if (poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) continue;
    }
    const ssize_t n = read(ends[0], buffer, sizeof(buffer));
    if (n == 0 || (n < 0 && errno != EINTR)) break;
    if (n > 0) output.text.append(buffer, static_cast<size_t>(n));
  }
  if (is_late) kill(-*pid, SIGKILL);
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (is_late) {
    return absl::DeadlineExceededError(
        absl::StrCat(command[0], " had not ended after ", absl::FormatDuration(timeout),
                     output.text.empty() ? "" : ", and had said: ", Trimmed(output.text)));
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
  // If it can't be seen whether the run has begun, --resume will say why.
  const bool has_begun = HasBegun(job.run_dir, absl::ZeroDuration()).value_or(true);
  return absl::StrCat("thermocline submit ", has_begun ? "--resume " : "", "--run-dir ",
                      ShellWord(job.run_dir));
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
  using What = EngineState::What;
  auto state = job.engine == "slurm" ? StateInSlurm(job) : StateOfScript(job);
  if (state.ok() && state->what != What::kEnded) return state;
  if (!RunLock::IsHeld(job.run_dir)) return state;
  return EngineState{What::kRunning, state.ok()
                                         ? "running, without its script"
                                         : absl::StrCat("running; ", state.status().message())};
}

absl::StatusOr<std::string> SubmitToSlurm(const std::string& script, uint32_t hosts,
                                          const HostNeeds& needs, const std::string& partition) {
  std::vector<std::string> count = {"sinfo", "--noheader", "--exact", "--format=%D %c %m"};
  if (!partition.empty()) count.push_back("--partition=" + partition);
  ASSIGN_OR_RETURN(const CommandOutput counted, Slurm(count));
  if (counted.exit_code != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("Slurm does not answer: ", Trimmed(counted.text)));
  }
  uint64_t there = 0, fit = 0;
  for (const absl::string_view line : absl::StrSplit(counted.text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t more = 0, cores = 0, mib = 0;
    if (words.empty() || !absl::SimpleAtoi(words[0], &more)) continue;
    there += more;
    // What Slurm does not say of them is no reason to refuse.
    const bool has_cores =
        words.size() < 2 || !absl::SimpleAtoi(words[1], &cores) || cores >= needs.cores;
    const bool has_memory =
        words.size() < 3 || !absl::SimpleAtoi(words[2], &mib) || mib >= needs.memory_bytes >> 20;
    if (has_cores && has_memory) fit += more;
  }
  const std::string where = partition.empty() ? "" : " in partition " + partition;
  if (there < hosts) {
    return absl::FailedPreconditionError(
        absl::StrCat("too few hosts: --nodes is ", hosts, ", and Slurm has ", there, where));
  }
  if (fit < hosts) {  // Slurm would let the job wait for ever.
    return absl::FailedPreconditionError(
        absl::StrCat("too few hosts: the job asks for ", needs.cores, " cores and ",
                     needs.memory_bytes >> 20, " MiB on each of ", hosts, " hosts, and of Slurm's ",
                     there, where, " ", fit, " have that (--cores, --memory, more --nodes)"));
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
                           const std::string& probe, absl::Duration timeout) {
  std::vector<std::string> errors;
  const std::string look =
      absl::StrCat("test -x ", ShellWord(program), " && echo program; test -e ", ShellWord(probe),
                   " && echo run_dir; true");
  for (const std::string& host : hosts) {
    const auto answer = RunCommand(
        {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host, look}, timeout);
    if (absl::IsDeadlineExceeded(answer.status())) {
      errors.push_back(
          absl::StrCat(host, ": its login shell does not end: ", answer.status().message()));
      continue;
    }
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
  if (job.host != HostName()) {
    return absl::FailedPreconditionError(absl::StrCat("its script runs on host ", job.host));
  }
  const pid_t pid = ScriptOf(job);
  if (pid == 0 || kill(-pid, SIGTERM) == 0 || errno == ESRCH) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("kill ", pid, ": ", std::strerror(errno)));
}

}  // namespace thermocline
