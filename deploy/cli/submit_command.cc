// thermocline submit: gives a job to an engine, which runs it on several hosts, and follows it.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/timing.h"
#include "common/disk/file_list.h"
#include "common/job/resolved_job.h"
#include "common/net/tls_files.h"
#include "common/process/child_process.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/data_figures.h"
#include "deploy/cli/job_certificates.h"
#include "deploy/cli/run_setup.h"
#include "deploy/engines/engine.h"
#include "deploy/engines/scripts.h"
#include "deploy/plan/job_plan.h"
#include "deploy/plan/machine.h"
#include "deploy/processes/run_directory.h"
#include "deploy/report/metrics_log.h"
#include "deploy/report/summary.h"
#include "deploy/runner/checkpoint_requests.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct SubmitFlags : JobFlags {
  std::string engine;  // "slurm", "ssh"
  int64_t nodes = 0;   // 0: as many as --hosts
  std::vector<std::string> hosts;
  std::string controller;  // one of --hosts; "": this machine
  bool resume = false, other_data = false, write_only = false, detach = false;
  std::string partition, account, time;
  int64_t notice_s = 0;  // 0: the default
  std::vector<std::string> sbatch;
  std::string memory;
  FiguresFlags figures;
  int64_t cores = 0;  // 0: as the job needs
  int64_t gpus = -1;  // -1: as the job needs
  int64_t port = 0;   // 0: the engine's default
  std::string node_dir, program;
};

constexpr absl::Duration kLogPeriod = absl::Milliseconds(300);
constexpr int64_t kNoticeSeconds = 300;  // The default of --notice.

// ------------------------------------------------------------------------------------------------
// What a submission was given on the command line, kept in RUN_DIR/submit/flags.json, so that the
// next one of the run needs to name only what changes.

constexpr char kFlagsFile[] = "submit/flags.json";
constexpr char kFolder[] = "folder";

template <typename Value>
struct Named {
  const char* name;
  Value SubmitFlags::*value;
};

// The flags of the engine. One with the value of a new SubmitFlags was not given.
constexpr Named<std::string> kTexts[] = {
    {"partition", &SubmitFlags::partition}, {"account", &SubmitFlags::account},
    {"time", &SubmitFlags::time},           {"memory", &SubmitFlags::memory},
    {"node-dir", &SubmitFlags::node_dir},   {"program", &SubmitFlags::program}};
constexpr Named<int64_t> kNumbers[] = {{"notice", &SubmitFlags::notice_s},
                                       {"cores", &SubmitFlags::cores},
                                       {"gpus", &SubmitFlags::gpus},
                                       {"port", &SubmitFlags::port}};
constexpr Named<std::optional<std::string>> kJobFields[] = {{"data", &SubmitFlags::data},
                                                            {"servers", &SubmitFlags::servers},
                                                            {"workers", &SubmitFlags::workers},
                                                            {"http", &SubmitFlags::http}};
constexpr Named<std::vector<std::string>> kJobChanges[] = {{"set", &SubmitFlags::set},
                                                           {"clear", &SubmitFlags::clear}};

template <typename Value>
void Take(const Json& kept, const char* name, Value* value) {
  if (*value == Value() && kept.contains(name)) *value = kept.at(name).get<Value>();
}

void TakeOfEngine(const Json& kept, SubmitFlags* flags) {
  if (flags->hosts.empty()) {
    Take(kept, "hosts", &flags->hosts);
    Take(kept, "nodes", &flags->nodes);
    Take(kept, "controller", &flags->controller);
  }
  Take(kept, "sbatch", &flags->sbatch);
  Take(kept, "figures", &flags->figures.file);
  for (const auto& [name, value] : kTexts) Take(kept, name, &(flags->*value));
  for (const auto& [name, value] : kNumbers) {
    if (flags->*value == SubmitFlags().*value && kept.contains(name)) {
      flags->*value = kept.at(name).get<int64_t>();
    }
  }
}

void TakeOfJob(const Json& kept, SubmitFlags* flags) {
  for (const auto& [name, value] : kJobFields) {
    if (!(flags->*value).has_value() && kept.contains(name)) {
      flags->*value = kept.at(name).get<std::string>();
    }
  }
  for (const auto& [name, value] : kJobChanges) {
    // What is given now comes last, and so wins.
    if (!kept.contains(name)) continue;
    auto all = kept.at(name).get<std::vector<std::string>>();
    all.insert(all.end(), (flags->*value).begin(), (flags->*value).end());
    flags->*value = std::move(all);
  }
}

