// Whether a checkpoint belongs to a job: to its model and its data; and where it was made.
#ifndef THERMOCLINE_DEPLOY_CHECKPOINTS_CHECKPOINT_MATCH_H_
#define THERMOCLINE_DEPLOY_CHECKPOINTS_CHECKPOINT_MATCH_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// Whether the rows of the checkpoint are those of the job's model. Memory budgets and the number of
// processes make no difference. Errors: kFailedPrecondition (says what differs first).
absl::Status CheckModel(const Job& job, const CheckpointManifest& manifest);

// Whether a step has the same samples for both: the size of batches, the features, how the data
// is read, and which rows are hot (job.fae; how the rate changes later makes no difference). Where
// the data lies, how many bad lines it may have and what is read ahead make no difference. Errors:
// kFailedPrecondition (says what differs first).
absl::Status CheckData(const Job& job, const CheckpointManifest& manifest);

// Whether the files of the job's data (Job.data_files) are those that the checkpoint was made with:
// of the same sizes and with the same bytes at their ends, in the same order. Their names and
// folders make no difference. `notices` gets a line for files that were added behind the others,
// and one where the checkpoint does not know its files. Errors: kFailedPrecondition (names the
// first file that differs, and says in what).
absl::Status CheckDataFiles(const Job& job, const CheckpointManifest& manifest,
                            std::vector<std::string>* notices);

// Whether a new job can begin with the rows of the checkpoint (Job.init_from): features and numeric
// columns of the same name are in the same order; each MLP layer has the same shape; tables of the
// same name have rows of the same kind. Where features were added or dropped, the layer that reads
// them begins anew: its tensors, which are not taken from the checkpoint, are returned. `notices`
// gets a line for what begins empty, for what is left out, and then also for what is kept. Errors:
// kFailedPrecondition (says what differs first).
absl::StatusOr<std::vector<std::string>> CheckInit(const Job& job,
                                                   const CheckpointManifest& manifest,
                                                   std::vector<std::string>* notices);

// What a job's workers compute with on this machine: "AVX2" or "AVX512", also where the job says
// AUTO.
std::string ResolvedCpuIsa(const Job& job);

// What the manifest of every checkpoint says that the job makes on this machine, run by `build`:
// all but generation, step, samples and shards.
CheckpointManifest ManifestOf(const Job& job, const std::string& build);

// How the processes that made the checkpoint `name` differ from those of `job` here, of `build`, in
// a line; "": in nothing that is recorded.
std::string DescribeOrigin(const Job& job, const std::string& build, const std::string& name,
                           const CheckpointManifest& manifest);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CHECKPOINTS_CHECKPOINT_MATCH_H_
