// The names and the small files of a checkpoint directory (docs/formats.md):
//
//   DIRECTORY/JOB_STATE
//   DIRECTORY/epoch-1-step-999/server-0.1.sst   rows of one server
//   DIRECTORY/epoch-1-step-999/MANIFEST         written last
#ifndef THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_MANIFEST_H_
#define THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/checkpoint/file_frame.h"
#include "common/math/table_spec.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

inline constexpr uint32_t kCheckpointFormatVersion = 1;
inline constexpr FrameFormat kManifestFormat = {"TclnMnft", kCheckpointFormatVersion};
inline constexpr FrameFormat kJobStateFormat = {"TclnJobS", kCheckpointFormatVersion};
inline constexpr char kManifestName[] = "MANIFEST";
inline constexpr char kJobStateName[] = "JOB_STATE";

struct CheckpointId {
  uint64_t generation = 0;
  Step step;  // The cut

  friend bool operator==(const CheckpointId& a, const CheckpointId& b) {
    return a.generation == b.generation && a.step == b.step;
  }
};
// "epoch-1-step-999". REQUIRES: step >= 0
std::string CheckpointName(const CheckpointId& id);
std::optional<CheckpointId> ParseCheckpointName(absl::string_view name);

// Who writes rows files: no two processes have both in common within a generation. So one that is
// believed dead, and isn't, writes and removes no file but its own.
struct RowsFileWriterId {
  ServerIndex server;
  // Counts the processes of this server in a generation, from 1. 0: only one is ever started.
  uint64_t incarnation = 0;
};
// What it calls its files: "epoch-1-step-999/server-0.2.sst" for incarnation 2, without ".2" for 0;
// of several, "server-0-<number>.2.sst" from the second on.
std::string RowsFilePath(const CheckpointId& id, const RowsFileWriterId& writer,
                         uint32_t number = 0);

// What a shard's files hold, however they were damaged or mixed up: every path lies in the folder
// of a checkpoint, every shard is there once, the tables make sense. Errors: kDataLoss (says what
// is wrong), kFailedPrecondition (another format version).
absl::Status CheckManifest(const CheckpointManifest& manifest);
// REQUIRES: CheckManifest is OK.
std::string EncodeManifest(const CheckpointManifest& manifest);
// A whole file. `path` is for messages. Errors: as CheckManifest and DecodeFrame.
absl::StatusOr<CheckpointManifest> DecodeManifest(absl::string_view bytes, const std::string& path);

// By table id. REQUIRES: CheckManifest is OK.
std::vector<TableLayout> TablesOf(const CheckpointManifest& manifest);
// As DescribeDifference, of what their rows are: where those may be held makes no difference.
std::string DescribeRowDifference(TableLayout here, TableLayout there);

// Errors: as DecodeFrame; kDataLoss also for a base that is no name.
absl::StatusOr<JobState> DecodeJobState(absl::string_view bytes, const std::string& path);
std::string EncodeJobState(const JobState& state);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_MANIFEST_H_
