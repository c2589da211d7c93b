#include "common/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr char kStepPrefix[] = "step-", kGenerationPrefix[] = "generation-";
constexpr char kOldPrefix[] = "epoch-", kOldMiddle[] = "-step-";
constexpr int kStepDigits = 9;  // At least: names sort by step.

bool IsRowsFileName(absl::string_view name) {
  const bool has_suffix =
      absl::EndsWith(name, kRowsFileSuffix) || absl::EndsWith(name, kSstFileSuffix);
  return name.size() <= 255 && has_suffix && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

// The generation in "FOLDER/NAME", where NAME is that of a rows file; nullopt: `path` has another
// form.
std::optional<uint64_t> GenerationOfPath(absl::string_view path) {
  const size_t slash = path.find('/');
  if (slash == absl::string_view::npos) return std::nullopt;
  const auto folder = ParseCheckpointName(path.substr(0, slash));
  const absl::string_view name = path.substr(slash + 1);
  if (!folder.has_value() || !IsRowsFileName(name)) return std::nullopt;
  return GenerationOfFile(*folder, name);
}

// Only digits: no sign, no blank.
template <typename Number>
std::optional<Number> ParseDigits(absl::string_view text) {
  Number number = 0;
  const bool all_digits =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  if (!all_digits || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

absl::Status Wrong(absl::string_view what) { return absl::DataLossError(what); }

absl::Status CheckVersion(uint32_t version, const FrameFormat& format) {
  if (format.Knows(version)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("format version ", version, "; this program knows version ", format.version));
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

// All servers have forgotten the same; a manifest of an earlier program names nothing.
absl::Status CheckRowLimits(const CheckpointManifest& manifest) {
  const auto& limits = manifest.shards(0).row_limits();
  for (const CheckpointShard& shard : manifest.shards()) {
    const bool agrees =
        std::equal(shard.row_limits().begin(), shard.row_limits().end(), limits.begin(),
                   limits.end(), [](const RowLimit& a, const RowLimit& b) {
                     return a.table() == b.table() && a.oldest_kept() == b.oldest_kept();
                   });
    if (agrees) continue;
    return Wrong(absl::StrCat("servers 0 and ", shard.server_index(),
                              " have forgotten different rows for eviction.max_rows"));
  }
  for (const RowLimit& limit : limits) {
    const bool is_known =
        std::any_of(manifest.tables().begin(), manifest.tables().end(),
                    [&](const TableSpec& table) { return table.id() == limit.table(); });
    if (is_known && limit.oldest_kept() <= manifest.step() + 1) continue;
    return Wrong(absl::StrCat("the row limit ", limit.oldest_kept(), " of table ", limit.table()));
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
      const auto generation = GenerationOfPath(file.path());
      if (!generation.has_value()) {
        return Wrong(absl::StrCat("'", file.path(), "' is no rows file's path"));
      }
      if (*generation > manifest.generation()) {
        return Wrong(absl::StrCat("'", file.path(), "' is of a later generation"));
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

std::string CheckpointName(Step step) {
  CHECK_GE(step.value(), 0);
  return absl::StrFormat("%s%0*d", kStepPrefix, kStepDigits, step.value());
}

std::string OldCheckpointName(const CheckpointId& id) {
  CHECK_GE(id.step.value(), 0);
  return absl::StrCat(kOldPrefix, id.generation, kOldMiddle, id.step.value());
}

std::string ManifestName(uint64_t generation) {
  return absl::StrCat(kManifestName, "-", generation);
}

std::optional<uint64_t> GenerationOfManifest(absl::string_view file) {
  if (!absl::ConsumePrefix(&file, kManifestName)) return std::nullopt;
  if (file.empty()) return 0;
  if (!absl::ConsumePrefix(&file, "-") || file.empty()) return std::nullopt;
  const auto generation = ParseDigits<uint64_t>(file);
  return generation == uint64_t{0} ? std::nullopt : generation;
}

std::optional<Step> ParseShortName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kStepPrefix)) return std::nullopt;
  const auto step = ParseDigits<int64_t>(name);
  if (!step.has_value()) return std::nullopt;
  return Step(*step);
}

std::optional<CheckpointFolder> ParseCheckpointName(absl::string_view name) {
  if (const std::optional<Step> step = ParseShortName(name); step.has_value()) {
    if (name != CheckpointName(*step)) return std::nullopt;  // Fewer digits, or more zeros.
    return CheckpointFolder{*step, std::nullopt};
  }
  absl::string_view rest = name;
  const size_t middle = name.find(kOldMiddle);
  if (!absl::ConsumePrefix(&rest, kOldPrefix) || middle == absl::string_view::npos ||
      middle < sizeof(kOldPrefix) - 1) {
    return std::nullopt;
  }
  const auto generation =
      ParseDigits<uint64_t>(name.substr(sizeof(kOldPrefix) - 1, middle + 1 - sizeof(kOldPrefix)));
  const auto step = ParseDigits<int64_t>(name.substr(middle + sizeof(kOldMiddle) - 1));
  if (!generation.has_value() || !step.has_value() ||
      name != OldCheckpointName({*generation, Step(*step)})) {
    return std::nullopt;
  }
  return CheckpointFolder{Step(*step), *generation};
}

std::optional<uint64_t> GenerationOfFile(const CheckpointFolder& folder, absl::string_view file) {
  if (folder.generation.has_value()) return folder.generation;
  if (!absl::ConsumePrefix(&file, kGenerationPrefix)) return std::nullopt;
  const size_t end = file.find('-');
  if (end == absl::string_view::npos) return std::nullopt;
  const absl::string_view digits = file.substr(0, end);
  const auto generation = ParseDigits<uint64_t>(digits);
  // Servers write the number without leading zeros.
  if (!generation.has_value() || digits != absl::StrCat(*generation)) return std::nullopt;
  return generation;
}

std::string RowsFilePath(const CheckpointId& id, const RowsFileWriterId& writer, uint32_t number) {
  std::string path = absl::StrCat(CheckpointName(id.step), "/", kGenerationPrefix, id.generation,
                                  "-server-", writer.server.value());
  if (number > 0) absl::StrAppend(&path, "-", number);
  if (writer.incarnation > 0) absl::StrAppend(&path, ".", writer.incarnation);
  return absl::StrCat(path, kRowsFileSuffix);
}

absl::Status CheckManifest(const CheckpointManifest& manifest) {
  RETURN_IF_ERROR(CheckVersion(manifest.format_version(), kManifestFormat));
  if (manifest.step() < 0 || manifest.step() > kLastStep.value())
    return Wrong(absl::StrCat("step ", manifest.step()));
  if (!IsJobId(manifest.job_id())) return Wrong("a job id that is none");
  RETURN_IF_ERROR(CheckTables(manifest));
  RETURN_IF_ERROR(CheckShards(manifest));
  return CheckRowLimits(manifest);
}

uint32_t ManifestVersionOf(const CheckpointManifest& manifest) {
  for (const CheckpointShard& shard : manifest.shards()) {
    for (const CheckpointFile& file : shard.files()) {
      if (absl::EndsWith(file.path(), kRowsFileSuffix)) return kManifestVersionOfRowsFiles;
    }
  }
  return kCheckpointFormatVersion;
}

std::string EncodeManifest(const CheckpointManifest& manifest) {
  CHECK(CheckManifest(manifest).ok());
  return EncodeFrame({kManifestFormat.magic, manifest.format_version()},
                     manifest.SerializeAsString());
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

std::optional<CheckpointId> ReadManifestId(absl::string_view bytes) {
  const auto payload = DecodeFrameOfAnyVersion(kManifestFormat.magic, bytes, "");
  CheckpointManifest manifest;
  if (!payload.ok() || !manifest.ParseFromString(*payload) || manifest.step() < 0 ||
      manifest.step() > kLastStep.value()) {
    return std::nullopt;
  }
  return IdOf(manifest);
}

CheckpointId IdOf(const CheckpointManifest& manifest) {
  return {manifest.generation(), Step(manifest.step())};
}

std::optional<CheckpointId> BestCheckpointOf(const EvaluationState& evaluations) {
  const auto folder = ParseCheckpointName(evaluations.best_checkpoint());
  if (!folder.has_value()) return std::nullopt;
  return CheckpointId{folder->generation.value_or(evaluations.best_generation()), folder->step};
}

std::vector<TableLayout> TablesOf(const CheckpointManifest& manifest) {
  std::vector<TableLayout> tables;
  const CheckpointShard first = manifest.shards_size() > 0 ? manifest.shards(0) : CheckpointShard();
  for (const TableSpec& table : manifest.tables()) {
    auto layout = TableLayoutFromProto(table);
    CHECK(layout.ok());
    for (const RowLimit& limit : first.row_limits()) {
      if (limit.table() == table.id()) layout->forgotten_before = limit.oldest_kept();
    }
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

namespace {

// `there`, with what may differ for a row that is carried over as `here` has it: the rate, and what
// happens to gradients before the optimizer.
OptimizerConfig WithRatesOf(const OptimizerConfig& here, OptimizerConfig there) {
  there.learning_rate_scale = here.learning_rate_scale;
  there.weight_decay = here.weight_decay;
  there.clip_value = here.clip_value;
  there.clip_norm = here.clip_norm;
  there.cow_clip_ratio = here.cow_clip_ratio;
  there.cow_clip_floor = here.cow_clip_floor;
  there.clip_global_norm = here.clip_global_norm;
  return there;
}

// The layout of the vectors alone.
TableLayout VectorsOf(const TableLayout& table) {
  TableLayout vectors = table;
  vectors.dim = table.vector_dim();
  vectors.first_order.reset();
  return vectors;
}

}  // namespace

std::string DescribeInitDifference(const TableLayout& here, const TableLayout& there) {
  if (here.first_order.has_value() != there.first_order.has_value()) {
    return DescribeInitDifference(VectorsOf(here), VectorsOf(there));
  }
  TableLayout as_there = here;
  as_there.role = there.role;
  as_there.dim = there.dim;
  as_there.optimizer = WithRatesOf(here.optimizer, there.optimizer);
  if (here.first_order.has_value()) {
    as_there.first_order->optimizer =
        WithRatesOf(here.first_order->optimizer, there.first_order->optimizer);
  }
  return DescribeDifference(here, as_there);
}

void CarryRow(const TableLayout& there, absl::Span<const float> row, const TableLayout& here,
              uint64_t seed, Key key, absl::Span<float> carried) {
  CHECK_EQ(row.size(), static_cast<size_t>(there.row_floats()));
  CHECK_EQ(here.vector_dim(), there.vector_dim());
  InitialRow(here, seed, key, carried);
  const int vector_dim = here.vector_dim();
  const int state_floats = StateFloats(here.optimizer.kind, vector_dim);
  std::copy_n(row.begin(), vector_dim, carried.begin());
  std::copy_n(row.begin() + there.dim, state_floats, carried.begin() + here.dim);
  if (!here.first_order.has_value() || !there.first_order.has_value()) return;
  carried[vector_dim] = row[vector_dim];
  const auto state = row.subspan(there.dim + state_floats);
  std::copy(state.begin(), state.end(), carried.begin() + here.dim + state_floats);
}

absl::StatusOr<JobState> DecodeJobState(absl::string_view bytes, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string payload, DecodeFrame(kJobStateFormat, bytes, path));
  JobState state;
  if (!state.ParseFromString(payload)) return At(path, Wrong("no JobState"));
  const absl::Status version = CheckVersion(state.format_version(), kJobStateFormat);
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
