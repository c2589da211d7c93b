#include "deploy/checkpoints/checkpoint_match.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"
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

std::string ValueText(const Message& message, const FieldDescriptor& field) {
  std::vector<std::string> values;
  const int count = field.is_repeated() ? message.GetReflection()->FieldSize(message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    google::protobuf::TextFormat::Printer printer;
    printer.SetSingleLineMode(true);
    values.emplace_back();
    printer.PrintFieldValueToString(message, &field, field.is_repeated() ? i : -1, &values.back());
  }
  std::string text = absl::StrJoin(values, ", ");
  const bool is_many = field.is_repeated() || field.message_type() != nullptr;
  return is_many ? absl::StrCat("{", absl::StripAsciiWhitespace(text), "}") : text;
}

// The first field that differs, but for those of `ignored`: new fields matter. REQUIRES: of one
// type
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

// The index of `feature`, which is one of the job's.
int IndexOf(const Job& job, const Feature* feature) {
  int index = 0;
  while (&job.feature(index) != feature) ++index;
  return index;
}

bool HasFeature(const std::vector<const Feature*>& features, const std::string& name) {
  return std::any_of(features.begin(), features.end(),
                     [&name](const Feature* feature) { return feature->name() == name; });
}

// Compares features of one kind: those that read tables, or the numeric ones. `here`: features of
// `job`.
absl::Status CheckFeatures(const Job& job, const std::vector<const Feature*>& here,
                           const std::vector<const Feature*>& before, absl::string_view kind,
                           const std::set<std::string>& ignored) {
  for (const Feature* feature : here) {
    if (HasFeature(before, feature->name())) continue;
    return Differs(absl::StrCat("the checkpoint has no", kind, " feature '", feature->name(), "'"));
  }
  for (const Feature* feature : before) {
    if (HasFeature(here, feature->name())) continue;
    return Differs(absl::StrCat("the checkpoint has a", kind, " feature '", feature->name(),
                                "', the job has none"));
  }
  if (here.size() != before.size()) return Differs("the checkpoint has a feature twice");
  for (size_t i = 0; i < before.size(); ++i) {
    RETURN_IF_ERROR(CheckFields(*here[i], *before[i], ignored,
                                absl::StrCat("feature[", IndexOf(job, here[i]), "].")));
  }
  return absl::OkStatus();
}

// As this program resolves it: older programs listed fewer features.
Job JobOf(const CheckpointManifest& manifest) {
  Job job = manifest.job();
  ResolveJob(&job);
  return job;
}

// So that equal data compare equal, whichever form they were written in.
Data WithoutPaths(const Job& job, bool described) {
  Data data = described ? DescribeData(job.data()) : job.data();
  data.clear_path();
  data.clear_test_path();
  if (data.has_train()) data.mutable_train()->clear_path();
  if (data.has_test()) data.mutable_test()->clear_path();
  data.clear_group();  // Only evaluations read it.
  data.clear_max_bad_lines();
  data.clear_read_ahead_batches();
  data.clear_parser_threads();
  data.clear_s3();                        // Where the same rows are reached.
  if (described) data.clear_num_dense();  // The features imply it.
  if (described) data.clear_num_categorical();
  return data;
}

// All of `fae` but later changes of the rate decides which samples are hot, and so the samples of
// every step. The rate itself is in the checkpoint, or is still the first.
absl::Status CheckFae(const Job& job, const Job& before) {
  if (job.has_fae() != before.has_fae()) {
    return Differs(absl::StrCat(
        "the job has ", job.has_fae() ? "" : "no ", "`fae`, and the checkpoint was made with",
        job.has_fae() ? "out it" : " it", ": a step would be other samples"));
  }
  if (!job.has_fae()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckFields(job.fae(), before.fae(), {"schedule"}, "fae."));
  RETURN_IF_ERROR(CheckFields(job.fae().schedule(), before.fae().schedule(),
                              {"min_rate", "max_rate", "falls_to_double", "scored_rows"},
                              "fae.schedule."));
  return CheckFields(job.calibration(), before.calibration(), {"directory"}, "calibration.");
}

