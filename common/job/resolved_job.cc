#include "common/job/resolved_job.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/text.h"
#include "common/job/job_data.h"
#include "common/math/table_spec.h"
#include "common/wire/messages.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

constexpr uint32_t kDefaultPrefetchSteps = 2;

OptimizerConfig Config(const Optimizer& proto) {
  auto config = OptimizerFromProto(proto);
  CHECK(config.ok());  // LoadJob checked it
  return *config;
}

TableLayout SparseLayout(const Table& table, uint32_t id) {
  TableLayout layout;
  layout.id = TableId(id);
  layout.name = table.name();
  layout.dim = static_cast<int>(table.settings().dim());
  layout.optimizer = Config(table.settings().optimizer());
  if (table.settings().has_initializer()) {
    CHECK(ReadInitializer(table.settings().initializer(), "", &layout.distribution,
                          &layout.init_scale)
              .ok());  // LoadJob checked it
  } else {
    layout.init_scale = table.settings().init_scale();
  }
  layout.role = TableRole::kSparse;
  if (table.settings().storage().has_rocksdb()) {
    const auto memory = ParseByteSize(table.settings().storage().rocksdb().memory());
    CHECK(memory.ok());  // LoadJob checked it
    layout.memory_budget_bytes = *memory;
  }
  if (table.settings().min_count() > 1) layout.min_count = table.settings().min_count();
  layout.unused_steps = table.settings().eviction().unused_steps();
  layout.max_rows = table.settings().eviction().max_rows();
  return layout;
}

// Rows get a first-order weight beside their vector, or in its place.
void AddFirstOrder(const FirstOrderRows& rows, TableLayout* layout) {
  FirstOrderWeight weight;
  const bool has_optimizer = rows.optimizer.kind_case() != Optimizer::KIND_NOT_SET;
  weight.optimizer = has_optimizer ? Config(rows.optimizer) : layout->optimizer;
  if (rows.initializer.kind_case() != Initializer::KIND_NOT_SET) {
    CHECK(ReadInitializer(rows.initializer, "", &weight.distribution, &weight.init_scale)
              .ok());  // LoadJob checked it
  }
  layout->dim = rows.has_vectors ? layout->dim + 1 : 1;
  layout->first_order = weight;
}

// The features that a model reads, and the tables that they read.
void AddSparse(const Job& resolved, const ModelSpec& model, JobTables* tables) {
  std::map<std::string, const Table*> by_name;
  for (const Table& table : resolved.table()) by_name[table.name()] = &table;
  std::map<std::string, int> sources;
  const std::vector<const Feature*> embedded = EmbeddedFeatures(resolved);
  for (const Feature* feature : embedded) sources.emplace(feature->name(), sources.size());
  std::map<std::string, int> index;
  for (const EmbeddedFeature& feature : model.inputs.features) {
    const auto [entry, is_new] =
        index.emplace(feature.table, static_cast<int>(tables->sparse.size()));
    if (is_new) {
      const auto table = by_name.find(feature.table);
      CHECK(table != by_name.end());
      tables->sparse.push_back(SparseLayout(*table->second, tables->sparse.size()));
      const auto first_order = model.first_order.find(feature.table);
      if (first_order != model.first_order.end()) {
        AddFirstOrder(first_order->second, &tables->sparse.back());
      }
      tables->placements.push_back(table->second->settings().placement());
    }
    FeatureSpec& spec = tables->features.emplace_back();
    spec.name = feature.name;
    spec.table_index = entry->second;
    if (feature.sequence < 0) {
      spec.source = sources.at(feature.name);
      spec.pooling = embedded[spec.source]->pooling();
      spec.columns = static_cast<int>(embedded[spec.source]->columns());
      continue;
    }
    const Sequence& sequence = resolved.sequence(feature.sequence);
    const int i = static_cast<int>(tables->features.size()) - 1 -
                  model.inputs.sequences[feature.sequence].first_feature;
    spec.sequence = feature.sequence;
    spec.source = sources.at(sequence.of(i));
    if (!sequence.then().empty()) spec.then = sources.at(sequence.then(i));
  }
}

// Its rows hold bytes, and no optimizer changes them. No feature's table can have this name.
TableLayout ScriptStateLayout(uint32_t id) {
  TableLayout layout;
  layout.id = TableId(id);
  layout.name = "script.state";
  layout.dim = kDenseBlockFloats;
  layout.optimizer.kind = OptimizerKind::kSgd;
  layout.role = TableRole::kDense;
  return layout;
}

