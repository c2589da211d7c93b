// Compares a checkpoint with a job: model, data, and the build and machine that made it.
#ifndef THERMOCLINE_DEPLOY_CHECKPOINTS_CHECKPOINT_MATCH_H_
#define THERMOCLINE_DEPLOY_CHECKPOINTS_CHECKPOINT_MATCH_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// Checks that the rows of the checkpoint fit the job's model, and that its layers are those of the
// job. Memory budgets, the number of processes and the layers' dropout make no difference. Errors:
// kFailedPrecondition (names the first difference).
absl::Status CheckModel(const Job& job, const CheckpointManifest& manifest);

// Checks that a step has the same samples in both: the size of batches, the features, how the data
// is read, and which rows are hot (job.fae; how the rate changes later makes no difference). The
// data's place, the number of bad lines it may have and what is read ahead make no difference.
// Errors: kFailedPrecondition (names the first difference).
absl::Status CheckData(const Job& job, const CheckpointManifest& manifest);

// Checks that the files of the job's data (Job.data_files) are those that the checkpoint was made
// with: they have the same sizes and the same bytes at their ends, in the same order. Their names
// and folders make no difference. `notices` gets a line for files that were added after the others,
// and one where the checkpoint does not record its files. Errors: kFailedPrecondition (names the
// first file that differs, and the difference).
absl::Status CheckDataFiles(const Job& job, const CheckpointManifest& manifest,
                            std::vector<std::string>* notices);

// Checks that a new job can begin with the rows of the checkpoint (Job.init_from): features and
// numeric columns of the same name are in the same order; tables of the same name have rows of the
// same kind, but for first-order weights, which begin anew or are left out; layers of the same name
// have the same widths. A layer whose inputs are others than in the checkpoint (a feature or a
// layer more or less) begins anew, of an MLP its first layer; so does a tensor of another size,
// such as learned positions. Returns the tensors that the checkpoint has and that are not taken
// from it. A script's state is taken where the job's model is a script, too; beside another model
// neither a script's state nor layers are. If anything begins anew or is left out, `notices` gets
// lines that name it, and what is kept. Errors: kFailedPrecondition (names the first difference).
absl::StatusOr<std::vector<std::string>> CheckInit(const Job& job,
                                                   const CheckpointManifest& manifest,
                                                   std::vector<std::string>* notices);

// The instructions that a job's workers use on this machine: "AVX2" or "AVX512", also where the job
// says AUTO.
std::string ResolvedCpuIsa(const Job& job);

// The manifest that all checkpoints share which the job makes on this machine, run by `build`. It
// has no generation, step, samples and shards.
CheckpointManifest ManifestOf(const Job& job, const std::string& build);

// A line on how the processes that made the checkpoint `name` differ from those of `job` on this
// machine, run by `build`; "": they don't differ as far as is recorded.
std::string DescribeOrigin(const Job& job, const std::string& build, const std::string& name,
                           const CheckpointManifest& manifest);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CHECKPOINTS_CHECKPOINT_MATCH_H_
