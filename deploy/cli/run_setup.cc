#include "deploy/cli/run_setup.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"
#include "deploy/checkpoints/checkpoint_match.h"
#include "deploy/checkpoints/resume.h"
#include "deploy/cli/train_job.h"

namespace thermocline {
namespace {

// The processes of a launcher that was killed die at once, but for those in the middle of a write.
constexpr absl::Duration kLockPatience = absl::Seconds(10);

// Where JOB is left out, --resume takes the job as it was run.
absl::StatusOr<Job> JobToTrain(const Flags& flags, bool resumes) {
  const std::string run_dir = flags.Get("run-dir");
  if (!resumes) return JobFromFlags(flags);
  if (run_dir.empty()) {
    return absl::InvalidArgumentError("--resume needs --run-dir, the folder of the run");
  }
  absl::StatusOr<Job> job = JobFromFlags(flags, absl::StrCat(run_dir, "/job.textproto"));
  if (job.ok() && !job->has_checkpoint()) {
    return absl::FailedPreconditionError(
        "the job has no checkpoint policy (`checkpoint {}`): there is nothing to resume");
  }
  return job;
}

// A path without a slash at its end, which would hide the name.
std::filesystem::path WithoutSlash(const std::string& text) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(text, error).lexically_normal();
  return path.filename().empty() ? path.parent_path() : path;
}

absl::StatusOr<RunLock> TakeLock(const std::string& folder) {
  return RunLock::Take(folder, kLockPatience, [](const std::string& what) {
    std::fprintf(stderr, "thermocline: %s\n", what.c_str());
  });
}

// The newest whole checkpoint, by every byte; each newer one is said to be passed over, and why.
absl::StatusOr<ListedCheckpoint> NewestWhole(const CheckpointStore& store,
                                             std::vector<std::string>* notices) {
  ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> list, store.List());
  std::map<std::string, absl::Status> known;
  std::string passed_over;
  for (auto listed = list.rbegin(); listed != list.rend(); ++listed) {
    absl::Status status = listed->status;
    if (status.ok()) status = store.CheckBytes(listed->manifest, &known);
    if (status.ok()) return *listed;
    notices->push_back(
        absl::StrCat("checkpoint ", listed->name, " is passed over: ", status.message()));
    absl::StrAppend(&passed_over, "; ", listed->name, ": ", status.message());
  }
  return absl::NotFoundError(
      absl::StrCat("there is no whole checkpoint in ", store.directory(), passed_over));
}

// The one that the newest whole checkpoint in the directory knows as the best.
absl::StatusOr<CheckpointPath> BestIn(const std::string& directory,
                                      std::vector<std::string>* notices) {
  PosixDisk disk;
  ASSIGN_OR_RETURN(const ListedCheckpoint newest,
                   NewestWhole(CheckpointStore(&disk, directory), notices));
  const std::string& best = newest.manifest.evaluations().best_checkpoint();
  if (!best.empty()) return CheckpointPath{directory, best};
  return absl::NotFoundError(absl::StrCat("no checkpoint in ", directory, " is kept as the best"));
}

// The checkpoint that --checkpoint means, whole by every byte.
absl::StatusOr<ListedCheckpoint> CheckpointToScore(const CheckpointStore& store,
                                                   const std::string& name,
                                                   std::vector<std::string>* notices) {
  if (name.empty()) return NewestWhole(store, notices);
  ListedCheckpoint named;
  named.name = name;
  ASSIGN_OR_RETURN(named.manifest, store.Load(name));
  std::map<std::string, absl::Status> known;
  const absl::Status status = store.CheckBytes(named.manifest, &known);
  if (status.ok()) return named;
  return absl::Status(status.code(),
                      absl::StrCat("checkpoint ", name, " can't be used: ", status.message()));
}

// The name of the checkpoint that --resume-from names, by itself or by its path, or as the best;
// "": none.
absl::StatusOr<std::string> CheckpointToResume(const Flags& flags, const CheckpointStore& store,
                                               std::vector<std::string>* notices) {
  const std::string said = flags.Get("resume-from");
  CheckpointPath path;
  if (said == "best") {
    ASSIGN_OR_RETURN(path, BestIn(store.directory(), notices));
    return path.name;
  }
  if (said.find('/') == std::string::npos) return said;
  const std::filesystem::path as_path = WithoutSlash(said);
  if (as_path.filename() == "best") {
    ASSIGN_OR_RETURN(path, ResolveCheckpointPath(as_path.string(), notices));
  } else {
    path = {as_path.parent_path().string(), as_path.filename().string()};
  }
  std::error_code error;
  if (!std::filesystem::equivalent(path.directory, store.directory(), error)) {
    return absl::InvalidArgumentError(absl::StrCat("--resume-from ", said, " is not in ",
                                                   store.directory(),
                                                   ", where the job's checkpoints are"));
  }
  return path.name;
}

