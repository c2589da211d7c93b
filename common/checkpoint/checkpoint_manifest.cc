#include "common/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr char kGenerationPrefix[] = "epoch-", kStepPrefix[] = "-step-";

// "epoch-1-step-999/NAME", NAME being one file and no other of ours.
bool IsRowsFilePath(absl::string_view path) {
  const size_t slash = path.find('/');
  if (slash == absl::string_view::npos || !ParseCheckpointName(path.substr(0, slash)).has_value()) {
    return false;
  }
  const absl::string_view name = path.substr(slash + 1);
  return name.size() <= 255 && absl::EndsWith(name, ".sst") && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

absl::Status Wrong(absl::string_view what) { return absl::DataLossError(what); }

absl::Status CheckVersion(uint32_t version) {
  if (version == kCheckpointFormatVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "format version ", version, "; this program knows version ", kCheckpointFormatVersion));
}

absl::Status CheckTables(const CheckpointManifest& manifest) {
  std::set<uint32_t> ids;
  for (const TableSpec& table : manifest.tables()) {
    const auto layout = TableLayoutFromProto(table);
    if (!layout.ok()) return Wrong(layout.status().message());
    if (!ids.insert(table.id()).second) {
      return Wrong(absl::StrCat("table id ", table.id(), " stands twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShards(const CheckpointManifest& manifest) {
  if (manifest.num_servers() < 1 || manifest.num_servers() > kNumPartitions ||
      manifest.shards_size() != static_cast<int>(manifest.num_servers())) {
    return Wrong(
        absl::StrCat(manifest.shards_size(), " shards of ", manifest.num_servers(), " servers"));
  }
  std::set<std::string> paths;
  for (int i = 0; i < manifest.shards_size(); ++i) {
    const CheckpointShard& shard = manifest.shards(i);
    if (static_cast<int>(shard.server_index()) != i) {
      return Wrong(absl::StrCat("shard ", i, " is of server ", shard.server_index()));
    }
    if (shard.base_step() < kNoStep.value() || shard.base_step() >= manifest.step()) {
      return Wrong(absl::StrCat("the part of server ", i, " builds on step ", shard.base_step()));
    }
    for (const CheckpointFile& file : shard.files()) {
      if (!IsRowsFilePath(file.path())) {
        return Wrong(absl::StrCat("'", file.path(), "' is no rows file's path"));
      }
      if (!paths.insert(file.path()).second) {
        return Wrong(absl::StrCat("'", file.path(), "' stands twice"));
      }
    }
  }
  return absl::OkStatus();
}

// "'path': ..."
absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("'", path, "': ", status.message()));
}

}  // namespace

std::string CheckpointName(const CheckpointId& id) {
  CHECK_GE(id.step.value(), 0);
  return absl::StrCat(kGenerationPrefix, id.generation, kStepPrefix, id.step.value());
}

std::optional<CheckpointId> ParseCheckpointName(absl::string_view name) {
  const size_t middle = name.find(kStepPrefix);
  if (!absl::StartsWith(name, kGenerationPrefix) || middle == absl::string_view::npos) {
    return std::nullopt;
  }
  const size_t generation_at = sizeof(kGenerationPrefix) - 1;
  CheckpointId id;
  int64_t step = 0;
  if (middle < generation_at ||
      !absl::SimpleAtoi(name.substr(generation_at, middle - generation_at), &id.generation) ||
      !absl::SimpleAtoi(name.substr(middle + sizeof(kStepPrefix) - 1), &step) || step < 0) {
    return std::nullopt;
  }
  id.step = Step(step);
  if (name != CheckpointName(id)) return std::nullopt;  // leading zeros, signs, blanks
  return id;
}

std::string RowsFilePath(const CheckpointId& id, const RowsFileWriterId& writer, uint32_t number) {
  std::string path = absl::StrCat(CheckpointName(id), "/server-", writer.server.value());
  if (number > 0) absl::StrAppend(&path, "-", number);
  if (writer.incarnation > 0) absl::StrAppend(&path, ".", writer.incarnation);
  return path + ".sst";
}

absl::Status CheckManifest(const CheckpointManifest& manifest) {
  RETURN_IF_ERROR(CheckVersion(manifest.format_version()));
  if (manifest.step() < 0 || manifest.step() > kLastStep.value())
    return Wrong(absl::StrCat("step ", manifest.step()));
  if (!IsJobId(manifest.job_id())) return Wrong("a job id that is none");
  RETURN_IF_ERROR(CheckTables(manifest));
  return CheckShards(manifest);
}

std::string EncodeManifest(const CheckpointManifest& manifest) {
  CHECK(CheckManifest(manifest).ok());
  return EncodeFrame(kManifestFormat, manifest.SerializeAsString());
}

absl::StatusOr<CheckpointManifest> DecodeManifest(absl::string_view bytes,
                                                  const std::string& path) {
  ASSIGN_OR_RETURN(const std::string payload, DecodeFrame(kManifestFormat, bytes, path));
  CheckpointManifest manifest;
  if (!manifest.ParseFromString(payload)) return At(path, Wrong("no CheckpointManifest"));
  const absl::Status checked = CheckManifest(manifest);
  if (!checked.ok()) return At(path, checked);
  return manifest;
}

std::vector<TableLayout> TablesOf(const CheckpointManifest& manifest) {
  std::vector<TableLayout> tables;
  for (const TableSpec& table : manifest.tables()) {
    auto layout = TableLayoutFromProto(table);
    CHECK(layout.ok());
    tables.push_back(*std::move(layout));
  }
  std::sort(tables.begin(), tables.end(),
            [](const TableLayout& a, const TableLayout& b) { return a.id < b.id; });
  return tables;
}

std::string DescribeRowDifference(TableLayout here, TableLayout there) {
  here.memory_budget_bytes = there.memory_budget_bytes = 0;
  return DescribeDifference(here, there);
}

absl::StatusOr<JobState> DecodeJobState(absl::string_view bytes, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string payload, DecodeFrame(kJobStateFormat, bytes, path));
  JobState state;
  if (!state.ParseFromString(payload)) return At(path, Wrong("no JobState"));
  const absl::Status version = CheckVersion(state.format_version());
  if (!version.ok()) return At(path, version);
  if (!state.base_checkpoint().empty() && !ParseCheckpointName(state.base_checkpoint())) {
    return At(path, Wrong(absl::StrCat("'", state.base_checkpoint(), "' is no checkpoint's name")));
  }
  return state;
}

std::string EncodeJobState(const JobState& state) {
  CHECK_EQ(state.format_version(), kCheckpointFormatVersion);
  return EncodeFrame(kJobStateFormat, state.SerializeAsString());
}

}  // namespace thermocline
