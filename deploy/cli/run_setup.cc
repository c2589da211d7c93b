#include "deploy/cli/run_setup.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/disk/disk.h"
#include "common/disk/file_list.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/net/rpc.h"
#include "common/net/tls_files.h"
#include "common/version/version.h"
#include "deploy/checkpoints/checkpoint_match.h"
#include "deploy/checkpoints/resume.h"
#include "deploy/cli/checkpoint_path.h"
#include "deploy/cli/console.h"
#include "deploy/cli/job_certificates.h"
#include "deploy/cli/job_files.h"
#include "deploy/runner/checkpoint_requests.h"
#include "deploy/trace/trace_merge.h"

namespace thermocline {
namespace {

// How long to wait for the processes of a killed launcher to die: one may be in the middle of a
// write.
constexpr absl::Duration kLockPatience = absl::Seconds(10);
// How long a file system may take to answer at the start of a controller, on a host that has just
// come up.
constexpr absl::Duration kReadPatience = absl::Seconds(60);

// Loads the job of flags.job or, if that is empty, of the file `default_path`, changed by the
// flags, then by `more_overrides`, and without the fields `more_cleared`.
absl::StatusOr<Job> LoadChangedJob(const JobFlags& flags, const std::string& default_path,
                                   const std::vector<std::string>& more_overrides = {},
                                   const std::vector<std::string>& more_cleared = {},
                                   JobUse use = JobUse::kTrain) {
  const std::string& path = flags.job.empty() ? default_path : flags.job;
  if (path.empty()) return absl::InvalidArgumentError("name the job file");
  std::vector<std::string> overrides = flags.set;
  std::vector<std::pair<std::string, std::string>> spellings;  // in errors of LoadJob, for users
  for (const auto& [flag, field, value] :
       {std::tuple("--data", "data.path", &flags.data),
        std::tuple("--servers", "cluster.servers", &flags.servers),
        std::tuple("--workers", "cluster.workers", &flags.workers),
        std::tuple("--http", "cluster.http.address", &flags.http)}) {
    if (!value->has_value()) continue;
    overrides.push_back(absl::StrCat(field, "=", **value));
    spellings.emplace_back("--set " + overrides.back(), absl::StrCat(flag, " ", **value));
  }
  overrides.insert(overrides.end(), more_overrides.begin(), more_overrides.end());
  if (flags.insecure) overrides.push_back("cluster.insecure=true");
  std::vector<std::string> cleared = flags.clear;
  cleared.insert(cleared.end(), more_cleared.begin(), more_cleared.end());
  absl::StatusOr<Job> job = LoadJob(path, overrides, cleared, use);
  if (!job.ok()) {
    return absl::Status(job.status().code(),
                        absl::StrReplaceAll(job.status().message(), spellings));
  }
  MakePathsAbsolute(&*job);
  RETURN_IF_ERROR(CheckJobFiles(*job));
  job->clear_data_files();  // They are those of the run that left the job file.
  return job;
}

// Finds what a new job begins with (init_from), and adds notices about it. Errors: those of
// ResolveCheckpointPath; kFailedPrecondition (it doesn't fit: in what)
absl::Status FindInit(Job* job, std::vector<std::string>* notices) {
  job->clear_init();
  if (job->init_from().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const CheckpointPath path,
                   ResolveCheckpointPath(job->init_from(), nullptr, notices));
  PosixDisk disk;
  ASSIGN_OR_RETURN(
      const ListedCheckpoint found,
      LoadWholeCheckpoint(CheckpointStore(&disk, path.directory), path.name, nullptr, notices));
  const CheckpointManifest& manifest = found.manifest;
  const absl::StatusOr<std::vector<std::string>> anew = CheckInit(*job, manifest, notices);
  if (!anew.ok()) {
    return absl::Status(
        anew.status().code(),
        absl::StrCat("init_from ", job->init_from(), " does not fit: ", anew.status().message()));
  }
  InitCheckpoint* const init = job->mutable_init();
  init->set_directory(AbsolutePath(path.directory));
  init->set_name(found.name);
  init->set_generation(manifest.generation());
  init->mutable_begins_anew()->Assign(anew->begin(), anew->end());
  init->set_steps(static_cast<uint64_t>(manifest.step() + 1) + manifest.job().init().steps());
  notices->push_back(absl::StrCat("beginning with the rows of checkpoint ", found.name, " of job '",
                                  manifest.job_id(), "' in ", init->directory()));
  return absl::OkStatus();
}

// A job that goes on began with what it began with: as its checkpoint says, or its run directory.
absl::Status KeepInit(const ResumePoint& point, const RunDirectory& directory, Job* job) {
  Job before;
  const std::string file = directory.File("job.textproto");
  if (point.base.has_value()) {
    before = point.base->job();
  } else {
    absl::StatusOr<Job> found = LoadJob(file, {});
    if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
    if (found.ok()) before = *std::move(found);
  }
  if (!job->init_from().empty() && job->init_from() != before.init_from()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "init_from is ", job->init_from(), ", and the job began with ",
        before.init_from().empty() ? "nothing" : before.init_from(), ": a run begins once"));
  }
  job->set_init_from(before.init_from());
  job->clear_init();
  if (before.has_init()) *job->mutable_init() = before.init();
  return absl::OkStatus();
}