// Errors: those of RunDirectory::Write
absl::Status KeepFlags(const SubmitFlags& flags, const RunDirectory& directory) {
  std::error_code error;
  Json kept = {{"engine", flags.engine},
               {"hosts", flags.hosts},
               {"nodes", flags.nodes},
               {"controller", flags.controller},
               {"sbatch", flags.sbatch},
               {"figures", flags.figures.file},
               {"bin-dir", AbsolutePath(flags.bin_dir)},
               {"insecure", flags.insecure},
               {kFolder, std::filesystem::current_path(error).string()}};
  for (const auto& [name, value] : kTexts) kept[name] = flags.*value;
  for (const auto& [name, value] : kNumbers) kept[name] = flags.*value;
  for (const auto& [name, value] : kJobFields) {
    if ((flags.*value).has_value()) kept[name] = *(flags.*value);
  }
  for (const auto& [name, value] : kJobChanges) kept[name] = flags.*value;
  return directory.Write(kFlagsFile, kept.dump(2) + "\n");
}

// Fills in what `flags` leaves out, where it goes on with a run (--resume) or submits one again
// that has never begun (no JOB): the latter with its job file, all that changed it, and the folder
// that its relative paths begin at, which becomes this process's. Hosts that are named anew take
// the place of the kept ones, of their number and of the controller's; another engine takes nothing
// of the kept one. OK where nothing is kept. Errors: kFailedPrecondition (there is no such folder),
// kDataLoss, kUnavailable
absl::Status TakeKeptFlags(SubmitFlags* flags) {
  if (flags->run_dir.empty() || (!flags->resume && !flags->job.empty())) return absl::OkStatus();
  flags->run_dir = AbsolutePath(flags->run_dir);
  const std::string path = absl::StrCat(flags->run_dir, "/", kFlagsFile);
  std::ifstream file(path);
  if (!file && errno == ENOENT) return absl::OkStatus();
  if (!file) {
    return absl::UnavailableError(absl::StrCat("can't read ", path, ": ", std::strerror(errno)));
  }
  const Json kept = Json::parse(file, nullptr, false);
  try {
    const std::string engine = kept.at("engine").get<std::string>();
    if (flags->engine.empty()) flags->engine = engine;
    if (flags->engine == engine) TakeOfEngine(kept, flags);
    Take(kept, "bin-dir", &flags->bin_dir);
    if (!flags->insecure) flags->insecure = kept.at("insecure").get<bool>();
    if (flags->resume) return absl::OkStatus();
    TakeOfJob(kept, flags);
    flags->job = SubmitFolder(flags->run_dir) + "/job.textproto";
    std::error_code error;
    const std::string folder = kept.at(kFolder).get<std::string>();
    std::filesystem::current_path(folder, error);
    if (!error) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the job was submitted in the folder ", folder, ": ", error.message()));
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat(path, " can't be read: ", error.what()));
  }
}

// ------------------------------------------------------------------------------------------------

struct Prepared {
  std::string engine;
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

// For --resume.
absl::Status CheckBegun(const std::string& run_dir) {
  if (run_dir.empty()) {
    return absl::InvalidArgumentError("--resume needs --run-dir, the folder of the run");
  }
  ASSIGN_OR_RETURN(const bool has_begun, HasBegun(run_dir, absl::ZeroDuration()));
  if (has_begun) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "--resume: ", run_dir, " has no job.textproto, so that no run has begun there; without ",
      "--resume, and with JOB, submit begins one"));
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
  add("--http", flags.http);
  for (const std::string& value : flags.set) words.insert(words.end(), {"--set", value});
  for (const std::string& value : flags.clear) words.insert(words.end(), {"--clear", value});
  if (flags.insecure) words.emplace_back("--insecure");
  if (flags.other_data) words.emplace_back("--other-data");
  if (!flags.bin_dir.empty()) words.insert(words.end(), {"--bin-dir", AbsolutePath(flags.bin_dir)});
  return words;
}

