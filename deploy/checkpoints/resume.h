// Finds where a job that ran before continues, and checks that a checkpoint is its own.
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
  std::optional<CheckpointManifest> base;  // The manifest of start.base; nullopt: that is "".
  SpentBudgets spent;                      // Before the last generation began.
  std::vector<std::string> notices;        // Lines that the user should read.
};

// Finds the start of the next generation of the job `job_id`, whose checkpoints are in `store`. It
// is the checkpoint called `name` (FindByName); "": the newest one of the last generation, or that
// generation's base where it made none.
//
// A damaged checkpoint is not skipped: an older one is taken only where the user names it. Where
// the user has removed the base of the last generation, the checkpoint before it of the same
// generation replaces it, and a notice says so. Errors: kNotFound (no job was run there; no such
// checkpoint), kInvalidArgument (several may be meant), kDataLoss (the checkpoint is damaged),
// kFailedPrecondition (it is not this job's), kUnavailable.
absl::StatusOr<ResumePoint> FindNextGeneration(const CheckpointStore& store,
                                               const std::string& job_id, const std::string& name);

// The same, and compares the checkpoint with the job as it is now, run by `build`. A notice says if
// the checkpoint was made by another build, or with other CPU instructions. Errors: also
// kFailedPrecondition (model or data differ from the checkpoint's: names the difference).
absl::StatusOr<ResumePoint> FindResumePoint(const CheckpointStore& store, const Job& job,
                                            const std::string& build, const std::string& name);

// Checks that --resume alone can continue the job of the store, as far as the checkpoints show.
// Errors: those of FindNextGeneration.
absl::Status CheckResumable(const CheckpointStore& store);

// After a loss of data, lists the whole checkpoints that the user may continue from instead of the
// last generation's base, newest first. Reads every byte of them. nullopt: the last generation made
// a checkpoint, and --resume continues from that.
std::optional<std::vector<std::string>> InsteadOfDamagedBase(const CheckpointStore& store);

// Checks that the checkpoint that a job begins with (Job.init) still exists. Errors: kNotFound
// (names it), kDataLoss, kUnavailable.
absl::Status CheckInitIsThere(Disk* disk, const InitCheckpoint& init);

// kAlreadyExists where the directory holds files of another run, and so no new job may begin there.
absl::Status CheckUnused(const CheckpointStore& store);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CHECKPOINTS_RESUME_H_