// Whether the job and the flags name no servers, and nothing that only servers can do.
bool MayEmbedServer(const TrainFlags& flags) {
  if (flags.job.empty() || flags.servers.has_value() || flags.workers.has_value() ||
      flags.nodes > 0) {
    return false;
  }
  const absl::StatusOr<Job> written = ReadWrittenJob(flags.job, flags.set, flags.clear);
  if (!written.ok()) return false;  // LoadJob says what is wrong.
  const Cluster& cluster = written->cluster();
  return !cluster.has_servers() && cluster.workers() <= 1 && cluster.durability() == NONE;
}

// If JOB is left out, --resume takes the job as it was run.
absl::StatusOr<Job> JobToTrain(TrainFlags flags, bool resumes) {
  if (flags.embed && MayEmbedServer(flags)) flags.servers = "0";
  if (!resumes) {
    std::vector<std::string> overrides;
    if (!flags.init_from.empty()) overrides.push_back("init_from=" + flags.init_from);
    return LoadChangedJob(flags, "", overrides, {}, JobUse::kTrain);
  }
  if (flags.run_dir.empty()) {
    return absl::InvalidArgumentError("--resume needs --run-dir, the folder of the run");
  }
  absl::StatusOr<Job> job = LoadChangedJob(flags, flags.run_dir + "/job.textproto");
  if (job.ok() && !WritesCheckpoints(*job)) {
    return absl::FailedPreconditionError(
        "the job writes no checkpoints (checkpoint.none): there is nothing to resume");
  }
  return job;
}

