#include "deploy/cli/run_setup.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"
#include "deploy/checkpoints/checkpoint_match.h"
#include "deploy/checkpoints/resume.h"
#include "deploy/cli/checkpoint_path.h"
#include "deploy/cli/console.h"
#include "deploy/runner/child_process.h"

namespace thermocline {
namespace {

// How long to wait for the processes of a killed launcher to die: one may be in the middle of a
// write.
constexpr absl::Duration kLockPatience = absl::Seconds(10);

// The first of test_*.npy in the folder of a DLRM_NPY job's data; "": there is none.
std::string HeldOutFile(const Data& data) {
  if (data.format() != Data::DLRM_NPY) return "";
  for (const char* name : {"test_dense.npy", "test_sparse.npy", "test_labels.npy"}) {
    if (std::filesystem::exists(std::filesystem::path(data.path()) / name)) return name;
  }
  return "";
}

std::string Absolute(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// The run directory's job file must mean the same from any working directory.
void MakePathsAbsolute(Job* job) {
  for (std::string* path :
       {job->mutable_data()->mutable_path(), job->mutable_data()->mutable_test_path()}) {
    *path = Absolute(*path);
  }
  if (job->has_checkpoint()) {
    std::string* directory = job->mutable_checkpoint()->mutable_directory();
    *directory = Absolute(*directory);
  }
  if (!job->cluster().has_tls()) return;
  Tls* tls = job->mutable_cluster()->mutable_tls();
  for (std::string* path :
       {tls->mutable_certificate(), tls->mutable_private_key(), tls->mutable_ca()}) {
    *path = Absolute(*path);
  }
}

// Finds an unreadable file before the processes start, each of which would fail on it.
absl::Status CheckReadable(const std::string& field, const std::string& path) {
  if (path.empty() || access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(field, " '", path, "': ", std::strerror(errno)));
}

// Held-out rows come from files of their own or from a share of the others, not from both.
absl::Status CheckHeldOut(const Data& data) {
  const std::string own = HeldOutFile(data);
  if (own.empty() || data.test_share() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.test_share is ", data.test_share(), ", and ",
                                                 data.path(), " has ", own,
                                                 " as well; choose one"));
}

absl::Status CheckFiles(const Job& job) {
  const Data& data = job.data();
  RETURN_IF_ERROR(CheckReadable("data.path", data.path()));
  RETURN_IF_ERROR(CheckReadable("data.test_path", data.test_path()));
  const bool is_folder = std::filesystem::is_directory(data.path());
  if (is_folder != (data.format() == Data::DLRM_NPY)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path '", data.path(), "' is a ", is_folder ? "folder" : "file", "; the format ",
        Data::Format_Name(data.format()), " reads a ", is_folder ? "file" : "folder"));
  }
  RETURN_IF_ERROR(CheckHeldOut(data));
  const Tls& tls = job.cluster().tls();
  RETURN_IF_ERROR(CheckReadable("cluster.tls.certificate", tls.certificate()));
  RETURN_IF_ERROR(CheckReadable("cluster.tls.private_key", tls.private_key()));
  return CheckReadable("cluster.tls.ca", tls.ca());
}

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
        std::tuple("--workers", "cluster.workers", &flags.workers)}) {
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
  RETURN_IF_ERROR(CheckFiles(*job));
  return job;
}

