// Where a job goes on that ran before, and whether a checkpoint is one of its own.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_RESUME_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_RESUME_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/controller/epoch_start.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// The next epoch of the job whose checkpoints are in `store`. It begins with the checkpoint called
// `name`; "": with the newest of the last epoch, or with what that one began with.
//
// A damaged checkpoint is never passed over in silence: an older one is taken where people say so.
// Errors: kNotFound (no job was run there; no such checkpoint), kDataLoss (the checkpoint is
// damaged), kFailedPrecondition (it is not this job's: says what differs), kUnavailable.
absl::StatusOr<EpochStart> FindResumePoint(const CheckpointStore& store, const Job& job,
                                           const std::string& name);

// For a job that begins: kAlreadyExists where the directory holds what another run left.
absl::Status CheckUnused(const CheckpointStore& store);

// Whether the rows of the checkpoint are those of the job's model. Memory budgets and the number of
// processes make no difference. Errors: kFailedPrecondition (says what differs).
absl::Status CheckModel(const Job& job, const CheckpointManifest& manifest);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_RESUME_H_