// The steps of --trace, or of the job file. Those of an earlier launch are not traced again.
absl::Status SetTrace(const TrainFlags& flags, bool resumes, Job* job) {
  for (const std::string& set : flags.set) {
    if (!absl::StartsWith(set, "trace")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", set, ": the steps to trace are a flag, --trace FIRST:LAST"));
  }
  if (resumes && !flags.restarted) job->clear_trace();
  if (flags.trace.empty()) return job->has_trace() ? CheckTrace(job->trace()) : absl::OkStatus();
  ASSIGN_OR_RETURN(*job->mutable_trace(), ParseTrace(flags.trace));
  return absl::OkStatus();
}

// A controller that an engine has started again may begin behind the traced steps.
absl::Status DropTraceOfThePast(const TrainFlags& flags, RunSetup* setup) {
  if (!setup->job.has_trace()) return absl::OkStatus();
  const int64_t first = setup->options.start.first_step().value();
  if (first <= static_cast<int64_t>(setup->job.trace().last_step())) return absl::OkStatus();
  if (!flags.restarted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--trace ", flags.trace, ": the job goes on at step ", first, ", behind these steps"));
  }
  setup->job.clear_trace();
  return absl::OkStatus();
}

absl::Status SetUpHosts(const TrainFlags& flags, const Job& job, JobOptions* options) {
  if (flags.nodes == 0 && flags.listen.empty()) return absl::OkStatus();
  if (flags.nodes == 0 || flags.listen.empty()) {
    return absl::InvalidArgumentError(
        "--nodes and --listen belong together: how many hosts, and where their agents "
        "(`thermocline node`) find this controller");
  }
  if (flags.run_dir.empty()) {
    return absl::InvalidArgumentError(
        "--nodes needs --run-dir, a folder that all hosts see at the same path");
  }
  RETURN_IF_ERROR(CheckMaySpread(job));
  const Tls& tls = job.cluster().tls();
  if (!tls.automatic()) {
    RETURN_IF_ERROR(
        CheckMayListen(flags.listen, TlsFilesOf(tls, Role::kController), job.cluster().insecure()));
  }
  options->num_hosts = static_cast<size_t>(flags.nodes);
  options->listen = flags.listen;
  ASSIGN_OR_RETURN(options->programs.digest, DigestOfPrograms(options->programs));
  return absl::OkStatus();
}

absl::StatusOr<RunLock> TakeLock(const std::string& folder) {
  return RunLock::Take(folder, kLockPatience, [](const std::string& what) {
    std::fprintf(stderr, "thermocline: %s\n", what.c_str());
  });
}

// The name of the checkpoint that --resume-from names by its name, its path, or as the best; "": it
// names none. Without a '/' it is looked for in the job's own directory.
absl::StatusOr<std::string> CheckpointToResume(const std::string& wanted,
                                               const CheckpointStore& store, ByteScan* scan,
                                               std::vector<std::string>* notices) {
  if (wanted.empty()) return wanted;
  const bool is_name = wanted.find('/') == std::string::npos;
  ASSIGN_OR_RETURN(
      const CheckpointPath path,
      ResolveCheckpointPath(is_name ? absl::StrCat(store.directory(), "/", wanted) : wanted, scan,
                            notices));
  std::error_code error;
  if (!std::filesystem::equivalent(path.directory, store.directory(), error)) {
    return absl::InvalidArgumentError(absl::StrCat("--resume-from ", wanted, " is not in ",
                                                   store.directory(),
                                                   ", where the job's checkpoints are"));
  }
  return path.name;
}

// Whether the flags go on with a run, or begin one.
absl::StatusOr<bool> Resumes(const TrainFlags& flags) {
  const bool resumes = flags.resume || flags.restarted || !flags.resume_from.empty();
  if (!flags.or_begin) return resumes;
  if (!resumes || !flags.resume_from.empty() || flags.job.empty() || flags.run_dir.empty()) {
    return absl::InvalidArgumentError(
        "--or-begin belongs to JOB, --run-dir and --resume or --restarted");
  }
  return HasBegun(flags.run_dir, kReadPatience);
}

absl::StatusOr<RunDirectory> DirectoryOf(const TrainFlags& flags, const Job& job, bool resumes) {
  if (resumes) return RunDirectory::Open(flags.run_dir);
  // It has been made before: one that is not there is on a file system that is not there.
  if (flags.or_begin) return RunDirectory::OpenUnused(flags.run_dir);
  return RunDirectory::Create(flags.run_dir, job.name(), absl::Now(), job.readers());
}

// A run that begins, in a folder of checkpoints that is locked.
absl::Status BeginCheckpoints(const TrainFlags& flags, const CheckpointStore& store,
                              RunSetup* setup) {
  const absl::Status unused = CheckUnused(store);
  if (unused.ok() || !flags.or_begin) return unused;
  // A start before may have ended between HISTORY and the job file.
  const auto list = store.List();
  if (!list.ok() || !list->empty()) return unused;
  const auto next = FindNextGeneration(store, setup->job.name(), "");
  if (!next.ok()) return unused;
  setup->options.start = next->start;
  return absl::OkStatus();
}

// Where the checkpoint refuses the job because of one flag, names that first.
absl::StatusOr<ResumePoint> FindPointOf(const TrainFlags& flags, const CheckpointStore& store,
                                        const RunSetup& setup, const std::string& name) {
  const std::string& build = setup.options.programs.build;
  absl::StatusOr<ResumePoint> point = FindResumePoint(store, setup.job, build, name);
  if (!absl::IsFailedPrecondition(point.status())) return point;
  const std::string file = flags.job.empty() ? setup.directory.File("job.textproto") : flags.job;
  const std::string flag =
      FlagToBlame(flags.set, flags.clear, [&](const auto& overrides, const auto& cleared) {
        const auto job = LoadJob(file, overrides, cleared);
        return job.ok() && FindResumePoint(store, *job, build, name).ok();
      });
  if (flag.empty()) return point;
  return absl::Status(point.status().code(), absl::StrCat(flag, ": ", point.status().message()));
}

// Whether the run goes on in the data of its checkpoint; a notice says what is other where the user
// insists on it.
absl::Status CheckDataOf(const TrainFlags& flags, const std::string& checkpoint,
                         const CheckpointManifest& manifest, RunSetup* setup) {
  const absl::Status same = CheckDataFiles(setup->job, manifest, &setup->options.notices);
  if (same.ok()) return same;
  const std::string what =
      absl::StrCat("the data are not those of checkpoint ", checkpoint, ": ", same.message());
  if (flags.other_data) {
    setup->options.notices.push_back(what);
    return absl::OkStatus();
  }
  return absl::Status(same.code(),
                      absl::StrCat(what,
                                   "; put them back, begin a new run with the checkpoint's model "
                                   "(--init-from), or insist: --other-data"));
}

// Locks the checkpoint directory and finds where in it the run begins.
absl::Status SetUpCheckpoints(const TrainFlags& flags, bool resumes, ByteScan* scan,
                              RunSetup* setup) {
  if (!WritesCheckpoints(setup->job)) return absl::OkStatus();
  FillCheckpointDirectory(setup->directory, &setup->job);
  PosixDisk disk;
  CheckpointStore store(&disk, setup->job.checkpoint().directory());
  RETURN_IF_ERROR(store.Prepare());
  ASSIGN_OR_RETURN(RunLock lock, TakeLock(store.directory()));
  setup->locks.push_back(std::move(lock));
  if (!resumes) return BeginCheckpoints(flags, store, setup);
  setup->options.is_resumed = true;
  JobOptions& options = setup->options;
  ASSIGN_OR_RETURN(const std::string name,
                   CheckpointToResume(flags.resume_from, store, scan, &options.notices));
  ASSIGN_OR_RETURN(ResumePoint point, FindPointOf(flags, store, *setup, name));
  RETURN_IF_ERROR(KeepInit(point, setup->directory, &setup->job));
  if (point.base.has_value()) {
    RETURN_IF_ERROR(CheckDataOf(flags, point.start.base, *point.base, setup));
  }
  options.start = std::move(point.start);
  if (flags.restarted) options.start.spent = point.spent;
  options.notices.insert(options.notices.end(), point.notices.begin(), point.notices.end());
  return absl::OkStatus();
}

// How the job has ended, as far as there is no more to do; nullopt: it may go on.
absl::StatusOr<std::optional<JobOutcome>> FindOutcome(const RunSetup& setup) {
  Job job = setup.job;
  FillCheckpointDirectory(setup.directory, &job);
  PosixDisk disk;
  const CheckpointStore store(&disk, job.checkpoint().directory());
  ASSIGN_OR_RETURN(const std::optional<HistoryRecord> last, store.LastRecord());
  if (!last.has_value() || last->job_id() != job.name() || !last->has_outcome() ||
      last->outcome().what() == JobOutcome::LOST) {
    return std::nullopt;
  }
  return last->outcome();
}

// Refuses changes of fields that only training reads: to set one for `eval` is a mistake.
absl::Status RefuseChangesOfTraining(const EvalFlags& flags) {
  for (const auto& [flag, changes] :
       {std::pair("--set ", &flags.set), std::pair("--clear ", &flags.clear)}) {
    for (const std::string& change : *changes) {
      for (const char* field : {"cache", "calibration", "checkpoint", "cluster.durability",
                                "cluster.workers", "evaluate", "fae", "train.learning_rate",
                                "train.max_steps", "train.passes", "train.staleness_steps"}) {
        const std::string path = change.substr(0, change.find('='));
        if (path == "evaluate.task") continue;
        if (path != field && !absl::StartsWith(path, absl::StrCat(field, "."))) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            flag, change, " means nothing to eval: one worker scores, and ", "nothing is trained"));
      }
    }
  }
  return absl::OkStatus();
}