// What agents need beside the controller's address.
std::vector<std::string> NodeFlagsOf(const SubmitFlags& flags, const Job& job) {
  std::vector<std::string> words;
  if (!flags.bin_dir.empty()) words.push_back("--bin-dir=" + AbsolutePath(flags.bin_dir));
  if (job.cluster().insecure()) words.emplace_back("--insecure");
  const TlsFiles tls = TlsFilesOf(job.cluster().tls(), Role::kNode);
  if (!tls.empty()) {
    words.insert(words.end(), {"--tls-certificate=" + tls.certificate,
                               "--tls-private-key=" + tls.private_key, "--tls-ca=" + tls.ca});
  }
  return words;
}

// It lies where hosts see it, too.
absl::Status CheckNodeCertificate(const Job& job) {
  const TlsFiles tls = TlsFilesOf(job.cluster().tls(), Role::kNode);
  return tls.empty() ? absl::OkStatus() : ReadTlsFiles(tls, TlsUse::kClient).status();
}

absl::StatusOr<HostNeeds> NeedsOf(const SubmitFlags& flags, const Job& job, uint32_t hosts,
                                  const std::optional<Json>& figures,
                                  std::vector<std::string>* notices) {
  PlanInputs inputs;
  if (figures.has_value()) inputs.figures = &*figures;
  ASSIGN_OR_RETURN(const JobPlan plan, PlanOf(job, inputs, ThisMachine("runs")));
  HostNeeds needs = NeedsOfHost(job, plan, hosts);
  if (!flags.memory.empty()) {
    const auto memory = ParseByteSize(flags.memory);
    if (!memory.ok())
      return absl::InvalidArgumentError(absl::StrCat("--memory: ", memory.status().message()));
    needs.memory_bytes = *memory;
  } else if (needs.memory_bytes == 0 && flags.engine == "slurm") {
    notices->push_back(
        "asking for all memory of each host: how many rows the tables will have is not known "
        "before (--scan or --figures tell; --memory SIZE asks for less)");
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
  if (flags.engine == "ssh" && flags.hosts.empty()) {
    return absl::InvalidArgumentError("--engine ssh needs the hosts: --hosts a,b,c");
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

absl::StatusOr<RunDirectory> OpenRunDirectory(const SubmitFlags& flags, const Job& job) {
  const std::string path = AbsolutePath(flags.run_dir);
  if (!path.empty()) RETURN_IF_ERROR(CheckFree(path));
  ASSIGN_OR_RETURN(RunDirectory made,
                   flags.resume
                       ? RunDirectory::Open(path)
                       : RunDirectory::Create(path, job.name(), absl::Now(), job.readers()));
  MakeFilesFor(job.readers());
  return RunDirectory::Open(AbsolutePath(made.path()));
}

absl::StatusOr<Prepared> Prepare(SubmitFlags flags, SignalWatch* signals) {
  if (flags.other_data && !flags.resume) {
    return absl::InvalidArgumentError("--other-data is for --resume: a new run takes any data");
  }
  if (flags.resume) RETURN_IF_ERROR(CheckBegun(flags.run_dir));
  RETURN_IF_ERROR(TakeKeptFlags(&flags));
  ASSIGN_OR_RETURN(const uint32_t hosts, NumHosts(flags));
  if (flags.resume && flags.job.empty()) flags.job = flags.run_dir + "/job.textproto";
  JobFlags without_page = flags;  // The page's address may need the certificates below.
  without_page.http.reset();
  ASSIGN_OR_RETURN(Job job, LoadJobOf(without_page));
  RETURN_IF_ERROR(CheckMaySpread(job));
  SubmitFlags kept = flags;
  kept.node_dir = AbsolutePath(flags.node_dir);
  // Its ports are reached from other machines: closed, unless its user says otherwise.
  if (!job.cluster().insecure() && !job.cluster().has_tls()) {
    flags.set.emplace_back("cluster.tls.automatic=true");
    ASSIGN_OR_RETURN(job, LoadJobOf(flags));
  } else if (flags.http.has_value()) {
    ASSIGN_OR_RETURN(job, LoadJobOf(flags));
  }
  ASSIGN_OR_RETURN(const std::string job_text, ReadText(flags.job));
  Submission submission;
  std::vector<std::string> notices;
  submission.job_name = job.name();
  submission.hosts = hosts;
  submission.resumable = WritesCheckpoints(job);
  submission.resumes = flags.resume;
  if (!submission.resumable) {
    notices.push_back(
        "the job writes no checkpoints (checkpoint.none): after a loss of a host, or at the "
        "walltime, it does not go on");
  } else if (job.checkpoint().every_steps() == 0) {
    notices.push_back(
        "checkpoint.every_steps is 0: with the loss of a host all that was trained is lost, or the "
        "job ends (checkpoint.max_rollbacks)");
  }
  submission.port = static_cast<uint32_t>(flags.port);
  submission.node_dir = AbsolutePath(flags.node_dir);
  submission.folder = fs::current_path().string();
  ASSIGN_OR_RETURN(const auto figures,
                   FiguresOf(job, flags.figures, flags.bin_dir, STDOUT_FILENO, signals));
  ASSIGN_OR_RETURN(submission.needs, NeedsOf(flags, job, hosts, figures, &notices));
  std::error_code error;
  submission.program = flags.program.empty() ? ThisProgram() : flags.program;
  SlurmRequest slurm{flags.partition, flags.account, flags.time,
                     static_cast<uint32_t>(flags.notice_s > 0 ? flags.notice_s : kNoticeSeconds),
                     flags.sbatch};
  SshRequest ssh{flags.hosts, flags.controller};
  if (flags.engine == "ssh") RETURN_IF_ERROR(CheckSsh(submission, ssh));
  ASSIGN_OR_RETURN(RunDirectory directory, OpenRunDirectory(flags, job));
  submission.run_dir = directory.path();
  RETURN_IF_ERROR(MakeJoinCertificates(directory, /*listen=*/"", &job));
  // Agents would end for it, one by one.
  RETURN_IF_ERROR(CheckNodeCertificate(job));
  submission.node_flags = NodeFlagsOf(flags, job);
  if (flags.engine == "slurm") RETURN_IF_ERROR(CheckSlurm(submission, slurm));
  fs::create_directories(SubmitFolder(directory.path()), error);
  RETURN_IF_ERROR(directory.Write("submit/job.textproto", job_text));
  submission.train_flags = TrainFlagsOf(flags, directory.File("submit/job.textproto"));
  if (figures.has_value()) {
    kept.figures.file = directory.File("submit/figures.json");
    RETURN_IF_ERROR(directory.Write("submit/figures.json", figures->dump() + "\n"));
  }
  RETURN_IF_ERROR(KeepFlags(kept, directory));
  return Prepared{flags.engine,   std::move(submission), std::move(slurm),
                  std::move(ssh), std::move(directory),  std::move(notices)};
}

absl::StatusOr<EngineJob> Submit(const Prepared& prepared) {
  const Submission& submission = prepared.submission;
  EngineJob job;
  job.engine = prepared.engine;
  job.job = submission.job_name;
  job.host = HostName();
  job.hosts = submission.hosts;
  job.run_dir = submission.run_dir;
  WithdrawStop(submission.run_dir);
  if (job.engine == "slurm") {
    ASSIGN_OR_RETURN(job.id, SubmitToSlurm(prepared.File("batch.sh"), submission.hosts,
                                           submission.needs, prepared.slurm.partition));
  } else {
    RETURN_IF_ERROR(
        CheckSshHosts(prepared.ssh.hosts, submission.program, prepared.File("batch.sh")));
    ASSIGN_OR_RETURN(job.id, StartScript(prepared.File("batch.sh"), prepared.File("batch.log")));
  }
  RETURN_IF_ERROR(WriteEngineJob(job));
  return job;
}

// The last line that each agent has printed, by the name of its file.
std::map<std::string, std::string> LastWordsOfAgents(const std::string& run_dir) {
  std::map<std::string, std::string> words;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(SubmitFolder(run_dir), error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, "node-")) continue;
    const std::vector<std::string> tail = LogTail(entry.path().string(), 1);
    if (!tail.empty()) words[name] = tail[0];
  }
  return words;
}

// Returns what agents that don't reach the controller have logged since `begin`, for a job that
// waits for its hosts and so has no servers.
//   said: the agents' complaints so far, each of which is shown once
std::string NewComplaints(const std::string& run_dir, fs::file_time_type begin,
                          std::map<std::string, std::string>* said) {
  std::string text;
  std::error_code error;
  const auto served = fs::last_write_time(run_dir + "/servers.json", error);
  if (!error && served >= begin) return text;
  for (const auto& [name, line] : LastWordsOfAgents(run_dir)) {
    if (!absl::StrContains(line, "can't reach the controller")) continue;
    if (said->emplace(name, line).second) absl::StrAppend(&text, name, ": ", line, "\n");
  }
  return text;
}

// Shows what the batch log grows by, and what the engine says, until the job has ended or a request
// to stop comes. Returns the exit code.
int Follow(const EngineJob& job, uint64_t log_begin, SignalWatch* signals) {
  Console console(STDOUT_FILENO, signals);
  std::ifstream log;
  std::string last_text;
  EngineState state{EngineState::What::kWaiting, ""};
  const Stopwatch watch;
  absl::Duration ask_at;
  std::map<std::string, std::string> complaints_said;
  const fs::file_time_type begin = fs::file_time_type::clock::now();
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
    if (watch.Elapsed() >= ask_at) {
      const auto answer = AskEngine(job);
      if (answer.ok()) state = *answer;  // An engine that does not answer now will.
      if (job.engine == "slurm" && state.text != last_text)
        console.Write(absl::StrCat("Slurm: ", state.text, "\n"));
      last_text = state.text;
      const std::string complaints = NewComplaints(job.run_dir, begin, &complaints_said);
      if (!complaints.empty()) console.Write(complaints);
      ask_at = watch.Elapsed() + kEnginePeriod;
      if (state.what == EngineState::What::kEnded) continue;
    }
    absl::SleepFor(kLogPeriod);
  }
  const MetricsTail tail = ReadMetricsTail(job.run_dir + "/metrics.jsonl");
  const bool is_done = tail.end.has_value() && TextAt(*tail.end, "status") == "OK";
  if (!is_done && !tail.progress.has_value()) {  // What agents said last may be why.
    for (const auto& [name, line] : LastWordsOfAgents(job.run_dir)) {
      console.Write(absl::StrCat(name, ": ", line, "\n"));
    }
  }
  return is_done ? kExitDone : kExitFailed;
}

