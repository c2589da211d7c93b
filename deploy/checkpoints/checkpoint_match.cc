#include "deploy/checkpoints/checkpoint_match.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

using Message = google::protobuf::Message;
using FieldDescriptor = google::protobuf::FieldDescriptor;

absl::Status Differs(const std::string& what) { return absl::FailedPreconditionError(what); }

const TableLayout* Find(const std::vector<TableLayout>& tables, const std::string& name) {
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [&](const TableLayout& table) { return table.name == name; });
  return found == tables.end() ? nullptr : &*found;
}

// Of a field that is not repeated.
std::string ValueText(const Message& message, const FieldDescriptor& field) {
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(message, &field, -1, &text);
  return text;
}

// The first field that differs, but for those of `ignored`: new fields matter until somebody says
// otherwise. REQUIRES: of one type, without repeated fields
absl::Status CheckFields(const Message& here, const Message& there,
                         const std::set<std::string>& ignored, const std::string& prefix) {
  const auto* type = here.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor& field = *type->field(i);
    const std::string name(field.name());
    if (ignored.count(name) != 0) continue;
    const std::string value = ValueText(here, field), before = ValueText(there, field);
    if (value == before) continue;
    return Differs(
        absl::StrCat(prefix, name, " is ", value, ", and the checkpoint was made with ", before));
  }
  return absl::OkStatus();
}

absl::Status CheckFeatures(const Job& job, const CheckpointManifest& manifest,
                           const std::set<std::string>& ignored) {
  const auto& before = manifest.job().feature();
  if (job.feature_size() != before.size()) {
    return Differs(absl::StrCat("the job has ", job.feature_size(),
                                " features, and the checkpoint was made with ", before.size()));
  }
  for (int i = 0; i < before.size(); ++i) {
    RETURN_IF_ERROR(
        CheckFields(job.feature(i), before[i], ignored, absl::StrCat("feature[", i, "].")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModel(const Job& job, const CheckpointManifest& manifest) {
  if (job.seed() != manifest.seed()) {
    return Differs(absl::StrCat("seed is ", job.seed(), ", and the checkpoint was made with ",
                                manifest.seed(), ": rows that it lacks would begin otherwise"));
  }
  const std::vector<TableLayout> here = ResolveTables(job).AllLayouts();
  const std::vector<TableLayout> there = TablesOf(manifest);
  for (const TableLayout& table : here) {
    if (Find(there, table.name) != nullptr) continue;
    return Differs(absl::StrCat("the checkpoint has no table '", table.name, "'"));
  }
  for (const TableLayout& table : there) {
    if (Find(here, table.name) != nullptr) continue;
    return Differs(absl::StrCat("the checkpoint has a table '", table.name, "', the job has none"));
  }
  for (const TableLayout& table : here) {
    const std::string difference = DescribeRowDifference(table, *Find(there, table.name));
    if (!difference.empty()) return Differs(difference + ", in the checkpoint");
  }
  // How many columns a bag has, and what is padding in them, is a matter of the data.
  return CheckFeatures(job, manifest, {"columns", "padding_id"});
}

absl::Status CheckData(const Job& job, const CheckpointManifest& manifest) {
  const uint32_t before = manifest.job().train().batch_size();
  if (before != job.train().batch_size()) {
    return Differs(absl::StrCat("train.batch_size is ", job.train().batch_size(),
                                ", and the checkpoint was made with ", before,
                                ": a step would be other samples"));
  }
  RETURN_IF_ERROR(CheckFields(job.data(), manifest.job().data(),
                              {"path", "test_path", "max_bad_lines", "read_ahead_batches"},
                              "data."));
  return CheckFeatures(job, manifest, {});
}

std::string ResolvedCpuIsa(const Job& job) {
  const CpuIsa wish = job.cluster().cpu_isa();
  if (wish != AUTO) return CpuIsa_Name(wish);
  return CpuIsa_Name(CpuHasAvx512() ? AVX512 : AVX2);
}

std::string DescribeOrigin(const Job& job, const std::string& build,
                           const CheckpointManifest& manifest) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const std::string& before, const std::string& here) {
    if (before.empty() || before == here) return;
    differences.push_back(absl::StrCat(what, " ", before, " (this run: ", here, ")"));
  };
  // Older checkpoints have the wish.
  if (manifest.cpu_isa() != CpuIsa_Name(AUTO)) {
    compare("cpu_isa", manifest.cpu_isa(), ResolvedCpuIsa(job));
  }
  compare("build", manifest.build(), build);
  if (differences.empty()) return "";
  return absl::StrCat("checkpoint ", CheckpointName({manifest.generation(), Step(manifest.step())}),
                      " was made with ", absl::StrJoin(differences, ", "));
}

}  // namespace thermocline