// The job file of the run directory that the checkpoint lies in; "": it lies in none.
std::string JobFileBeside(const CheckpointPath& path) {
  const std::filesystem::path file =
      std::filesystem::path(path.directory).parent_path() / "job.textproto";
  std::error_code error;
  return std::filesystem::exists(file, error) ? file.string() : "";
}

// A script computes the metric that it was trained with.
void KeepOwnMetric(const Evaluate& trained, Job* job) {
  if (!job->has_worker() || trained.own_metric().empty()) return;
  Evaluate* const policy = job->mutable_evaluate();
  policy->set_own_metric(trained.own_metric());
  policy->set_minimize(trained.minimize());
  policy->set_every_passes(1);  // A policy says when; no pass is made here.
  policy->set_keep_best(false);
}

}  // namespace

absl::StatusOr<Job> LoadJobOf(const JobFlags& flags) {
  ASSIGN_OR_RETURN(Job job, LoadChangedJob(flags, ""));
  std::vector<std::string> notices;
  RETURN_IF_ERROR(FindInit(&job, &notices));
  return job;
}

absl::Status CheckMaySpread(const Job& job) {
  if (!HasEmbeddedServer(job.cluster())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "cluster.servers is 0: the worker holds the rows itself, on the machine of `thermocline "
      "train`; a job on hosts has servers (--servers 1)");
}

