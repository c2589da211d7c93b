#include "deploy/cli/run_setup.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/posix_disk.h"
#include "common/job/job_loader.h"
#include "common/status_macros.h"
#include "deploy/cli/train_job.h"
#include "deploy/controller/checkpoint_match.h"
#include "deploy/controller/resume.h"

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
  for (const char* flag : {"set", "clear"}) {
    for (const std::string& change : flags.GetAll(flag)) {
      if (!flags.positional().empty() || !absl::StartsWith(change, "default_table")) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " ", change, " would change nothing: ", run_dir,
                       "/job.textproto spells out every table. Set fields of its `table`s, or name "
                       "the job file"));
    }
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

// The name of the checkpoint that --resume-from names, by itself or by its path; "": none.
absl::StatusOr<std::string> CheckpointToResume(const Flags& flags, const CheckpointStore& store) {
  const std::string& said = flags.Get("resume-from");
  if (said.find('/') == std::string::npos) return said;
  const std::filesystem::path path = WithoutSlash(said);
  std::error_code error;
  if (!std::filesystem::equivalent(path.parent_path(), store.directory(), error)) {
    return absl::InvalidArgumentError(absl::StrCat("--resume-from ", said, " is not in ",
                                                   store.directory(),
                                                   ", where the job's checkpoints are"));
  }
  return path.filename().string();
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
  ASSIGN_OR_RETURN(RunLock lock, RunLock::Take(store.directory(), kLockPatience));
  setup->locks.push_back(std::move(lock));
  if (!resumes) return CheckUnused(store);
  setup->options.is_resumed = true;
  ASSIGN_OR_RETURN(const std::string name, CheckpointToResume(flags, store));
  JobOptions& options = setup->options;
  ASSIGN_OR_RETURN(ResumePoint point, FindPointOf(flags, store, *setup, name));
  options.start = std::move(point.start);
  options.notices = std::move(point.notices);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunSetup> SetUpTraining(const Flags& flags) {
  const bool resumes = flags.Has("resume") || flags.Has("resume-from");
  ASSIGN_OR_RETURN(Job job, JobToTrain(flags, resumes));
  JobOptions options;
  ASSIGN_OR_RETURN(options.programs, ProgramsFromFlags(flags));
  ASSIGN_OR_RETURN(RunDirectory directory,
                   resumes ? RunDirectory::Open(flags.Get("run-dir"))
                           : RunDirectory::Create(flags.Get("run-dir"), job.name(), absl::Now()));
  RunSetup setup = {std::move(job), std::move(options), std::move(directory), {}};
  ASSIGN_OR_RETURN(RunLock lock, RunLock::Take(setup.directory.path(), kLockPatience));
  setup.locks.push_back(std::move(lock));
  RETURN_IF_ERROR(SetUpCheckpoints(flags, resumes, &setup));
  return setup;
}

absl::StatusOr<RunSetup> SetUpEvaluation(const Flags& flags) {
  if (!flags.Has("checkpoint")) {
    return absl::InvalidArgumentError("name the checkpoint with --checkpoint");
  }
  ASSIGN_OR_RETURN(Job job, JobFromFlags(flags));
  const std::filesystem::path path = WithoutSlash(flags.Get("checkpoint"));
  PosixDisk disk;
  const CheckpointStore store(&disk, path.parent_path().string());
  JobOptions options;
  options.eval_only = true;
  options.start.base = path.filename().string();
  ASSIGN_OR_RETURN(const CheckpointManifest manifest, store.Load(options.start.base));
  RETURN_IF_ERROR(CheckModel(job, manifest));
  options.start.epoch = manifest.epoch() + 1;
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
  ASSIGN_OR_RETURN(RunLock lock, RunLock::Take(setup.directory.path(), kLockPatience));
  setup.locks.push_back(std::move(lock));
  return setup;
}

}  // namespace thermocline