// As CheckFeatures() of those that both have. Whether there are others, of which `notices` gets a
// line each.
absl::StatusOr<bool> CheckKeptFeatures(const Job& job, const std::vector<const Feature*>& here,
                                       const std::vector<const Feature*>& before,
                                       absl::string_view kind, const std::set<std::string>& ignored,
                                       std::vector<std::string>* notices) {
  std::vector<const Feature*> kept, kept_before;
  for (const Feature* feature : here) {
    if (HasFeature(before, feature->name())) {
      kept.push_back(feature);
    } else {
      notices->push_back(absl::StrCat("the", kind, " feature '", feature->name(), "' is new"));
    }
  }
  for (const Feature* feature : before) {
    if (HasFeature(here, feature->name())) {
      kept_before.push_back(feature);
    } else {
      notices->push_back(absl::StrCat("the", kind, " feature '", feature->name(),
                                      "' of the checkpoint is left out: the job has none"));
    }
  }
  RETURN_IF_ERROR(CheckFeatures(job, kept, kept_before, kind, ignored));
  return kept.size() != here.size() || kept_before.size() != before.size();
}

// Whether the MLPs have the same shapes. `anew` gets the tensors of the layers whose inputs are
// other features: they may have other rows, which say nothing of these.
absl::Status CheckLayers(const Job& job, const Job& before, bool numbers_change, bool tables_change,
                         std::vector<std::string>* anew) {
  const std::vector<DenseTable> layers = ResolveTables(job).dense;
  const std::vector<DenseTable> layers_before = ResolveTables(before).dense;
  const auto shape = [](const std::vector<DenseTable>& tensors, size_t i) {
    if (i >= tensors.size()) return std::string("absent");
    return absl::StrCat("'", tensors[i].layout.name, "' of ", tensors[i].rows, " x ",
                        tensors[i].cols);
  };
  for (size_t i = 0; i < std::max(layers.size(), layers_before.size()); ++i) {
    if (i < layers.size() && i < layers_before.size()) {
      const std::string& name = layers[i].layout.name;
      const bool begins_anew = (numbers_change && absl::StartsWith(name, "bottom.0.")) ||
                               (tables_change && absl::StartsWith(name, "top.0."));
      const bool is_as_wide =
          name == layers_before[i].layout.name && layers[i].cols == layers_before[i].cols;
      if (begins_anew && is_as_wide) {
        anew->push_back(name);
        continue;
      }
    }
    if (shape(layers, i) == shape(layers_before, i)) continue;
    return Differs(absl::StrCat("the MLPs differ: a layer is ", shape(layers, i), " here, and was ",
                                shape(layers_before, i), " in the checkpoint"));
  }
  return absl::OkStatus();
}

// A script's model is its own: it gets the state that a script has saved, and no layers. `kept`:
// tables. REQUIRES: one of the jobs has a script
void AddScriptNotices(const Job& job, const Job& before, const std::vector<std::string>& kept,
                      bool features_change, std::vector<std::string>* notices) {
  if (!before.has_worker()) {
    notices->push_back(
        "the layers of the checkpoint's model are left out: the job's model is a script, which "
        "begins without a state");
  } else if (!job.has_worker()) {
    notices->push_back(
        "the state of the checkpoint's script is left out: the job has none, so that its layers "
        "begin anew");
  }
  if (!features_change) return;
  notices->push_back(absl::StrCat(
      "kept of the checkpoint: ", kept.empty() ? "no table" : "tables ", absl::StrJoin(kept, ", "),
      job.has_worker() && before.has_worker()
          ? ", and the script's state, which was made for the other features"
          : ""));
}

using FileList = google::protobuf::RepeatedPtrField<DataFile>;

// The place in `files` of one that is `file`, wherever it lies; -1: there is none.
int PlaceOf(const DataFile& file, const FileList& files) {
  for (int i = 0; i < files.size(); ++i) {
    if (files[i].has_bytes() == file.has_bytes() && DescribeChange(files[i], file).empty())
      return i;
  }
  return -1;
}

// Describes how file `i` of `now` differs from that of `before`. `kind`: "training".
std::string DescribeOther(const FileList& now, const FileList& before, int i, const char* kind) {
  const std::string& path = now[i].path();
  if (path == before[i].path()) {
    return absl::StrCat(path, " ", DescribeChange(now[i], before[i]));
  }
  const std::string place = absl::StrCat(" is ", kind, " file ", i + 1);
  if (const int was = PlaceOf(now[i], before); was >= 0) {
    return absl::StrCat(path, place, " now, and was file ", was + 1);
  }
  if (PlaceOf(before[i], now) >= 0) {
    return absl::StrCat(path, place, ", where ", before[i].path(), " was");
  }
  return absl::StrCat(path, place, ", in place of ", before[i].path(), ", and is another: it ",
                      DescribeChange(now[i], before[i]));
}