int ComplainAboutSetup(const absl::Status& why) {
  return Complain(why.message(), absl::IsCancelled(why) ? kExitFailed : kExitUsage);
}

absl::StatusOr<RunSetup> SetUpTraining(const TrainFlags& flags, ByteScan* scan) {
  if (flags.restarted && !flags.resume_from.empty()) {
    return absl::InvalidArgumentError(
        "--restarted goes on where the job was, and --resume-from elsewhere");
  }
  ASSIGN_OR_RETURN(const bool resumes, Resumes(flags));
  if (flags.other_data && !resumes) {
    return absl::InvalidArgumentError("--other-data is for --resume: a new run takes any data");
  }
  if (resumes && !flags.init_from.empty()) {
    return absl::InvalidArgumentError(
        "--init-from begins a new run, and --resume goes on with one");
  }
  ASSIGN_OR_RETURN(Job job, JobToTrain(flags, resumes));
  JobOptions options;
  if (!resumes) RETURN_IF_ERROR(FindInit(&job, &options.notices));
  RETURN_IF_ERROR(SetTrace(flags, resumes, &job));
  ASSIGN_OR_RETURN(options.programs, FindProgramsOf(flags));
  RETURN_IF_ERROR(SetUpHosts(flags, job, &options));
  // Else this machine takes no process of the job.
  if (options.num_hosts == 0) RETURN_IF_ERROR(CheckScriptProgram(job));
  ASSIGN_OR_RETURN(RunDirectory directory, DirectoryOf(flags, job, resumes));
  MakeFilesFor(job.readers());
  RunSetup setup = {std::move(job), std::move(options), std::move(directory), {}, std::nullopt};
  ASSIGN_OR_RETURN(RunLock lock, TakeLock(setup.directory.path()));
  setup.locks.push_back(std::move(lock));
  if (flags.restarted && resumes) {
    ASSIGN_OR_RETURN(setup.outcome, FindOutcome(setup));
    if (setup.outcome.has_value()) return setup;
  }
  RETURN_IF_ERROR(setup.options.num_hosts > 0
                      ? MakeJoinCertificates(setup.directory, flags.listen, &setup.job)
                      : MakeCertificates(setup.directory, &setup.job));
  // The request was for the launch before. (One for this job holds for all controllers of it.)
  if (!flags.restarted) WithdrawStop(setup.directory.path());
  if (const absl::Status found = FindDataFiles(&setup.job); !found.ok()) {
    setup.options.notices.push_back(
        absl::StrCat("can't look at the data, so that it is not noticed "
                     "where they change: ",
                     found.message()));
  }
  RETURN_IF_ERROR(SetUpCheckpoints(flags, resumes, scan, &setup));
  RETURN_IF_ERROR(DropTraceOfThePast(flags, &setup));
  setup.directory.FillHotDirectory(&setup.job);
  return setup;
}