// Where the checkpoint refuses the job because of one flag, names that first.
absl::StatusOr<ResumePoint> FindPointOf(const Flags& flags, const CheckpointStore& store,
                                        const RunSetup& setup, const std::string& name) {
  const std::string& build = setup.options.programs.build;
  absl::StatusOr<ResumePoint> point = FindResumePoint(store, setup.job, build, name);
  if (!absl::IsFailedPrecondition(point.status())) return point;
  const std::string file =
      flags.positional().empty() ? setup.directory.File("job.textproto") : flags.positional()[0];
  const std::string flag = FlagToBlame(
      flags.GetAll("set"), flags.GetAll("clear"), [&](const auto& overrides, const auto& cleared) {
        const auto job = LoadJob(file, overrides, cleared);
        return job.ok() && FindResumePoint(store, *job, build, name).ok();
      });
  if (flag.empty()) return point;
  return absl::Status(point.status().code(), absl::StrCat(flag, ": ", point.status().message()));
}

// Locks the checkpoint directory and finds where in it the run begins.
absl::Status SetUpCheckpoints(const Flags& flags, bool resumes, RunSetup* setup) {
  if (!setup->job.has_checkpoint()) return absl::OkStatus();
  FillCheckpointDirectory(setup->directory, &setup->job);
  PosixDisk disk;
  CheckpointStore store(&disk, setup->job.checkpoint().directory());
  RETURN_IF_ERROR(store.Prepare());
  ASSIGN_OR_RETURN(RunLock lock, TakeLock(store.directory()));
  setup->locks.push_back(std::move(lock));
  if (!resumes) return CheckUnused(store);
  setup->options.is_resumed = true;
  JobOptions& options = setup->options;
  ASSIGN_OR_RETURN(const std::string name, CheckpointToResume(flags, store, &options.notices));
  ASSIGN_OR_RETURN(ResumePoint point, FindPointOf(flags, store, *setup, name));
  options.start = std::move(point.start);
  options.notices.insert(options.notices.end(), point.notices.begin(), point.notices.end());
  return absl::OkStatus();
}

// Fields that only training looks at: to set one for `eval` is a mistake.
absl::Status RefuseChangesOfTraining(const Flags& flags) {
  for (const char* flag : {"set", "clear"}) {
    for (const std::string& change : flags.GetAll(flag)) {
      for (const char* field :
           {"cache", "checkpoint", "cluster.durability", "cluster.workers", "evaluate",
            "train.learning_rate", "train.max_steps", "train.passes", "train.staleness_steps"}) {
        const std::string path = change.substr(0, change.find('='));
        if (path != field && !absl::StartsWith(path, absl::StrCat(field, "."))) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag, " ", change, " means nothing to eval: one worker scores, and ",
                         "nothing is trained"));
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

void ScoreAllRows(Data* data) {
  if (data->format() == Data::CRITEO_TSV) {
    data->set_test_path(data->path());
    data->set_test_share(0);
    return;
  }
  // Of a folder with test_*.npy those are scored. Else all others: those from row
  // int(rows * (1 - test_share)) on.
  if (HeldOutFile(*data).empty()) data->set_test_share(std::nextafter(1.0, 0.0));
}

}  // namespace

absl::StatusOr<CheckpointPath> ResolveCheckpointPath(std::string path,
                                                     std::vector<std::string>* notices) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::filesystem::path as_path(path);
  if (!std::filesystem::is_directory(path)) {
    if (as_path.filename() != "best") {
      return absl::NotFoundError(absl::StrCat("there is no folder '", path, "'"));
    }
    const std::string parent = as_path.parent_path().string();
    ASSIGN_OR_RETURN(const CheckpointPath of,
                     ResolveCheckpointPath(parent.empty() ? "." : parent, notices));
    return BestIn(of.directory, notices);
  }
  if (ParseCheckpointName(as_path.filename().string()).has_value()) {
    const std::string directory = as_path.parent_path().string();
    return CheckpointPath{directory.empty() ? "." : directory, as_path.filename().string()};
  }
  const std::string job_file = path + "/job.textproto";
  if (!std::filesystem::exists(job_file)) return CheckpointPath{path, ""};
  ASSIGN_OR_RETURN(const Job job, LoadJob(job_file, {}));
  std::string directory = job.checkpoint().directory();
  if (directory.empty()) directory = path + "/checkpoints";
  if (!job.has_checkpoint() && !std::filesystem::is_directory(directory)) {
    return absl::NotFoundError(absl::StrCat("the job in '", path,
                                            "' has no checkpoint policy (`checkpoint {}`), and "
                                            "so no checkpoints"));
  }
  return CheckpointPath{directory, ""};
}

