// thermocline submit: gives a job to an engine, which runs it on several hosts, and follows it.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/resolved_job.h"
#include "deploy/cli/console.h"
#include "deploy/cli/host_commands.h"
#include "deploy/cli/run_setup.h"
#include "deploy/engines/engine.h"
#include "deploy/engines/scripts.h"
#include "deploy/plan/job_plan.h"
#include "deploy/plan/machine.h"
#include "deploy/runner/checkpoint_requests.h"
#include "deploy/runner/child_process.h"
#include "deploy/runner/metrics_log.h"
#include "deploy/runner/run_directory.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLogPeriod = absl::Milliseconds(300);
constexpr absl::Duration kEnginePeriod = absl::Seconds(3);

struct Prepared {
  Submission submission;
  SlurmRequest slurm;
  SshRequest ssh;
  RunDirectory directory;
  std::vector<std::string> notices;

  std::string File(absl::string_view name) const {
    return directory.File(absl::StrCat("submit/", name));
  }
};

// Wraps errors about a run directory that is in use.
absl::Status CheckFree(const std::string& run_dir) {
  if (RunLock::IsHeld(run_dir)) {
    return absl::FailedPreconditionError(absl::StrCat("a job already runs in ", run_dir,
                                                      " (thermocline stop ", run_dir, " ends it)"));
  }
  const auto before = ReadEngineJob(run_dir);
  if (!before.ok()) return absl::OkStatus();
  const auto state = AskEngine(*before);
  if (!state.ok() || state->what == EngineState::What::kEnded) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", before->id, " of ", before->engine, " already runs in ", run_dir, ": ", state->text));
}

// The copy of the job file, and what changes it on the command line.
std::vector<std::string> TrainFlagsOf(const SubmitFlags& flags, const std::string& job_file) {
  std::vector<std::string> words = {job_file};
  const auto add = [&](const char* flag, const std::optional<std::string>& value) {
    if (value.has_value()) words.insert(words.end(), {flag, *value});
  };
  add("--data", flags.data);
  add("--servers", flags.servers);
  add("--workers", flags.workers);
  for (const std::string& value : flags.set) words.insert(words.end(), {"--set", value});
  for (const std::string& value : flags.clear) words.insert(words.end(), {"--clear", value});
  if (flags.insecure) words.emplace_back("--insecure");
  if (!flags.bin_dir.empty())
    words.insert(words.end(), {"--bin-dir", fs::absolute(flags.bin_dir).string()});
  return words;
}

// What agents need beside the controller's address.
std::vector<std::string> NodeFlagsOf(const SubmitFlags& flags, const Job& job) {
  std::vector<std::string> words;
  if (!flags.bin_dir.empty()) words.push_back("--bin-dir=" + fs::absolute(flags.bin_dir).string());
  if (job.cluster().insecure()) words.emplace_back("--insecure");
  const TlsFiles tls = TlsFilesOf(job.cluster().tls(), Role::kNode);
  if (!tls.empty()) {
    words.insert(words.end(), {"--tls-certificate=" + tls.certificate,
                               "--tls-private-key=" + tls.private_key, "--tls-ca=" + tls.ca});
  }
  return words;
}

absl::StatusOr<HostNeeds> NeedsOf(const SubmitFlags& flags, const Job& job, uint32_t hosts,
                                  std::vector<std::string>* notices) {
  ASSIGN_OR_RETURN(const JobPlan plan, PlanJob(job, PlanInputs(), ThisMachine("runs")));
  HostNeeds needs = NeedsOfHost(job, plan, hosts);
  if (!flags.memory.empty()) {
    const auto memory = ParseByteSize(flags.memory);
    if (!memory.ok())
      return absl::InvalidArgumentError(absl::StrCat("--memory: ", memory.status().message()));
    needs.memory_bytes = *memory;
  } else if (needs.memory_bytes == 0) {
    notices->push_back(
        "asking for all memory of each host: how many rows the tables will have is not known "
        "before (--memory SIZE "
        "asks for less)");
  }
  if (flags.cores > 0) needs.cores = static_cast<uint32_t>(flags.cores);
  if (flags.gpus >= 0) needs.gpus = static_cast<uint32_t>(flags.gpus);
  return needs;
}