// How a layer's weights, or its biases, begin: see LayerInitializer in proto/job.proto.
void SetInitializer(const DenseTensor& tensor, TableLayout* layout) {
  const bool is_bias = tensor.is_vector;
  const double sum = static_cast<double>(tensor.in) + tensor.out;
  double scale = 1.0 / std::sqrt(static_cast<double>(tensor.in));
  if (tensor.own_init.has_value()) {
    CHECK(ReadInitializer(*tensor.own_init, "", &layout->distribution, &layout->init_scale)
              .ok());  // LoadJob checked it
    return;
  }
  if (tensor.initializer.has_glorot_uniform()) {
    scale = is_bias ? 0 : std::sqrt(6.0 / sum);
    if (is_bias) layout->distribution = InitialDistribution::kConstant;
  } else if (tensor.initializer.has_reference()) {
    scale = is_bias ? std::sqrt(1.0 / tensor.out) : std::sqrt(2.0 / sum);
    layout->distribution = InitialDistribution::kNormal;
  }
  layout->init_scale = static_cast<float>(scale);
}

// Whole and half powers by multiplication and sqrt, which are exactly rounded everywhere.
double Power(double base, double exponent) {
  const double doubled = 2 * exponent;
  if (doubled != std::floor(doubled) || doubled > 64) return std::pow(base, exponent);
  double result = 1;
  for (int i = 0; i < static_cast<int>(exponent); ++i) result *= base;
  const bool has_half = exponent != std::floor(exponent);
  return has_half ? result * std::sqrt(base) : result;
}

// The most steps of a sample's lists.
int64_t MaxLength(const Job& resolved, const Sequence& sequence) {
  for (const Feature& feature : resolved.feature()) {
    if (feature.name() == sequence.of(0)) return feature.sequence().max_length();
  }
  return 0;
}

}  // namespace

std::vector<TableLayout> JobTables::AllLayouts() const {
  std::vector<TableLayout> layouts = sparse;
  for (const DenseTable& tensor : dense) layouts.push_back(tensor.layout);
  if (script_state.has_value()) layouts.push_back(*script_state);
  return layouts;
}

JobTables ResolveTables(const Job& resolved) {
  const ModelSpec model = DescribeModel(resolved);
  JobTables tables;
  AddSparse(resolved, model, &tables);
  const auto first_id = static_cast<uint32_t>(tables.sparse.size());
  tables.dense = DenseTablesOf(resolved, model, first_id);
  if (model.is_script) tables.script_state = ScriptStateLayout(first_id);
  return tables;
}

ModelInputs InputsOf(const Job& resolved) {
  std::map<std::string, int> dims;
  for (const Table& table : resolved.table()) {
    dims[table.name()] = static_cast<int>(table.settings().dim());
  }
  ModelInputs inputs;
  inputs.numeric = static_cast<int>(resolved.data().num_dense());
  for (const Feature& feature : resolved.feature()) {
    if (feature.has_numeric()) inputs.numeric_names.insert(feature.name());
  }
  std::map<std::string, std::string> tables;  // By feature.
  for (const Feature* feature : EmbeddedFeatures(resolved)) {
    tables[feature->name()] = feature->table();
    inputs.features.push_back({feature->name(), feature->table(), dims[feature->table()],
                               feature->has_sequence(), kSamples, IsBag(*feature)});
  }
  for (const Sequence& sequence : resolved.sequence()) {
    const auto number = static_cast<int>(inputs.sequences.size());
    const bool ends_with_sample = !sequence.then().empty();
    inputs.sequences.push_back({sequence.name(), inputs.num_vectors(), sequence.of_size(),
                                ends_with_sample,
                                MaxLength(resolved, sequence) + (ends_with_sample ? 1 : 0)});
    for (const std::string& list : sequence.of()) {
      inputs.features.push_back({absl::StrCat(sequence.name(), ".", list), tables[list],
                                 dims[tables[list]], /*is_sequence=*/true, number});
    }
  }
  inputs.default_dim = static_cast<int>(resolved.default_table().dim());
  return inputs;
}

ModelSpec DescribeModel(const Job& resolved) { return DescribeModel(resolved, InputsOf(resolved)); }