// If JOB is left out, --resume takes the job as it was run.
absl::StatusOr<Job> JobToTrain(const TrainFlags& flags, bool resumes) {
  if (!resumes) return LoadJobOf(flags);
  if (flags.run_dir.empty()) {
    return absl::InvalidArgumentError("--resume needs --run-dir, the folder of the run");
  }
  absl::StatusOr<Job> job = LoadChangedJob(flags, flags.run_dir + "/job.textproto");
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

// The checkpoint that --resume-from names by its name, its path, or as the best; "": none.
absl::StatusOr<std::string> CheckpointToResume(const std::string& wanted,
                                               const CheckpointStore& store, ByteScan* scan,
                                               std::vector<std::string>* notices) {
  CheckpointPath path;
  if (wanted == "best") {
    ASSIGN_OR_RETURN(path, BestCheckpoint(store.directory(), scan, notices));
    return path.name;
  }
  if (wanted.find('/') == std::string::npos) return wanted;
  const std::filesystem::path as_path = WithoutSlash(wanted);
  if (as_path.filename() == "best") {
    ASSIGN_OR_RETURN(path, ResolveCheckpointPath(as_path.string(), scan, notices));
  } else {
    path = {as_path.parent_path().string(), as_path.filename().string()};
  }
  std::error_code error;
  if (!std::filesystem::equivalent(path.directory, store.directory(), error)) {
    return absl::InvalidArgumentError(absl::StrCat("--resume-from ", wanted, " is not in ",
                                                   store.directory(),
                                                   ", where the job's checkpoints are"));
  }
  return path.name;
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

// Locks the checkpoint directory and finds where in it the run begins.
absl::Status SetUpCheckpoints(const TrainFlags& flags, bool resumes, ByteScan* scan,
                              RunSetup* setup) {
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
  ASSIGN_OR_RETURN(const std::string name,
                   CheckpointToResume(flags.resume_from, store, scan, &options.notices));
  ASSIGN_OR_RETURN(ResumePoint point, FindPointOf(flags, store, *setup, name));
  options.start = std::move(point.start);
  options.notices.insert(options.notices.end(), point.notices.begin(), point.notices.end());
  return absl::OkStatus();
}

// Refuses changes of fields that only training reads: to set one for `eval` is a mistake.
absl::Status RefuseChangesOfTraining(const EvalFlags& flags) {
  for (const auto& [flag, changes] :
       {std::pair("--set ", &flags.set), std::pair("--clear ", &flags.clear)}) {
    for (const std::string& change : *changes) {
      for (const char* field :
           {"cache", "checkpoint", "cluster.durability", "cluster.workers", "evaluate",
            "train.learning_rate", "train.max_steps", "train.passes", "train.staleness_steps"}) {
        const std::string path = change.substr(0, change.find('='));
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

absl::StatusOr<Job> LoadJobOf(const JobFlags& flags) { return LoadChangedJob(flags, ""); }

int ComplainAboutSetup(const absl::Status& why) {
  return Complain(why.message(), absl::IsCancelled(why) ? kExitFailed : kExitUsage);
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

absl::StatusOr<RunSetup> SetUpTraining(const TrainFlags& flags, ByteScan* scan) {
  const bool resumes = flags.resume || !flags.resume_from.empty();
  ASSIGN_OR_RETURN(Job job, JobToTrain(flags, resumes));
  JobOptions options;
  ASSIGN_OR_RETURN(options.programs, FindProgramsOf(flags));
  ASSIGN_OR_RETURN(RunDirectory directory,
                   resumes ? RunDirectory::Open(flags.run_dir)
                           : RunDirectory::Create(flags.run_dir, job.name(), absl::Now()));
  RunSetup setup = {std::move(job), std::move(options), std::move(directory), {}};
  ASSIGN_OR_RETURN(RunLock lock, TakeLock(setup.directory.path()));
  setup.locks.push_back(std::move(lock));
  RETURN_IF_ERROR(SetUpCheckpoints(flags, resumes, scan, &setup));
  return setup;
}

absl::StatusOr<RunSetup> SetUpEvaluation(const EvalFlags& flags, ByteScan* scan) {
  RETURN_IF_ERROR(RefuseChangesOfTraining(flags));
  JobOptions options;
  options.eval_only = true;
  ASSIGN_OR_RETURN(const CheckpointPath path,
                   ResolveCheckpointPath(flags.checkpoint, scan, &options.notices));
  // What is held out of the job's own data doesn't matter to other data.
  std::vector<std::string> overrides;
  if (flags.data.has_value()) overrides = {"data.test_path=\"\"", "data.test_share=0"};
  ASSIGN_OR_RETURN(
      Job job, LoadChangedJob(flags, JobFileBeside(path), overrides, {"evaluate"}, JobUse::kRead));
  if (flags.data.has_value()) ScoreAllRows(job.mutable_data());
  PosixDisk disk;
  const CheckpointStore store(&disk, path.directory);
  ASSIGN_OR_RETURN(const ListedCheckpoint base,
                   LoadWholeCheckpoint(store, path.name, scan, &options.notices));
  const CheckpointManifest& manifest = base.manifest;
  options.start.base = base.name;
  RETURN_IF_ERROR(CheckModel(job, manifest));
  options.start.generation = manifest.generation() + 1;
  options.start.base_step = Step(manifest.step());
  options.start.base_samples = manifest.samples();
  ASSIGN_OR_RETURN(options.programs, FindProgramsOf(flags));
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
      RunDirectory::Create(flags.run_dir, absl::StrCat(job.name(), "-eval"), absl::Now()));
  RunSetup setup = {std::move(job), std::move(options), std::move(directory), {}};
  ASSIGN_OR_RETURN(RunLock lock, TakeLock(setup.directory.path()));
  setup.locks.push_back(std::move(lock));
  return setup;
}

absl::StatusOr<JobPrograms> FindProgramsOf(const JobFlags& flags) {
  JobPrograms programs;
  programs.build = kVersion;
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
  if (!job->has_checkpoint() || !job->checkpoint().directory().empty()) return;
  job->mutable_checkpoint()->set_directory(directory.CheckpointDirectory());
}

}  // namespace thermocline