absl::StatusOr<uint32_t> NumHosts(const SubmitFlags& flags) {
  if (flags.engine != "slurm" && flags.engine != "ssh") {
    return absl::InvalidArgumentError(
        flags.engine.empty()
            ? "name the engine: --engine slurm or --engine ssh"
            : absl::StrCat("--engine '", flags.engine, "' is neither slurm nor ssh"));
  }
  if (flags.engine == "slurm" && !flags.hosts.empty()) {
    return absl::InvalidArgumentError(
        "--hosts is for --engine ssh; Slurm chooses hosts (--nodes says how many)");
  }
  if (flags.nodes > 0) return static_cast<uint32_t>(flags.nodes);
  if (flags.engine == "ssh") return static_cast<uint32_t>(flags.hosts.size());
  return absl::InvalidArgumentError("say on how many hosts: --nodes N");
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("can't read ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<RunDirectory> OpenRunDirectory(const SubmitFlags& flags,
                                              const std::string& job_name) {
  const std::string path =
      flags.run_dir.empty() ? "" : fs::absolute(flags.run_dir).lexically_normal().string();
  if (flags.resume && path.empty()) {
    return absl::InvalidArgumentError("--resume needs --run-dir, the folder of the run");
  }
  if (!path.empty() && fs::exists(path)) RETURN_IF_ERROR(CheckFree(path));
  ASSIGN_OR_RETURN(RunDirectory made, flags.resume
                                          ? RunDirectory::Open(path)
                                          : RunDirectory::Create(path, job_name, absl::Now()));
  return RunDirectory::Open(fs::absolute(made.path()).lexically_normal().string());
}

absl::StatusOr<Prepared> Prepare(SubmitFlags flags) {
  ASSIGN_OR_RETURN(const uint32_t hosts, NumHosts(flags));
  if (flags.job.empty() && flags.resume && !flags.run_dir.empty())
    flags.job = flags.run_dir + "/job.textproto";
  ASSIGN_OR_RETURN(const Job job, LoadJobOf(flags));
  ASSIGN_OR_RETURN(const std::string job_text, ReadText(flags.job));
  Submission submission;
  std::vector<std::string> notices;
  submission.job_name = job.name();
  submission.hosts = hosts;
  submission.resumable = job.has_checkpoint();
  if (!submission.resumable) {
    notices.push_back(
        "the job has no checkpoint policy: after a loss of a host, or at the walltime, it does not "
        "go on");
  }
  submission.port = static_cast<uint32_t>(flags.port);
  submission.node_dir = flags.node_dir;
  submission.folder = fs::current_path().string();
  submission.node_flags = NodeFlagsOf(flags, job);
  ASSIGN_OR_RETURN(submission.needs, NeedsOf(flags, job, hosts, &notices));
  std::error_code error;
  submission.program = flags.program.empty() ? ThisProgram() : flags.program;
  SlurmRequest slurm{flags.partition, flags.account, flags.time,
                     static_cast<uint32_t>(flags.notice_s), flags.sbatch};
  SshRequest ssh{flags.hosts, flags.controller};
  if (flags.engine == "ssh") RETURN_IF_ERROR(CheckSsh(submission, ssh));
  ASSIGN_OR_RETURN(RunDirectory directory, OpenRunDirectory(flags, job.name()));
  submission.run_dir = directory.path();
  if (flags.engine == "slurm") RETURN_IF_ERROR(CheckSlurm(submission, slurm));
  fs::create_directories(SubmitFolder(directory.path()), error);
  RETURN_IF_ERROR(directory.Write("submit/job.textproto", job_text));
  submission.train_flags = TrainFlagsOf(flags, directory.File("submit/job.textproto"));
  return Prepared{std::move(submission), std::move(slurm), std::move(ssh), std::move(directory),
                  std::move(notices)};
}

absl::StatusOr<EngineJob> Submit(const SubmitFlags& flags, const Prepared& prepared) {
  const Submission& submission = prepared.submission;
  EngineJob job;
  job.engine = flags.engine;
  job.job = submission.job_name;
  job.host = HostName();
  job.hosts = submission.hosts;
  job.run_dir = submission.run_dir;
  WithdrawStop(submission.run_dir);
  if (flags.engine == "slurm") {
    ASSIGN_OR_RETURN(job.id, SubmitToSlurm(prepared.File("batch.sh"), submission.hosts,
                                           prepared.slurm.partition));
  } else {
    RETURN_IF_ERROR(
        CheckSshHosts(prepared.ssh.hosts, submission.program, prepared.File("batch.sh")));
    ASSIGN_OR_RETURN(job.id, StartScript(prepared.File("batch.sh"), prepared.File("batch.log")));
  }
  RETURN_IF_ERROR(WriteEngineJob(job));
  return job;
}

// Shows what the batch log grows by, and what the engine says, until the job has ended or a request
// to stop comes. Returns the exit code.
int Follow(const EngineJob& job, uint64_t log_begin, SignalWatch* signals) {
  Console console(STDOUT_FILENO, signals);
  std::ifstream log;
  std::string last_text;
  EngineState state{EngineState::What::kWaiting, ""};
  absl::Time ask_at = absl::InfinitePast();
  while (true) {
    const bool has_ended =
        state.what == EngineState::What::kEnded;  // Before the last look at the log.
    if (!log.is_open()) {
      log.open(SubmitFolder(job.run_dir) + "/batch.log", std::ios::binary);
      if (log.is_open()) log.seekg(static_cast<std::streamoff>(log_begin));
    }
    std::ostringstream fresh;
    if (log.is_open() && log.peek() != EOF) fresh << log.rdbuf();
    log.clear();
    if (!fresh.str().empty() && !console.Write(fresh.str())) return kExitFailed;
    if (has_ended) break;
    signals->Drain();
    if (signals->stop_requests() > 0) {
      std::printf("\nthe job goes on; to stop it: thermocline stop %s\n", job.run_dir.c_str());
      return kExitDone;
    }
    if (absl::Now() >= ask_at) {
      const auto answer = AskEngine(job);
      if (answer.ok()) state = *answer;  // An engine that does not answer now will.
      if (job.engine == "slurm" && state.text != last_text)
        console.Write(absl::StrCat("Slurm: ", state.text, "\n"));
      last_text = state.text;
      ask_at = absl::Now() + kEnginePeriod;
      if (state.what == EngineState::What::kEnded) continue;
    }
    absl::SleepFor(kLogPeriod);
  }
  const auto end = ReadMetricsTail(job.run_dir + "/metrics.jsonl").end;
  return end.has_value() && end->value("status", "") == "OK" ? kExitDone : kExitFailed;
}

}  // namespace