std::string DescribeScoredRows(const Data& data) {
  if (!data.test_path().empty()) return absl::StrCat("all rows of '", data.test_path(), "'");
  if (!HeldOutFile(data).empty()) return absl::StrCat("all rows of '", data.path(), "/test_*.npy'");
  const bool is_npy = data.format() == Data::DLRM_NPY;
  const std::string rows = absl::StrCat("rows of '", data.path(), is_npy ? "/train_*.npy'" : "'");
  if (is_npy && data.test_share() > 1 - 1e-9) return absl::StrCat("all ", rows);
  return absl::StrCat("the last ", data.test_share() * 100, "% of the ", rows,
                      " (data.test_share)");
}

absl::StatusOr<RunSetup> SetUpTraining(const Flags& flags) {
  const bool resumes = flags.Has("resume") || flags.Has("resume-from");
  ASSIGN_OR_RETURN(Job job, JobToTrain(flags, resumes));
  JobOptions options;
  ASSIGN_OR_RETURN(options.programs, ProgramsFromFlags(flags));
  ASSIGN_OR_RETURN(RunDirectory directory,
                   resumes ? RunDirectory::Open(flags.Get("run-dir"))
                           : RunDirectory::Create(flags.Get("run-dir"), job.name(), absl::Now()));
  RunSetup setup = {std::move(job), std::move(options), std::move(directory), {}};
  ASSIGN_OR_RETURN(RunLock lock, TakeLock(setup.directory.path()));
  setup.locks.push_back(std::move(lock));
  RETURN_IF_ERROR(SetUpCheckpoints(flags, resumes, &setup));
  return setup;
}

absl::StatusOr<RunSetup> SetUpEvaluation(const Flags& flags) {
  if (!flags.Has("checkpoint")) {
    return absl::InvalidArgumentError("name the checkpoint with --checkpoint");
  }
  RETURN_IF_ERROR(RefuseChangesOfTraining(flags));
  JobOptions options;
  options.eval_only = true;
  ASSIGN_OR_RETURN(const CheckpointPath path,
                   ResolveCheckpointPath(flags.Get("checkpoint"), &options.notices));
  // What is held out of the job's own data doesn't matter to other data.
  std::vector<std::string> overrides;
  if (flags.Has("data")) overrides = {"data.test_path=\"\"", "data.test_share=0"};
  ASSIGN_OR_RETURN(
      Job job, JobFromFlags(flags, JobFileBeside(path), overrides, {"evaluate"}, JobUse::kRead));
  if (flags.Has("data")) ScoreAllRows(job.mutable_data());
  PosixDisk disk;
  const CheckpointStore store(&disk, path.directory);
  ASSIGN_OR_RETURN(const ListedCheckpoint base,
                   CheckpointToScore(store, path.name, &options.notices));
  const CheckpointManifest& manifest = base.manifest;
  options.start.base = base.name;
  RETURN_IF_ERROR(CheckModel(job, manifest));
  options.start.generation = manifest.generation() + 1;
  options.start.base_step = Step(manifest.step());
  options.start.base_samples = manifest.samples();
  ASSIGN_OR_RETURN(options.programs, ProgramsFromFlags(flags));
  std::string origin = DescribeOrigin(job, options.programs.build, manifest);
  if (!origin.empty()) options.notices.push_back(std::move(origin));
  // One worker scores; nothing is written that would have to last.
  job.set_name(manifest.job_id());
  job.mutable_cluster()->set_workers(1);
  job.mutable_cluster()->set_durability(NONE);
  CheckpointPolicy* policy = job.mutable_checkpoint();
  policy->Clear();
  policy->set_directory(store.directory());
  policy->set_at_end(false);
  policy->set_full_every(1);  // Every process has to read the same here.
  ASSIGN_OR_RETURN(
      RunDirectory directory,
      RunDirectory::Create(flags.Get("run-dir"), absl::StrCat(job.name(), "-eval"), absl::Now()));
  RunSetup setup = {std::move(job), std::move(options), std::move(directory), {}};
  ASSIGN_OR_RETURN(RunLock lock, TakeLock(setup.directory.path()));
  setup.locks.push_back(std::move(lock));
  return setup;
}

}  // namespace thermocline
