// What the path of a checkpoint means on the command line.
#ifndef THERMOCLINE_DEPLOY_CLI_CHECKPOINT_PATH_H_
#define THERMOCLINE_DEPLOY_CLI_CHECKPOINT_PATH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_store.h"

namespace thermocline {

struct CheckpointPath {
  std::string directory;
  std::string name;  // Empty: all checkpoints of the directory.
};

// `path` is a checkpoint directory, a run directory, or one checkpoint in its directory. "step-999"
// in one of the first two is the checkpoint of that step (FindByName), and "best" the best
// checkpoint (Job.evaluate), as the newest whole one knows it. With a `scan`, every byte of that
// newest one is read to know that it is whole, and `notices` gets a line for each damaged one that
// is passed over; without (null), sizes suffice.
//
// Errors: kNotFound (no such folder or checkpoint; a run without checkpoints, or without a whole or
// a best one), kInvalidArgument (the run directory's job can't be read; several checkpoints have
// that step), those of scan->on_progress.
absl::StatusOr<CheckpointPath> ResolveCheckpointPath(std::string path, ByteScan* scan,
                                                     std::vector<std::string>* notices);

// "checkpoint step-000000488, the last; the best is step-000000299 (RUN_DIR/best)": which of a
// run's checkpoints is taken where none is named.
std::string DescribeNewest(const ListedCheckpoint& newest);

// The checkpoint called `name`, or, if that is empty, the newest whole one, with a notice that says
// so; whole by every byte, or without a `scan` (null) by the sizes of its files. `notices` as
// above. Errors: kNotFound, kDataLoss, kFailedPrecondition (another format version), kUnavailable,
// those of scan->on_progress.
absl::StatusOr<ListedCheckpoint> LoadWholeCheckpoint(const CheckpointStore& store,
                                                     const std::string& name, ByteScan* scan,
                                                     std::vector<std::string>* notices);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_CHECKPOINT_PATH_H_
