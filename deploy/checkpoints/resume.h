// Where a job that ran before continues, and whether a checkpoint is one of its own.
#ifndef THERMOCLINE_DEPLOY_CHECKPOINTS_RESUME_H_
#define THERMOCLINE_DEPLOY_CHECKPOINTS_RESUME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/job/generation.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

struct ResumePoint {
  GenerationStart start;
  std::optional<CheckpointManifest> base;  // Of start.base; nullopt: that is "".
  SpentBudgets spent;                      // By the last generation, before it began.
  std::vector<std::string> notices;        // Lines that the user should read.
};

// The next generation of the job `job_id`, whose checkpoints are in `store`. It begins with the
// checkpoint called `name` (FindByName); "": with the newest of the last generation, or with what
// that one began with.
//
// A damaged checkpoint is never skipped in silence: an older one is taken only where the user names
// it. Where the user has removed the checkpoint with which the last generation began, the one
// before it of the same generation replaces it, and a notice says so. Errors: kNotFound (no job was
// run there; no such checkpoint), kInvalidArgument (several may be meant), kDataLoss (the
// checkpoint is damaged), kFailedPrecondition (it is not this job's), kUnavailable.
absl::StatusOr<ResumePoint> FindNextGeneration(const CheckpointStore& store,
                                               const std::string& job_id, const std::string& name);

// The same for a job as it is now, run by `build`. A notice says where the checkpoint was made by
// another build, or with other CPU instructions. Errors: also kFailedPrecondition (model or data
// differ from the checkpoint's: says in what).
absl::StatusOr<ResumePoint> FindResumePoint(const CheckpointStore& store, const Job& job,
                                            const std::string& build, const std::string& name);

// Whether --resume alone can continue the job that was run there, as far as the checkpoints show.
// Errors: those of FindNextGeneration.
absl::Status CheckResumable(const CheckpointStore& store);

// After a loss of data: the whole checkpoints that the user may continue from instead of the last
// generation's base, newest first; reads every byte of them. nullopt: that generation made a
// checkpoint, and --resume continues from it.
std::optional<std::vector<std::string>> InsteadOfDamagedBase(const CheckpointStore& store);

// Whether the checkpoint that a job begins with (Job.init) is still there. Errors: kNotFound (says
// which is gone), kDataLoss, kUnavailable
absl::Status CheckInitIsThere(Disk* disk, const InitCheckpoint& init);

// For a job that begins: kAlreadyExists where the directory holds files of another run.
absl::Status CheckUnused(const CheckpointStore& store);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CHECKPOINTS_RESUME_H_
