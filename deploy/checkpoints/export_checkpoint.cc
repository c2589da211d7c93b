#include "deploy/checkpoints/export_checkpoint.h"

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/merged_rows.h"
#include "common/job/job_data.h"
#include "common/job/job_loader.h"
#include "common/job/job_source.h"
#include "common/job/resolved_job.h"
#include "common/math/script_state_rows.h"
#include "common/model/presets.h"
#include "deploy/checkpoints/safetensors_file.h"

namespace thermocline {
namespace {

// A message of the job as JSON.
nlohmann::ordered_json JsonOf(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  // Texts that are no UTF-8 are none of JSON's.
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return nullptr;
  return nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}

using Type = SafetensorsEntry::Type;

// The job's tables, where they are the manifest's: the dense ones' shapes are known to the job
// only.
absl::StatusOr<JobTables> JobTablesOf(const CheckpointManifest& manifest) {
  const auto job = ParseJob(JobToText(manifest.job()), "the manifest's job", {});
  if (!job.ok()) return absl::FailedPreconditionError(job.status().message());
  JobTables tables = ResolveTables(*job);
  std::vector<TableLayout> layouts = tables.AllLayouts();
  std::sort(layouts.begin(), layouts.end(),
            [](const TableLayout& a, const TableLayout& b) { return a.id < b.id; });
  const std::vector<TableLayout> saved = TablesOf(manifest);
  const auto same = [](const TableLayout& job_table, const TableLayout& table) {
    return DescribeRowDifference(job_table, table).empty();
  };
  if (std::equal(layouts.begin(), layouts.end(), saved.begin(), saved.end(), same)) return tables;
  return absl::FailedPreconditionError(absl::StrCat("the job in the manifest of ",
                                                    CheckpointName(Step(manifest.step())),
                                                    " doesn't describe its tables"));
}

// The format's name for other programs: CRITEO_TSV for described text that means the same, else
// DESCRIBED, whose details are only in the job of the export.
std::string FormatName(const Job& resolved) {
  if (!resolved.data().has_train()) return Data::Format_Name(resolved.data().format());
  if (IsNpy(resolved.data())) return Data::Format_Name(Data::DLRM_NPY);
  if (!resolved.data().train().has_criteo_tsv()) return "DESCRIBED";
  Job plain;
  plain.mutable_data()->set_format(Data::CRITEO_TSV);
  plain.mutable_data()->set_num_dense(resolved.data().train().criteo_tsv().integers());
  for (const Feature* feature : EmbeddedFeatures(resolved)) {
    Feature* const same = plain.add_feature();
    same->set_name(feature->name());
    same->set_table(feature->table());
    same->set_pooling(feature->pooling());
  }
  ResolveJob(&plain);
  const auto all_equal = [](const std::vector<const Feature*>& a,
                            const std::vector<const Feature*>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Feature* x, const Feature* y) {
                        return google::protobuf::util::MessageDifferencer::Equals(*x, *y);
                      });
  };
  const bool is_plain =
      plain.data().num_categorical() == resolved.data().train().criteo_tsv().categories() &&
      all_equal(EmbeddedFeatures(plain), EmbeddedFeatures(resolved)) &&
      all_equal(NumericFeatures(plain), NumericFeatures(resolved));
  return is_plain ? Data::Format_Name(Data::CRITEO_TSV) : "DESCRIBED";
}

// The stanzas of described data and of features, as JSON with the names of proto/job.proto.
// Criteo's form is text like any other there.
nlohmann::ordered_json DescriptionOf(const Job& job) {
  Job described;
  *described.mutable_data() = job.data();
  *described.mutable_feature() = job.feature();
  described.mutable_data()->clear_s3();
  described.mutable_data()->clear_test();
  Data::Files* const train = described.mutable_data()->mutable_train();
  train->clear_path();
  if (train->has_criteo_tsv()) {
    const std::vector<std::string> columns = TextColumns(*train);
    Data::Csv* const csv = train->mutable_csv();
    csv->set_separator("\t");
    csv->set_quotes(false);
    csv->mutable_column()->Assign(columns.begin(), columns.end());
  } else if (train->has_csv() && !train->csv().header()) {
    const std::vector<std::string> columns = TextColumns(*train);
    train->mutable_csv()->mutable_column()->Assign(columns.begin(), columns.end());
  }
  return JsonOf(described);
}