int RunSubmit(const SubmitFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto prepared = Prepare(flags);
  if (!prepared.ok()) return Complain(prepared.status().message(), kExitUsage);
  const std::string script = prepared->File("batch.sh");
  const absl::Status written = prepared->directory.Write(
      "submit/batch.sh", flags.engine == "slurm"
                             ? SlurmScript(prepared->submission, prepared->slurm)
                             : SshScript(prepared->submission, prepared->ssh));
  if (!written.ok()) return Complain(written.message(), kExitFailed);
  std::error_code error;
  fs::permissions(script, fs::perms(0755), error);
  for (const std::string& notice : prepared->notices) std::printf("%s\n", notice.c_str());
  if (flags.write_only) {
    std::printf("written: %s\nto run it: %s%s\n", script.c_str(),
                flags.engine == "slurm" ? "sbatch " : "setsid bash ", script.c_str());
    return kExitDone;
  }
  const uint64_t log_begin = [&] {
    const auto size = fs::file_size(prepared->File("batch.log"), error);
    return error ? 0 : size;
  }();
  const auto job = Submit(flags, *prepared);
  if (!job.ok()) return Complain(job.status().message(), kExitFailed);
  const absl::Status remembered = RememberRunDirectory(job->run_dir);
  if (!remembered.ok())
    Complain(absl::StrCat(remembered.message(), ": `jobs` will not show it"), kExitDone);
  std::printf("job %s of %s: '%s' on %u hosts\nrun directory: %s\n", job->id.c_str(),
              job->engine.c_str(), job->job.c_str(), job->hosts, job->run_dir.c_str());
  std::fflush(stdout);
  return flags.detach ? kExitDone : Follow(*job, log_begin, &signals);
}

}  // namespace thermocline