int RunSubmit(const SubmitFlags& flags) {
  SignalWatch signals;  // before anything starts a thread
  const auto prepared = Prepare(flags, &signals);
  if (!prepared.ok()) return Complain(prepared.status().message(), kExitUsage);
  const std::string script = prepared->File("batch.sh");
  const absl::Status written = prepared->directory.Write(
      "submit/batch.sh", prepared->engine == "slurm"
                             ? SlurmScript(prepared->submission, prepared->slurm)
                             : SshScript(prepared->submission, prepared->ssh));
  if (!written.ok()) return Complain(written.message(), kExitFailed);
  std::error_code error;
  fs::permissions(script, fs::perms::owner_exec, fs::perm_options::add, error);
  for (const std::string& notice : prepared->notices) std::printf("%s\n", notice.c_str());
  if (flags.write_only) {
    std::printf("written: %s\nto run it: %s%s\n", script.c_str(),
                prepared->engine == "slurm" ? "sbatch " : "setsid bash ", script.c_str());
    return kExitDone;
  }
  const uint64_t log_begin = [&] {
    const auto size = fs::file_size(prepared->File("batch.log"), error);
    return error ? 0 : size;
  }();
  const auto job = Submit(*prepared);
  if (!job.ok()) return Complain(job.status().message(), kExitFailed);
  const absl::Status remembered = RememberRunDirectory(job->run_dir);
  if (!remembered.ok())
    Complain(absl::StrCat(remembered.message(), ": `jobs` will not show it"), kExitDone);
  std::printf("job %s of %s: '%s' on %u hosts\nrun directory: %s\n", job->id.c_str(),
              job->engine.c_str(), job->job.c_str(), job->hosts, job->run_dir.c_str());
  std::fflush(stdout);
  return flags.detach ? kExitDone : Follow(*job, log_begin, &signals);
}