// The layers, and what each of them reads and learns. A DLRM's MLPs also stand there as programs of
// earlier versions read them: "bottom" and "top", the widths of their layers.
void AddModel(const Job& job, nlohmann::ordered_json* model) {
  Job layers = job;
  ExpandPreset(InputsOf(job), &layers);
  for (const Sequence& sequence : layers.sequence()) {
    (*model)["sequences"].push_back(JsonOf(sequence));
  }
  for (const FeatureGroup& group : layers.group()) (*model)["groups"].push_back(JsonOf(group));
  for (const Layer& layer : layers.layer()) (*model)["layers"].push_back(JsonOf(layer));
  for (const Task& task : layers.task()) (*model)["tasks"].push_back(JsonOf(task));
  for (const GraphNode& node : DescribeModel(job).graph.nodes) {
    if (node.op != GraphNode::Op::kMlp || (node.layer != "bottom" && node.layer != "top")) continue;
    std::vector<int> widths = {node.tensors[0].in};
    for (const DenseTensor& weight : node.tensors) widths.push_back(weight.out);
    (*model)[node.layer] = widths;
  }
}

// The model's description as JSON, which a program needs beside the tensors to compute with them
// (docs/formats.md). `job`: resolved.
std::string ModelText(const Job& job, uint64_t seed, const JobTables& tables) {
  using Json = nlohmann::ordered_json;
  Json features = Json::array(), sparse = Json::array();
  for (const Feature* feature : EmbeddedFeatures(job)) {
    const Json padding = feature->has_padding_id() ? Json(feature->padding_id()) : Json();
    features.push_back({{"name", feature->name()},
                        {"table", feature->table()},
                        {"pooling", Pooling_Name(feature->pooling())},
                        {"columns", feature->columns()},
                        {"padding_id", padding}});
    const std::string& weights = feature->categorical().weights();
    if (!weights.empty()) features.back()["weights"] = weights;
    if (feature->has_sequence()) {
      const Feature::Sequence& list = feature->sequence();
      features.back()["sequence"] = true;
      features.back()["max_length"] = list.max_length();
      features.back()["keep"] = Feature::Sequence::Keep_Name(list.keep());
    }
  }
  for (const TableLayout& table : tables.sparse) {
    Json entry = {{"name", table.name},
                  {"id", table.id.value()},
                  {"dim", table.dim},
                  {"init_scale", table.init_scale}};
    if (table.distribution != InitialDistribution::kUniform) {
      entry["initializer"] = std::string(InitialDistributionName(table.distribution));
    }
    if (table.first_order.has_value()) {
      entry["first_order"] = {
          {"initializer", std::string(InitialDistributionName(table.first_order->distribution))},
          {"init_scale", table.first_order->init_scale}};
    }
    sparse.push_back(std::move(entry));
  }
  Json model = {{"seed", seed},
                {"data",
                 {{"format", FormatName(job)},
                  {"num_dense", job.data().num_dense()},
                  {"test_share", DescribeData(job.data()).split().last_share()}}},
                {"features", std::move(features)},
                {"tables", std::move(sparse)}};
  if (FormatName(job) == "DLRM_NPY" && job.data().label().column_size() > 0) {
    model["data"]["labels"] = LabelColumns(job);
    model["data"]["labels_may_be_missing"] = job.data().label().may_be_missing();
  }
  AddModel(job, &model);
  if (job.has_worker()) model["script"] = absl::StrJoin(job.worker().command(), " ");
  if (FormatName(job) == "DESCRIBED") model["described"] = DescriptionOf(job);
  return model.dump();
}

// The tensors of one table in the file; npos: not wanted, or it has none.
struct TableTensors {
  static constexpr size_t npos = static_cast<size_t>(-1);
  size_t keys = npos, rows = npos, state = npos;
};

// A file that is whole, and gets its name later.
class NewFile {
 public:
  static absl::StatusOr<std::unique_ptr<NewFile>> Create(const std::string& path,
                                                         absl::string_view bytes) {
    std::unique_ptr<NewFile> file(new NewFile(path));
    RETURN_IF_ERROR(file->Write(bytes));
    return file;
  }
  // Removes the file unless it has its name.
  ~NewFile() {
    if (!is_named_) disk_.Remove(temporary_).IgnoreError();
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  absl::Status Finish() {
    RETURN_IF_ERROR(disk_.Rename(temporary_, path_));
    is_named_ = true;
    return absl::OkStatus();
  }

 private:
  explicit NewFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {}

  absl::Status Write(absl::string_view bytes) {
    const absl::Status removed = disk_.Remove(temporary_);  // what a crash left
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, disk_.Create(temporary_));
    RETURN_IF_ERROR(file->Append({bytes}));
    return file->Sync();
  }

  PosixDisk disk_;
  const std::string path_;
  const std::string temporary_;
  bool is_named_ = false;
};

class Export {
 public:
  Export(Disk* disk, const std::string& directory, const CheckpointManifest& manifest,
         const ExportOptions& options)
      : disk_(disk), directory_(directory), manifest_(manifest), options_(options) {}

  absl::StatusOr<ExportedCheckpoint> Run(const std::string& path);

