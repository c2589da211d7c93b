// The names and the small files of a checkpoint directory (docs/formats.md):
//
//   DIRECTORY/HISTORY/000000001                            what was decided (history.h)
//   DIRECTORY/step-000000999/generation-1-server-0.1.rows  rows of one server
//   DIRECTORY/step-000000999/MANIFEST-1                    of generation 1; written last
//
// Earlier programs wrote SST files, named .sst, for rows; MANIFEST for MANIFEST-1;
// DIRECTORY/epoch-1-step-999/server-0.1.sst; and JOB_STATE in place of HISTORY. Those stay
// readable.
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

// The version of HISTORY and JOB_STATE, and the first one of manifests.
inline constexpr uint32_t kCheckpointFormatVersion = 1;
// The version of a manifest with rows files of our own format. Programs that don't know these call
// the checkpoint one of another version, and not a damaged one.
inline constexpr uint32_t kManifestVersionOfRowsFiles = 2;
inline constexpr FrameFormat kManifestFormat = {"TclnMnft", kManifestVersionOfRowsFiles,
                                                kCheckpointFormatVersion};
inline constexpr FrameFormat kJobStateFormat = {"TclnJobS", kCheckpointFormatVersion};
inline constexpr char kManifestName[] = "MANIFEST";
inline constexpr char kJobStateName[] = "JOB_STATE";
// How the path of a rows file ends; those of earlier programs are SST files.
inline constexpr absl::string_view kRowsFileSuffix = ".rows", kSstFileSuffix = ".sst";

// Identifies a checkpoint: two generations may each make one of the same step.
struct CheckpointId {
  uint64_t generation = 0;
  Step step;  // The cut.

  friend bool operator==(const CheckpointId& a, const CheckpointId& b) {
    return a.generation == b.generation && a.step == b.step;
  }
};
// The folder of a checkpoint: "step-000000999". Checkpoints of one step by different generations
// have the same folder; the manifest names the generation. REQUIRES: step >= 0
std::string CheckpointName(Step step);
// The folder's name in earlier programs: "epoch-1-step-999".
std::string OldCheckpointName(const CheckpointId& id);

struct CheckpointFolder {
  Step step;
  // The generation of all files in it; nullopt: the name has the present form, without a
  // generation.
  std::optional<uint64_t> generation;
};
// nullopt: no checkpoint's folder has this name.
std::optional<CheckpointFolder> ParseCheckpointName(absl::string_view name);
// The short form for users: "step-999" is step 999. nullopt: `name` is not of that form.
std::optional<Step> ParseShortName(absl::string_view name);

// Identifies the process that writes rows files: no two processes of a generation have both numbers
// in common. So a process that is believed dead, but still runs, writes and removes only its own
// files.
struct RowsFileWriterId {
  ServerIndex server;
  // Counts the processes of this server in a generation, from 1. 0: only one is ever started.
  uint64_t incarnation = 0;
};
// The path of a rows file: "step-000000999/generation-1-server-0.2.rows" for incarnation 2, without
// ".2" for 0. From the second of several files on it is "generation-1-server-0-<number>.2.rows". So
// no process writes or removes a file of another generation either.
std::string RowsFilePath(const CheckpointId& id, const RowsFileWriterId& writer,
                         uint32_t number = 0);
// The manifest of a generation in a checkpoint's folder: "MANIFEST-2". So no controller replaces or
// removes the manifest of another generation.
std::string ManifestName(uint64_t generation);
// The generation in a manifest's name; 0: an earlier program's name, which has none. nullopt:
// `file` is no manifest's name.
std::optional<uint64_t> GenerationOfManifest(absl::string_view file);
// The generation of the process that wrote a file of a checkpoint's folder; nullopt: neither name
// has it.
std::optional<uint64_t> GenerationOfFile(const CheckpointFolder& folder, absl::string_view file);

// Checks a manifest that may be damaged or mixed up: every path lies in the folder of a checkpoint,
// every shard appears once, the tables are valid. Errors: kDataLoss (says what is wrong),
// kFailedPrecondition (another format version).
absl::Status CheckManifest(const CheckpointManifest& manifest);
// The format version that a manifest of these files is to be written with: the first one that knows
// them all.
uint32_t ManifestVersionOf(const CheckpointManifest& manifest);
// REQUIRES: CheckManifest is OK.
std::string EncodeManifest(const CheckpointManifest& manifest);
// `bytes`: a whole file. `path` is for messages. Errors: as CheckManifest and DecodeFrame.
absl::StatusOr<CheckpointManifest> DecodeManifest(absl::string_view bytes, const std::string& path);
// The generation and step of a manifest of any format version; nullopt: it is damaged.
std::optional<CheckpointId> ReadManifestId(absl::string_view bytes);
CheckpointId IdOf(const CheckpointManifest& manifest);
// The checkpoint of the best model; nullopt: there is none.
std::optional<CheckpointId> BestCheckpointOf(const EvaluationState& evaluations);

// The tables, by id. REQUIRES: CheckManifest is OK.
std::vector<TableLayout> TablesOf(const CheckpointManifest& manifest);
// As DescribeDifference, but compares only what decides the rows: memory budgets make no
// difference.
std::string DescribeRowDifference(TableLayout here, TableLayout there);

// As DescribeDifference, for a job that begins with the rows of a table of another run: compares
// dim, optimizer and state. Initial rows, rates, weight decay and clipping may differ, and rows may
// have a first-order weight in one of the two alone.
std::string DescribeInitDifference(const TableLayout& here, const TableLayout& there);

// Writes the row with which `here` begins, where `there` had `row`. A first-order weight that
// `there` lacks begins anew; one that `here` lacks is dropped.
//   row: [there.row_floats()]; carried: [here.row_floats()]
// REQUIRES: DescribeInitDifference(here, there) is "".
void CarryRow(const TableLayout& there, absl::Span<const float> row, const TableLayout& here,
              uint64_t seed, Key key, absl::Span<float> carried);

// Errors: as DecodeFrame; kDataLoss also for a base that is no name.
absl::StatusOr<JobState> DecodeJobState(absl::string_view bytes, const std::string& path);
std::string EncodeJobState(const JobState& state);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_CHECKPOINT_MANIFEST_H_