void AddSlurmFlags(CLI::App* command, SubmitFlags* flags) {
  AddValue(command, "--partition", &flags->partition, "NAME", "Slurm: of the cluster");
  AddValue(command, "--account", &flags->account, "NAME", "Slurm: that pays");
  AddValue(command, "--time", &flags->time, "TIME",
           "Slurm: the walltime, as of sbatch: 2-00:00:00");
  AddValue(command, "--notice", &flags->notice_s, "SECONDS",
           "Slurm: how long before the walltime the job writes a checkpoint and goes back into the "
           "queue; default 300")
      ->transform(WholeNumber(10, 65535));
  AddValue(command, "--sbatch", &flags->sbatch, "FLAG",
           "Slurm: a further flag of sbatch: --sbatch=--constraint=avx2 (may be repeated)")
      ->allow_extra_args(false);
  AddValue(command, "--memory", &flags->memory, "SIZE",
           "Slurm: of each host; default: as `plan` finds, or all where rows are not known");
  const CLI::Option* scan = command->add_flag(
      "--scan", flags->figures.scan,
      "Slurm: reads the data first, as `plan --scan`, for the rows of the tables");
  RefuseBoth(AddValue(command, "--figures", &flags->figures.file, "FILE",
                      "Slurm: what `inspect --json` has printed of the data, instead of --scan"),
             scan);
  AddValue(command, "--cores", &flags->cores, "N",
           "Slurm: of each host; default: the job's threads, or all where the job leaves them open")
      ->transform(WholeNumber(1, 4096));
  AddValue(command, "--gpus", &flags->gpus, "N",
           "Slurm: of each host; default: one a worker, with device: CUDA")
      ->transform(WholeNumber(0, 64));
}

}  // namespace