 private:
  void AddTensors();
  size_t AddTensor(std::string name, Type type, std::vector<uint64_t> shape);
  std::map<std::string, std::string> Metadata() const;
  absl::Status WriteSparse(const TableLayout& layout);
  absl::Status WriteDense(const DenseTable& table);
  absl::StatusOr<std::string> ReadScriptState();
  absl::Status WriteScriptState(const std::string& path);
  // Calls `use` with every row of a table.
  template <typename Use>
  absl::Status ForEachRow(TableId table, Use use);

  Disk* const disk_;
  const std::string& directory_;
  const CheckpointManifest& manifest_;
  const ExportOptions options_;
  JobTables tables_;
  ExportedCheckpoint exported_;
  std::vector<SafetensorsEntry> entries_;
  std::map<TableId, TableTensors> tensors_;
  std::unique_ptr<SafetensorsFile> file_;
  std::unique_ptr<NewFile> state_;  // null: there is none.
};

absl::StatusOr<ExportedCheckpoint> Export::Run(const std::string& path) {
  ASSIGN_OR_RETURN(tables_, JobTablesOf(manifest_));
  ASSIGN_OR_RETURN(exported_.verified, VerifyCheckpoint(disk_, directory_, manifest_));
  AddTensors();
  ASSIGN_OR_RETURN(file_, SafetensorsFile::Create(path, entries_, Metadata()));
  for (const TableLayout& layout : tables_.sparse) RETURN_IF_ERROR(WriteSparse(layout));
  for (const DenseTable& table : tables_.dense) RETURN_IF_ERROR(WriteDense(table));
  if (tables_.script_state.has_value()) RETURN_IF_ERROR(WriteScriptState(path));
  RETURN_IF_ERROR(file_->Finish());
  if (state_ != nullptr) RETURN_IF_ERROR(state_->Finish());
  exported_.tensors = entries_.size();
  exported_.bytes = file_->file_bytes();
  return exported_;
}

size_t Export::AddTensor(std::string name, Type type, std::vector<uint64_t> shape) {
  entries_.push_back({std::move(name), type, std::move(shape)});
  return entries_.size() - 1;
}

void Export::AddTensors() {
  const auto wants_state = [&](const TableLayout& layout) {
    return options_.optimizer_state && layout.state_floats() > 0;
  };
  for (const TableLayout& layout : tables_.sparse) {
    const uint64_t rows = exported_.verified.rows[layout.id];
    TableTensors& tensors = tensors_[layout.id];
    tensors.keys = AddTensor(layout.name + ".keys", Type::kU64, {rows});
    tensors.rows =
        AddTensor(layout.name + ".rows", Type::kF32, {rows, static_cast<uint64_t>(layout.dim)});
    if (wants_state(layout)) {
      tensors.state = AddTensor(layout.name + ".optimizer_state", Type::kF32,
                                {rows, static_cast<uint64_t>(layout.state_floats())});
    }
  }
  for (const DenseTable& table : tables_.dense) {
    std::vector<uint64_t> shape = {static_cast<uint64_t>(table.rows),
                                   static_cast<uint64_t>(table.cols)};
    // A bias is a vector; a weight of one input is still a matrix.
    if (table.is_vector) shape.erase(shape.begin());
    TableTensors& tensors = tensors_[table.layout.id];
    tensors.rows = AddTensor(table.layout.name, Type::kF32, std::move(shape));
    if (wants_state(table.layout)) {
      tensors.state = AddTensor(table.layout.name + ".optimizer_state", Type::kF32,
                                {static_cast<uint64_t>(table.num_blocks()),
                                 static_cast<uint64_t>(table.layout.state_floats())});
    }
  }
}

std::map<std::string, std::string> Export::Metadata() const {
  const Digest& digest = exported_.verified.model_digest;
  return {
      {"format", "thermocline checkpoint 1"},
      {"job_id", manifest_.job_id()},
      {"job", JobToText(manifest_.job())},
      {"model", ModelText(manifest_.job(), manifest_.seed(), tables_)},
      {"generation", absl::StrCat(manifest_.generation())},
      {"step", absl::StrCat(manifest_.step())},
      {"samples", absl::StrCat(manifest_.samples())},
      {"seed", absl::StrCat(manifest_.seed())},
      {"model_digest", absl::StrFormat("%016x%016x", digest.high, digest.low)},
  };
}