absl::Status CheckFiles(const FileList& now, const FileList& before, const char* kind,
                        std::vector<std::string>* added) {
  for (int i = 0; i < before.size(); ++i) {
    if (i >= now.size()) {
      return Differs(absl::StrCat(before[i].path(), ", ", kind, " file ", i + 1,
                                  ", is gone: there are ", now.size(), " now"));
    }
    if (DescribeChange(now[i], before[i]).empty()) continue;
    return Differs(DescribeOther(now, before, i, kind));
  }
  for (int i = before.size(); i < now.size(); ++i) added->push_back(now[i].path());
  return absl::OkStatus();
}

// "a.csv, b.csv and 3 more"
std::string ListSome(const std::vector<std::string>& paths) {
  constexpr size_t kMost = 5;
  if (paths.size() <= kMost) return absl::StrJoin(paths, ", ");
  return absl::StrCat(absl::StrJoin(paths.begin(), paths.begin() + kMost, ", "), " and ",
                      paths.size() - kMost, " more");
}

}  // namespace

absl::Status CheckModel(const Job& job, const CheckpointManifest& manifest) {
  if (job.seed() != manifest.seed()) {
    return Differs(absl::StrCat("seed is ", job.seed(), ", and the checkpoint was made with ",
                                manifest.seed(), ": rows that it lacks would begin otherwise"));
  }
  if (job.has_worker() != manifest.job().has_worker()) {
    return Differs(job.has_worker() ? "the job has a script (`worker`), and the checkpoint's job "
                                      "has `dlrm`"
                                    : "the job has `dlrm`, and the checkpoint's job has a script "
                                      "(`worker`)");
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
  // The source of a feature's ids belongs to the data, which CheckData compares.
  const Job before = JobOf(manifest);
  return CheckFeatures(job, EmbeddedFeatures(job), EmbeddedFeatures(before), "",
                       {"columns", "padding_id", "column", "categorical", "sequence", "cross"});
}

absl::Status CheckData(const Job& job, const CheckpointManifest& manifest) {
  const uint32_t before = manifest.job().train().batch_size();
  if (before != job.train().batch_size()) {
    return Differs(absl::StrCat("train.batch_size is ", job.train().batch_size(),
                                ", and the checkpoint was made with ", before,
                                ": a step would be other samples"));
  }
  const Job there = JobOf(manifest);
  RETURN_IF_ERROR(CheckFae(job, there));
  const bool described = job.data().has_train() || there.data().has_train();
  RETURN_IF_ERROR(
      CheckFields(WithoutPaths(job, described), WithoutPaths(there, described), {}, "data."));
  if (LabelColumn(job) != LabelColumn(there)) {
    return Differs(absl::StrCat("the model learns '", LabelColumn(job),
                                "' (task.label), and the checkpoint's learned '",
                                LabelColumn(there), "'"));
  }
  RETURN_IF_ERROR(CheckFeatures(job, EmbeddedFeatures(job), EmbeddedFeatures(there), "", {}));
  return CheckFeatures(job, NumericFeatures(job), NumericFeatures(there), " numeric", {});
}

absl::Status CheckDataFiles(const Job& job, const CheckpointManifest& manifest,
                            std::vector<std::string>* notices) {
  if (!manifest.job().has_data_files()) {
    notices->push_back(
        "the checkpoint does not know its data files: whether the data are the same is not "
        "checked");
    return absl::OkStatus();
  }
  if (!job.has_data_files()) return Differs("the data can't be compared with the checkpoint's");
  const DataFiles& now = job.data_files();
  const DataFiles& before = manifest.job().data_files();
  std::vector<std::string> train, test;
  RETURN_IF_ERROR(CheckFiles(now.train(), before.train(), "training", &train));
  RETURN_IF_ERROR(CheckFiles(now.test(), before.test(), "held-out", &test));
  const bool has_share = before.test().empty() && DescribeData(job.data()).split().last_share() > 0;
  if (!train.empty()) {
    notices->push_back(absl::StrCat(
        "added behind the files that the checkpoint was made with, and trained from now on: ",
        ListSome(train),
        has_share ? "; the last share of all rows is held out, so rows that were are trained"
                  : ""));
  }
  if (!test.empty()) {
    notices->push_back(absl::StrCat("added to the held-out files: ", ListSome(test)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CheckInit(const Job& job,
                                                   const CheckpointManifest& manifest,
                                                   std::vector<std::string>* notices) {
  const Job before = JobOf(manifest);
  ASSIGN_OR_RETURN(const bool tables_change,
                   CheckKeptFeatures(job, EmbeddedFeatures(job), EmbeddedFeatures(before), "",
                                     {"columns", "padding_id", "column", "categorical", "sequence",
                                      "cross", "table"},
                                     notices));
  ASSIGN_OR_RETURN(const bool numbers_change,
                   CheckKeptFeatures(job, NumericFeatures(job), NumericFeatures(before), " numeric",
                                     {"column", "numeric"}, notices));
  std::vector<std::string> kept, anew;
  const std::vector<TableLayout> here = ResolveTables(job).sparse, there = TablesOf(manifest);
  for (const TableLayout& table : ResolveTables(job).AllLayouts()) {
    const TableLayout* const old = Find(there, table.name);
    if (old == nullptr) continue;
    const std::string difference = DescribeInitDifference(table, *old);
    if (!difference.empty()) return Differs(difference + ", in the checkpoint");
  }
  for (const TableLayout& table : here) {
    if (const TableLayout* const old = Find(there, table.name); old != nullptr) {
      kept.push_back(table.name);
      if (table.first_order.has_value() != old->first_order.has_value()) {
        notices->push_back(absl::StrCat("the first-order weights of table '", table.name, "' ",
                                        table.first_order.has_value()
                                            ? "begin anew: the checkpoint has none"
                                            : "are left out: the job has none"));
      }
      continue;
    }
    notices->push_back(
        absl::StrCat("table '", table.name, "' is not in the checkpoint: its rows begin anew"));
  }
  for (const TableLayout& table : ResolveTables(before).sparse) {
    if (Find(here, table.name) != nullptr) continue;
    notices->push_back(
        absl::StrCat("table '", table.name, "' of the checkpoint is left out: the job has none"));
  }
  if (job.has_worker() || before.has_worker()) {
    AddScriptNotices(job, before, kept, numbers_change || tables_change, notices);
    return anew;
  }
  RETURN_IF_ERROR(CheckLayers(job, before, numbers_change, tables_change, &anew));
  if (!numbers_change && !tables_change) return anew;
  std::vector<std::string> layers;
  for (const DenseTable& tensor : ResolveTables(job).dense) {
    const std::string& name = tensor.layout.name;
    if (std::count(anew.begin(), anew.end(), name) == 0) layers.push_back(name);
  }
  notices->push_back(absl::StrCat(
      "kept of the checkpoint: tables ", absl::StrJoin(kept, ", "), "; layers ",
      absl::StrJoin(layers, ", "),
      ". Their inputs are other features, so that they begin anew: ", absl::StrJoin(anew, ", ")));
  return anew;
}

std::string ResolvedCpuIsa(const Job& job) {
  const CpuIsa wish = job.cluster().cpu_isa();
  if (wish != AUTO) return CpuIsa_Name(wish);
  return CpuIsa_Name(CpuHasAvx512() ? AVX512 : AVX2);
}

CheckpointManifest ManifestOf(const Job& job, const std::string& build) {
  CheckpointManifest manifest;
  manifest.set_format_version(kCheckpointFormatVersion);
  manifest.set_job_id(job.name());
  manifest.set_num_servers(job.cluster().servers());
  manifest.set_num_workers(job.cluster().workers());
  manifest.set_seed(job.seed());
  for (const TableLayout& layout : ResolveTables(job).AllLayouts()) {
    *manifest.add_tables() = TableLayoutToProto(layout);
  }
  *manifest.mutable_job() = job;
  manifest.set_cpu_isa(ResolvedCpuIsa(job));
  manifest.set_build(build);
  return manifest;
}

std::string DescribeOrigin(const Job& job, const std::string& build, const std::string& name,
                           const CheckpointManifest& manifest) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const std::string& before, const std::string& here) {
    if (before.empty() || before == here) return;
    differences.push_back(absl::StrCat(what, " ", before, " (this run: ", here, ")"));
  };
  // Older checkpoints hold the value of the job file.
  if (manifest.cpu_isa() != CpuIsa_Name(AUTO)) {
    compare("cpu_isa", manifest.cpu_isa(), ResolvedCpuIsa(job));
  }
  compare("build", manifest.build(), build);
  if (differences.empty()) return "";
  return absl::StrCat("checkpoint ", name, " was made with ", absl::StrJoin(differences, ", "));
}

}  // namespace thermocline