void AddSubmit(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<SubmitFlags>();
  CLI::App* command = AddCommand(
      app, "submit", "gives a job to Slurm, or to a list of hosts over ssh, and follows it",
      R"(Writes a script to RUN_DIR/submit that runs the controller of the job (`thermocline train --nodes`)
and an agent on each host (`thermocline node`), and hands it to the engine. All hosts must see the
run directory, the data and this program at the same paths. Shows the job's progress until it ends;
Ctrl-C ends that, not the job (`thermocline stop RUN_DIR`).

slurm: before the walltime, and at a preemption, the job writes a checkpoint and goes back into the
queue; started again it goes on where it was. ssh: needs ssh to each host without a password.

examples:
  thermocline submit job.textproto --engine slurm --nodes 4 --run-dir /shared/runs/a --time 8:00:00
  thermocline submit job.textproto --engine ssh --hosts a1,a2,a3 --run-dir /shared/runs/b
  thermocline submit job.textproto --engine slurm --nodes 4 --write-only
  thermocline submit --resume --run-dir /shared/runs/a --nodes 6
  thermocline submit --run-dir /shared/runs/a    # again, one that was stopped before it began)");
  AddJobFlags(command, flags.get(), true, "that all hosts see; default: runs/NAME-TIME");
  AddHttpFlag(command, flags.get());
  AddValue(command, "--engine", &flags->engine, "ENGINE", "slurm or ssh");
  AddValue(command, "--nodes", &flags->nodes, "N", "on how many hosts; ssh: default all of --hosts")
      ->transform(WholeNumber(1, 4096));
  AddValue(command, "--hosts", &flags->hosts, "HOST,HOST", "ssh: the hosts, HOST or USER@HOST")
      ->delimiter(',')
      ->allow_extra_args(false);
  AddValue(command, "--controller", &flags->controller, "HOST",
           "ssh: the one of --hosts that the controller runs on; default: this machine");
  command->add_flag("--resume", flags->resume,
                    "goes on with the run in --run-dir, with the flags of its last submission "
                    "unless others are given");
  command->add_flag("--other-data", flags->other_data,
                    "resumes, at each start of this submission, although the data are not those of "
                    "the checkpoint");
  command->add_flag("--write-only", flags->write_only, "writes the script, and starts nothing");
  command->add_flag("--detach", flags->detach, "does not wait for the job");
  AddSlurmFlags(command, flags.get());
  AddValue(command, "--port", &flags->port, "PORT",
           "of the controller; default: slurm 20000 and the last four digits of the job's number, "
           "ssh a free one from 20000 to 32000")
      ->transform(WholeNumber(1, 65535));
  AddValue(command, "--node-dir", &flags->node_dir, "DIR",
           "of agents, on each host's own disk; default: one in /tmp");
  AddValue(command, "--program", &flags->program, "PATH",
           "of thermocline on the hosts; default: this one's");
  OnCommand(command, action, RunSubmit, flags);
}

}  // namespace thermocline