template <typename Use>
absl::Status Export::ForEachRow(TableId table, Use use) {
  RowRange range;
  range.table = table;
  for (int shard = 0; shard < manifest_.shards_size(); ++shard) {
    ASSIGN_OR_RETURN(const std::unique_ptr<MergedRows> merged,
                     MergedRows::Open(disk_, directory_, manifest_, shard, range));
    for (SavedRow row;;) {
      ASSIGN_OR_RETURN(const bool found, merged->Next(&row));
      if (!found) break;
      // A key that was looked up too seldom to have a row reads as its initial row elsewhere, too.
      if (!row.values.empty()) RETURN_IF_ERROR(use(row));
    }
  }
  return absl::OkStatus();
}

absl::Status Export::WriteSparse(const TableLayout& layout) {
  const TableTensors& tensors = tensors_[layout.id];
  const auto dim = static_cast<size_t>(layout.dim);
  return ForEachRow(layout.id, [&](const SavedRow& row) -> absl::Status {
    RETURN_IF_ERROR(file_->Append(tensors.keys, &row.key.key, sizeof(Key)));
    RETURN_IF_ERROR(file_->Append(tensors.rows, row.values.data(), sizeof(float) * dim));
    if (tensors.state == TableTensors::npos) return absl::OkStatus();
    return file_->Append(tensors.state, row.values.data() + dim,
                         sizeof(float) * (row.values.size() - dim));
  });
}

// Blocks that no step has touched are not in the checkpoint: they have their initial values.
absl::Status Export::WriteDense(const DenseTable& table) {
  const TableTensors& tensors = tensors_[table.layout.id];
  const auto blocks = static_cast<uint64_t>(table.num_blocks());
  const auto row_floats = static_cast<size_t>(table.layout.row_floats());
  std::vector<float> rows(blocks * row_floats);
  const auto row_of = [&](uint64_t block) {
    return absl::MakeSpan(rows).subspan(block * row_floats, row_floats);
  };
  for (uint64_t block = 0; block < blocks; ++block) {
    InitialRow(table.layout, manifest_.seed(), block, row_of(block));
  }
  RETURN_IF_ERROR(ForEachRow(table.layout.id, [&](const SavedRow& row) -> absl::Status {
    if (row.key.key >= blocks) {
      return absl::DataLossError(absl::StrCat("the checkpoint has block ", row.key.key, " of '",
                                              table.layout.name, "', which has ", blocks));
    }
    std::copy(row.values.begin(), row.values.end(), row_of(row.key.key).begin());
    return absl::OkStatus();
  }));
  auto left = static_cast<uint64_t>(table.num_floats());
  for (uint64_t block = 0; block < blocks; ++block) {
    const uint64_t floats = std::min<uint64_t>(left, kDenseBlockFloats);
    left -= floats;
    const absl::Span<const float> row = row_of(block);
    RETURN_IF_ERROR(file_->Append(tensors.rows, row.data(), sizeof(float) * floats));
    if (tensors.state == TableTensors::npos) continue;
    RETURN_IF_ERROR(file_->Append(tensors.state, row.data() + kDenseBlockFloats,
                                  sizeof(float) * (row_floats - kDenseBlockFloats)));
  }
  return absl::OkStatus();
}

// "": the script has kept nothing.
absl::StatusOr<std::string> Export::ReadScriptState() {
  std::map<Key, std::vector<float>> of_key;
  RETURN_IF_ERROR(ForEachRow(tables_.script_state->id, [&](const SavedRow& row) {
    of_key[row.key.key].assign(row.values.begin(), row.values.begin() + kDenseBlockFloats);
    return absl::OkStatus();
  }));
  if (of_key.empty()) return "";
  std::vector<float> rows;
  for (const auto& [key, values] : of_key) {
    if (key * kDenseBlockFloats != rows.size()) {
      return absl::DataLossError(
          absl::StrCat("the state of the script lacks its row ", rows.size() / kDenseBlockFloats));
    }
    rows.insert(rows.end(), values.begin(), values.end());
  }
  return StateOfRows(rows);
}

absl::Status Export::WriteScriptState(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string state, ReadScriptState());
  constexpr char kSuffix[] = ".safetensors";
  absl::string_view stem = path;
  const bool has_suffix = absl::ConsumeSuffix(&stem, kSuffix);
  const std::string state_path = absl::StrCat(stem, ".state", has_suffix ? kSuffix : "");
  if (state.empty()) {
    std::error_code error;
    if (!std::filesystem::exists(state_path, error)) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("the checkpoint's script has kept no state, and ", state_path,
                     " would pass for it: move it away, or export to another path"));
  }
  ASSIGN_OR_RETURN(state_, NewFile::Create(state_path, state));
  exported_.script_state = state_path;
  exported_.script_state_bytes = state.size();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExportedCheckpoint> ExportCheckpoint(Disk* disk, const std::string& directory,
                                                    const CheckpointManifest& manifest,
                                                    const std::string& path,
                                                    const ExportOptions& options) {
  return Export(disk, directory, manifest, options).Run(path);
}

}  // namespace thermocline