std::vector<DenseTable> DenseTablesOf(const Job& resolved, const ModelSpec& model,
                                      uint32_t first_id) {
  std::vector<DenseTable> tables;
  for (const DenseTensor& tensor : model.tensors) {
    DenseTable table;
    table.layout.id = TableId(first_id + static_cast<uint32_t>(tables.size()));
    table.layout.name = tensor.name;
    table.layout.dim = kDenseBlockFloats;
    table.layout.optimizer = Config(resolved.dense_optimizer());
    SetInitializer(tensor, &table.layout);
    table.layout.role = TableRole::kDense;
    table.rows = tensor.rows();
    table.cols = tensor.cols();
    table.is_vector = tensor.is_vector;
    tables.push_back(std::move(table));
  }
  return tables;
}

uint64_t DensePushBytes(const Job& resolved) {
  const ClusterMap cluster(NumServers(resolved.cluster()));
  const bool pushes_rows = HoldsDenseParameters(resolved);
  std::vector<uint64_t> bytes(cluster.num_servers());
  for (const DenseTable& tensor : ResolveTables(resolved).dense) {
    const uint64_t floats = kDenseBlockFloats + (pushes_rows ? tensor.layout.state_floats() : 0);
    const uint64_t block_bytes = sizeof(Key) + sizeof(uint32_t) + floats * sizeof(float);
    const uint64_t salt = TableSalt(tensor.layout.id);
    for (int64_t block = 0; block < tensor.num_blocks(); ++block) {
      const uint64_t hash = KeyHash(salt, static_cast<Key>(block));
      bytes[cluster.ServerOfHash(hash).value()] += block_bytes;
    }
  }
  return *std::max_element(bytes.begin(), bytes.end()) *
         (pushes_rows ? 1 : resolved.cluster().workers());
}

float LearningRateAt(const LearningRate& schedule, Step step) {
  const double base = schedule.base();
  const double warmup = static_cast<double>(schedule.warmup_steps());
  const double at = static_cast<double>(step.value());
  if (at < warmup) return static_cast<float>(base * (at + 1) / warmup);
  if (!schedule.has_decay()) return schedule.base();
  const PolynomialDecay& decay = schedule.decay();
  const double start = static_cast<double>(decay.start_step());
  if (at < start) return schedule.base();
  const double progress = std::min(1.0, (at - start) / static_cast<double>(decay.steps()));
  const double rate = base * Power(1 - progress, decay.power());
  return static_cast<float>(std::max<double>(decay.end(), rate));
}

uint32_t PrefetchSteps(const Cache& cache) {
  if (cache.has_prefetch_steps()) return cache.prefetch_steps();
  return std::min(kDefaultPrefetchSteps, std::max(1u, cache.window_steps()) - 1);
}

bool HasEmbeddedServer(const Cluster& cluster) { return cluster.servers() == 0; }

uint32_t NumServers(const Cluster& cluster) { return std::max(1u, cluster.servers()); }

bool ExchangesBlocks(const Job& resolved) {
  return resolved.cluster().workers() > 1 && resolved.train().staleness_steps() == 0;
}

bool HoldsDenseParameters(const Job& resolved) {
  return resolved.cluster().workers() == 1 || ExchangesBlocks(resolved);
}

TlsFiles TlsFilesOf(const Tls& tls, Role role) {
  if (!tls.directory().empty()) return TlsFilesIn(tls.directory(), role);
  return {tls.certificate(), tls.private_key(), tls.ca()};
}

bool WritesCheckpoints(const Job& resolved) {
  return resolved.has_checkpoint() && !resolved.checkpoint().none();
}

ConfigureRequest MakeConfigureRequest(const Job& resolved, const std::string& job_id,
                                      uint64_t generation, ServerIndex index) {
  ConfigureRequest request;
  request.set_protocol_version(wire::kProtocolVersion);
  request.set_job_id(job_id);
  request.set_generation(generation);
  request.set_server_index(index.value());
  request.set_num_servers(NumServers(resolved.cluster()));
  request.set_num_workers(resolved.cluster().workers());
  request.set_seed(resolved.seed());
  request.set_staleness_steps(resolved.train().staleness_steps());
  request.set_durability(resolved.cluster().durability());
  if (resolved.has_init()) *request.mutable_init() = resolved.init();
  if (WritesCheckpoints(resolved)) {
    const CheckpointPolicy& policy = resolved.checkpoint();
    request.set_checkpoint_directory(policy.directory());
    request.set_checkpoint_every_steps(policy.every_steps());
    request.set_checkpoint_full_every(policy.full_every());
  }
  for (const TableLayout& layout : ResolveTables(resolved).AllLayouts()) {
    *request.add_tables() = TableLayoutToProto(layout);
  }
  return request;
}

}  // namespace thermocline