absl::StatusOr<RunSetup> SetUpEvaluation(const EvalFlags& flags, ByteScan* scan) {
  RETURN_IF_ERROR(RefuseChangesOfTraining(flags));
  JobOptions options;
  options.eval_only = true;
  ASSIGN_OR_RETURN(const CheckpointPath path,
                   ResolveCheckpointPath(flags.checkpoint, scan, &options.notices));
  // What is held out of the job's own data doesn't matter to other data.
  std::vector<std::string> overrides,
      cleared = {"init_from",         "init", "fae", "calibration", "cluster.workers",
                 "cluster.durability"};
  if (flags.data.has_value()) {
    overrides = {"data.test_path=\"\"", "data.test_share=0"};
    cleared.insert(cleared.end(), {"data.test", "data.split"});
  }
  ASSIGN_OR_RETURN(Job job,
                   LoadChangedJob(flags, JobFileBeside(path), overrides, cleared, JobUse::kScore));
  if (flags.data.has_value()) ScoreAllRows(job.mutable_data());
  PosixDisk disk;
  const CheckpointStore store(&disk, path.directory);
  ASSIGN_OR_RETURN(const ListedCheckpoint base,
                   LoadWholeCheckpoint(store, path.name, scan, &options.notices));
  const CheckpointManifest& manifest = base.manifest;
  options.start.base = base.name;
  if (const std::string file = JobFileBeside(path); !file.empty()) {
    options.data_index = std::filesystem::path(file).parent_path() / "data_index";
  }
  RETURN_IF_ERROR(CheckModel(job, manifest));
  RETURN_IF_ERROR(CheckScriptProgram(job));
  KeepOwnMetric(manifest.job().evaluate(), &job);
  options.start.base_generation = manifest.generation();
  options.start.generation = manifest.generation() + 1;
  options.start.base_step = Step(manifest.step());
  options.start.base_samples = manifest.samples();
  ASSIGN_OR_RETURN(options.programs, FindProgramsOf(flags));
  std::string origin = DescribeOrigin(job, options.programs.build, base.name, manifest);
  if (!origin.empty()) options.notices.push_back(std::move(origin));
  job.clear_trace();
  // One worker scores; nothing is written that would have to last.
  job.set_name(manifest.job_id());
  job.mutable_cluster()->set_workers(1);
  job.mutable_cluster()->set_durability(NONE);
  CheckpointPolicy* policy = job.mutable_checkpoint();
  policy->Clear();
  policy->set_directory(store.directory());
  policy->set_at_end(false);
  policy->set_full_every(1);  // Every process has to read the same here.
  ASSIGN_OR_RETURN(RunDirectory directory,
                   RunDirectory::Create(flags.run_dir, absl::StrCat(job.name(), "-eval"),
                                        absl::Now(), job.readers()));
  MakeFilesFor(job.readers());
  RunSetup setup = {std::move(job), std::move(options), std::move(directory), {}, std::nullopt};
  ASSIGN_OR_RETURN(RunLock lock, TakeLock(setup.directory.path()));
  setup.locks.push_back(std::move(lock));
  RETURN_IF_ERROR(MakeCertificates(setup.directory, &setup.job));
  return setup;
}

void TakeOut(const std::string& field, JobFlags* flags) {
  const auto is_part = [&field](const std::string& assignment) {
    return absl::StartsWith(assignment, field + ".") || absl::StartsWith(assignment, field + "=");
  };
  flags->set.erase(std::remove_if(flags->set.begin(), flags->set.end(), is_part), flags->set.end());
  flags->clear.push_back(field);
}

absl::StatusOr<JobPrograms> FindProgramsOf(const JobFlags& flags) {
  JobPrograms programs;
  programs.build = THERMOCLINE_VERSION;
  for (const auto& [name, path] : {std::pair("thermocline-server", &programs.server),
                                   std::pair("thermocline-worker", &programs.worker)}) {
    absl::StatusOr<std::string> found = FindProgram(name, flags.bin_dir);
    if (!found.ok()) {
      return absl::NotFoundError(
          absl::StrCat(found.status().message(), " (--bin-dir names its folder)"));
    }
    *path = *std::move(found);
  }
  return programs;
}

void FillCheckpointDirectory(const RunDirectory& directory, Job* job) {
  if (!WritesCheckpoints(*job) || !job->checkpoint().directory().empty()) return;
  job->mutable_checkpoint()->set_directory(directory.CheckpointDirectory());
}

}  // namespace thermocline
