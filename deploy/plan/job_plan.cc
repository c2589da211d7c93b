#include "deploy/plan/job_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/checkpoint/row_key.h"
#include "common/checkpoint/rows_format.h"
#include "common/job/cache_layout.h"
#include "common/job/job_data.h"
#include "common/job/model_memory.h"
#include "common/job/resolved_job.h"
#include "common/math/table_memory.h"
#include "deploy/plan/feature_estimates.h"
#include "deploy/plan/hot_rows_plan.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// About the memory of a process that does nothing yet: program, libraries, threads, gRPC.
constexpr uint64_t kServerBytes = 40 << 20;
constexpr uint64_t kWorkerBytes = 45 << 20;
// What the driver takes for a process that uses a GPU: its context and the kernels; about.
constexpr uint64_t kGpuContextBytes = uint64_t{500} << 20;
// Host memory for a lookup in a batch that is planned ahead (docs/tables.md).
constexpr uint64_t kPlannedLookupBytes = 64;
// Batches between the reader and the end of their step, beside data.read_ahead_batches.
constexpr uint64_t kStepsHeld = 8;
// Batches of an evaluation in memory (worker/train/worker.cc).
constexpr double kEvaluationContexts = 4;
// Batches in the memory that a worker shares with its script: the script computes with one, another
// is ready, and the gradients of a third are taken.
constexpr double kScriptBatches = 3;
// Rows on their way to RocksDB, and of its index and filters a row there.
constexpr uint64_t kSpillBufferBytes = 128 << 20;
constexpr uint64_t kSpilledRowIndexBytes = 2;
// What a snapshot keeps of rows that change while it is written.
constexpr uint64_t kMinOldImages = 64 << 20;
constexpr uint64_t kOldImageShare = 8;

// The bytes of a pushed key with its lookup count and values, on the wire, while it waits and in
// the push log; and of a key that a worker asks for, with its row in the answer
// (proto/parameter_server.proto).
constexpr uint64_t PushedKeyBytes(uint64_t value_floats) { return 8 + 4 + 4 * value_floats; }
constexpr uint64_t PulledKeyBytes(uint64_t row_floats) { return 8 + 4 * row_floats; }

uint64_t SizeOf(const std::string& text) { return ParseByteSize(text).value_or(0); }

struct CheckpointSizes {
  uint64_t all_bytes = 0;             // of one with all rows
  double changed_bytes_per_step = 0;  // rows that a step changes, at most
  double steps = 0;                   // of the whole job; 0: not known
};

// The most that all checkpoints take that are there at a time. REQUIRES: job.has_checkpoint()
PlanPart CheckpointPart(const Job& job, const CheckpointSizes& sizes) {
  const CheckpointPolicy& policy = job.checkpoint();
  const bool keeps_best = job.evaluate().keep_best();
  if (policy.every_steps() == 0 && !keeps_best) return {"one checkpoint", sizes.all_bytes};
  // The files of one that has all rows stay as long as one that builds on it is kept. So there may
  // be a whole row of those, the newer ones that are kept, the one that is being written, and the
  // row up to the best.
  const uint64_t row = std::max(1u, policy.full_every());
  uint64_t sets = row + policy.keep() + (keeps_best ? row : 0);
  if (sizes.steps > 0 && policy.every_steps() > 0 && !keeps_best) {
    const double made = std::ceil(sizes.steps / static_cast<double>(policy.every_steps())) + 1;
    sets = static_cast<uint64_t>(std::min(static_cast<double>(sets), made));
  }
  const uint64_t whole = (sets + row - 1) / row;
  if (row == 1) {
    return {absl::StrCat(sets, " checkpoints of all rows, at most"), sets * sizes.all_bytes};
  }
  const double every = static_cast<double>(policy.every_steps());
  const double changed =
      every > 0 ? every * sizes.changed_bytes_per_step : static_cast<double>(sizes.all_bytes);
  const double increment = std::min(static_cast<double>(sizes.all_bytes), changed);
  return {
      absl::StrCat("files of ", sets, " checkpoints, ", whole, " of them with all rows, at most"),
      whole * sizes.all_bytes +
          static_cast<uint64_t>(static_cast<double>(sets - whole) * increment)};
}

class Planner {
 public:
  Planner(const Job& job, const PlanInputs& inputs, const Machine& machine)
      : job_(job),
        figures_(inputs.figures),
        tables_(ResolveTables(job)),
        features_(EmbeddedFeatures(job)),
        looked_up_(LookedUpOf(tables_, features_)),
        model_(DescribeModel(job)),
        servers_(NumServers(job.cluster())),
        workers_(job.cluster().workers()),
        on_device_(job.device() == Job::CUDA ||
                   (job.device() == Job::AUTO && !machine.gpus.empty())),
        held_out_share_(DescribeData(job.data()).split().last_share()) {
    if (inputs.samples_per_s > 0) {
      plan_.steps_per_s = inputs.samples_per_s / job.train().batch_size();
    }
  }

  absl::StatusOr<JobPlan> Run() {
    RETURN_IF_ERROR(CheckColumns());
    DoubtSeparators();
    AddTables();
    RETURN_IF_ERROR(AddKept());
    if (CountsHotRows(job_)) {
      hot_ = PlanHotRows(job_, tables_, plan_.tables, figures_, held_out_share_);
    }
    AddTraffic();
    AddServer();
    AddWorker();
    if (job_.has_worker()) {
      Add(&plan_.script, "worker.memory", static_cast<double>(SizeOf(job_.worker().memory())));
      plan_.memory_bytes += SumOf(plan_.script);
    }
    AddDisk();
    plan_.pack = hot_.pack;
    plan_.memory_bytes = std::max(plan_.memory_bytes, SumOf(plan_.pack));
    return std::move(plan_);
  }

 private:
  // Warns of lists that the job divides by another character than the figures.
  void DoubtSeparators() {
    for (const Feature* feature : features_) {
      const Json* const column = ColumnOf(*feature, figures_);
      const std::string& own = feature->categorical().separator();
      if (column == nullptr || own.empty() || !column->contains("separator")) continue;
      const auto found = column->at("separator").get<std::string>();
      if (found.empty() || found == own) continue;  // Parquet's lists have none.
      plan_.warnings.push_back(absl::StrCat(
          "'", found, "' divides the values of '", column->at("name").get<std::string>(),
          "' in the data, and the separator of feature '", feature->name(), "' is '", own,
          "': as it is, each list is one id; write categorical { separator: \"", found, "\" }"));
    }
  }

  // Whether the figures are of the columns that the job reads.
  absl::Status CheckColumns() const {
    if (figures_ == nullptr || IsNpy(job_.data())) return absl::OkStatus();
    for (const Feature* feature : EmbeddedFeatures(job_)) {
      if (feature->has_cross()) continue;
      const std::string& column = feature->column_size() > 0 ? feature->column(0) : feature->name();
      RETURN_IF_ERROR(CheckColumn(absl::StrCat("feature '", feature->name(), "'"), column));
    }
    const Data data = DescribeData(job_.data());
    for (const std::string& column : data.label().column()) {
      RETURN_IF_ERROR(CheckColumn("data.label.column", column));
    }
    return absl::OkStatus();
  }
  absl::Status CheckColumn(const std::string& who, const std::string& column) const {
    std::vector<std::string> names;
    for (const Json& of_log : figures_->at("columns")) {
      names.push_back(of_log.at("name").get<std::string>());
      if (names.back() == column) return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(who, " names the column '", column,
                                                   "', but the inspected data have none",
                                                   DidYouMean(column, names)));
  }

  static void Add(std::vector<PlanPart>* parts, std::string name, double bytes) {
    if (bytes > 0) parts->push_back({std::move(name), static_cast<uint64_t>(bytes)});
  }

  static void AddAll(const std::vector<PlanPart>& more, std::vector<PlanPart>* parts) {
    parts->insert(parts->end(), more.begin(), more.end());
  }

  void AddTables() {
    for (size_t t = 0; t < tables_.sparse.size(); ++t) {
      const TableLayout& layout = tables_.sparse[t];
      PlannedTable table;
      table.name = layout.name;
      table.dim = layout.dim;
      double rows = 0;
      bool is_known = true;
      for (const LookedUp& looked_up : looked_up_) {
        if (looked_up.table != static_cast<int>(t)) continue;
        const KnownRows known = RowsOf(*looked_up.feature, figures_, 1 - held_out_share_);
        is_known &= known.rows.has_value();
        rows += known.rows.value_or(0);
        table.rows_from = table.rows_from.empty() ? known.from : SharedRowsFrom();
      }
      const auto max_rows = static_cast<double>(layout.max_rows);
      if (max_rows > 0 && (!is_known || rows > max_rows)) {
        rows = max_rows;
        is_known = true;
        table.rows_from = "eviction.max_rows";
      }
      if (is_known) SetRows(layout, static_cast<uint64_t>(rows), &table);
      if (is_known && layout.min_count > 1) table.rows_from += "; min_count leaves fewer";
      if (job_.has_cache()) Place(t, &table);
      plan_.is_complete &= is_known;
      if (!is_known) table.rows_from = "not known";
      plan_.tables.push_back(std::move(table));
    }
    for (const DenseTable& tensor : tables_.dense) plan_.dense_parameters += tensor.num_floats();
  }

  // Where several features' rows are added up: those that they have in common count several times,
  // and nothing tells how many these are. A part of the data lacks others.
  const char* SharedRowsFrom() const {
    const bool is_part = figures_ != nullptr && !figures_->at("complete").get<bool>();
    return is_part ? "its features together, inspected in part" : "its features together, at most";
  }

  void Place(size_t t, PlannedTable* table) {
    table->placement = HoldsRows(tables_, t) ? "cached" : "remote";
    if (!HoldsRows(tables_, t) || tables_.PlacementOf(t) != TableSettings::DEVICE) return;
    table->placement = "device";
    const TableLayout& layout = tables_.sparse[t];
    table->device_bytes =
        table->rows.value_or(0) * DeviceRowFloats(layout.row_floats()) * sizeof(float);
  }

  // The rows of placement DEVICE, and what the workers' caches have for them.
  absl::Status AddKept() {
    const auto is_kept = [](const PlannedTable& table) { return table.placement == "device"; };
    if (std::none_of(plan_.tables.begin(), plan_.tables.end(), is_kept)) return absl::OkStatus();
    const CacheUse use = workers_ == 1 ? CacheUse::kOwned : CacheUse::kShared;
    const auto batch = static_cast<int64_t>((job_.train().batch_size() + workers_ - 1) / workers_);
    ASSIGN_OR_RETURN(const CacheLayout layout,
                     LayOutCache(tables_, batch, use, SizeOf(job_.cache().budget())));
    for (const CacheGroupLayout& group : layout.groups) {
      if (!group.keeps_rows) continue;
      PlannedSlab kept = {
          {}, 0, workers_ * static_cast<uint64_t>(group.capacity * group.row_bytes())};
      for (const int32_t t : group.tables) {
        kept.tables.push_back(plan_.tables[t].name);
        kept.bytes += plan_.tables[t].device_bytes;
      }
      plan_.kept.push_back(std::move(kept));
    }
    return absl::OkStatus();
  }

  void SetRows(const TableLayout& layout, uint64_t rows, PlannedTable* table) const {
    table->rows = rows;
    table->memory_bytes = TableMemoryBytes(layout, rows / servers_) * servers_;
    const uint64_t stored_bytes = kRowKeyBytes + RowValueBytes(layout.row_floats());
    table->checkpoint_bytes = rows * RowsFileRowBytes(layout.row_floats());
    if (layout.memory_budget_bytes == 0) return;
    TableLayout unbounded = layout;
    unbounded.memory_budget_bytes = 0;
    const double all = static_cast<double>(TableMemoryBytes(unbounded, rows / servers_));
    const double share = 1 - std::min(1.0, static_cast<double>(layout.memory_budget_bytes) / all);
    table->spilled_bytes =
        static_cast<uint64_t>(2 * share * static_cast<double>(rows * stored_bytes));
    table->memory_bytes +=
        static_cast<uint64_t>(share * static_cast<double>(rows * kSpilledRowIndexBytes));
  }

  // Adds the bytes of all workers' pulls and pushes in a step.
  void AddTraffic() {
    const double samples = std::ceil(double{1} * job_.train().batch_size() / workers_);
    double pulled = 0, pushed = 0;
    for (const LookedUp& looked_up : looked_up_) {
      const TableLayout& layout = tables_.sparse[looked_up.table];
      const double keys = DistinctIn(*looked_up.feature, figures_, samples);
      pulled += keys * static_cast<double>(PulledKeyBytes(layout.dim));
      pushed += keys * static_cast<double>(PushedKeyBytes(layout.dim));
      changed_bytes_per_step_ +=
          keys * static_cast<double>(workers_ * RowsFileRowBytes(layout.row_floats()));
    }
    plan_.pulled_bytes_per_step = static_cast<uint64_t>(pulled * workers_);
    plan_.pushed_bytes_per_step = static_cast<uint64_t>(pushed * workers_);
    if (ExchangesBlocks(job_)) AddLinks(samples);
    if (HoldsDenseParameters(job_)) return;
    uint64_t blocks = 0;
    for (const DenseTable& tensor : tables_.dense) blocks += tensor.num_blocks();
    plan_.pulled_bytes_per_step += workers_ * blocks * PulledKeyBytes(kDenseBlockFloats);
    plan_.pushed_bytes_per_step += workers_ * blocks * PushedKeyBytes(kDenseBlockFloats);
  }

  // The dense parameters go to their owners and back, as do held rows; the rest through servers.
  void AddLinks(double samples) {
    const StepTraffic step = TrafficOf(samples), held = TrafficOf(samples, /*held_only=*/true);
    const double to_others = static_cast<double>(workers_ - 1) / static_cast<double>(workers_);
    const double dense = 2 * to_others * static_cast<double>(DenseExchangeBytes());
    // Keys that are asked for; keys, lookup counts and gradients that are pushed.
    const auto through_servers = [](double keys, double floats) { return 20 * keys + 4 * floats; };
    const auto set = [&](double of_servers, double of_workers, LinkBytes* bytes) {
      const double each = static_cast<double>(workers_) / static_cast<double>(servers_);
      *bytes = {static_cast<uint64_t>(of_servers + of_workers),
                static_cast<uint64_t>(each * of_servers)};
    };
    set(through_servers(step.keys, step.floats), dense, &plan_.nothing_held);
    set(through_servers(step.keys - held.keys, step.floats - held.floats),
        to_others * (12 * held.keys + 8 * held.floats) + dense, &plan_.all_held);
  }

  uint64_t DenseExchangeBytes() const {
    uint64_t blocks = 0;
    for (const DenseTable& tensor : tables_.dense) blocks += tensor.num_blocks();
    return blocks * kDenseBlockFloats * sizeof(float);
  }

  void AddServer() {
    uint64_t rows_bytes = 0, dense_bytes = 0, spilled_bytes = 0;
    for (const PlannedTable& table : plan_.tables) {
      rows_bytes += table.memory_bytes / servers_;
      spilled_bytes += table.spilled_bytes / servers_;
    }
    for (const DenseTable& tensor : tables_.dense) {
      dense_bytes += TableMemoryBytes(tensor.layout, tensor.num_blocks() / servers_ + 1);
    }
    Add(&plan_.server, "rows and their index", rows_bytes);
    Add(&plan_.server, "dense parameters", dense_bytes);
    const uint64_t steps = 1 + job_.train().staleness_steps();
    const double pushes = static_cast<double>(steps * plan_.pushed_bytes_per_step / servers_);
    const double limit = 2.0 * static_cast<double>(SizeOf(job_.cluster().max_pending_size()));
    Add(&plan_.server, "pushes that wait", std::min(limit, pushes));
    if (HoldsDenseParameters(job_)) {
      Add(&plan_.server, "dense parameters that are written back", DensePushBytes(job_));
    }
    if (job_.checkpoint().every_steps() > 0 || job_.evaluate().keep_best()) {
      Add(&plan_.server, "old rows while a checkpoint is written, at most",
          std::min(rows_bytes, std::max(kMinOldImages, rows_bytes / kOldImageShare)));
    }
    // No more than go there; the files' blocks that a server holds count, too.
    Add(&plan_.server, "rows on their way to RocksDB", std::min(kSpillBufferBytes, spilled_bytes));
    if (!HasEmbeddedServer(job_.cluster())) Add(&plan_.server, "the program", kServerBytes);
    plan_.memory_bytes += servers_ * SumOf(plan_.server);
  }

  // What a worker's step of so many samples reads; held_only: of tables that a cache may hold.
  StepTraffic TrafficOf(double samples, bool held_only = false) const {
    StepTraffic step;
    step.samples = samples;
    int sequence = -1;  // The last one whose steps are counted.
    for (const FeatureSpec& spec : tables_.features) {
      if (held_only && !HoldsRows(tables_, spec.table_index)) continue;
      const double lookups = samples * LookupsOf(spec, features_, figures_);
      step.lookups += lookups;
      if (spec.sequence == -1 || spec.sequence == sequence) continue;
      sequence = spec.sequence;
      step.steps += lookups;
    }
    for (const LookedUp& looked_up : looked_up_) {
      if (held_only && !HoldsRows(tables_, looked_up.table)) continue;
      const double keys = DistinctIn(*looked_up.feature, figures_, samples);
      step.keys += keys;
      step.floats += keys * tables_.sparse[looked_up.table].dim;
    }
    return step;
  }

  // Held-out rows, where they are a share of the inspected ones.
  double HeldOutRows() const {
    if (figures_ == nullptr || held_out_share_ == 0) return INFINITY;
    return figures_->at("rows").get<double>() * held_out_share_;
  }

  std::vector<double> StepsOfSamples() const {
    return StepsOfSample(tables_, model_.inputs.sequences.size(), features_, figures_);
  }

  static BatchRoom RoomFor(const StepTraffic& training, const StepTraffic& evaluation) {
    return {static_cast<int64_t>(std::max(training.samples, evaluation.samples)),
            static_cast<int64_t>(training.samples)};
  }

  // Adds the parts of a worker's device that has memory of its own.
  void AddDevice(const StepTraffic& training, const StepTraffic& evaluation) {
    const ComputeOn gpu = ComputeOn::kGpu;
    Add(&plan_.device, "dense parameters",
        static_cast<double>(DenseParameterBytes(tables_.dense, gpu)));
    Add(&plan_.device, "activations",
        static_cast<double>(
            model_.ActivationBytes(RoomFor(training, evaluation), gpu, StepsOfSamples())));
    if (job_.has_cache()) {
      Add(&plan_.device, "cache", static_cast<double>(SizeOf(job_.cache().budget())));
      // A single worker updates the rows that it holds: their gradients stay there.
      if (workers_ == 1) Add(&plan_.device, "gradients of cached rows", 5.0 * training.floats);
    }
    if (job_.has_fae()) {
      AddAll(hot_.compute, &plan_.device);
      // Gradients come from all workers' samples, since every worker updates all of its copies.
      Add(&plan_.device, "gradients of hot rows", 5.0 * workers_ * training.floats);
    }
    const uint64_t kinds = job_.has_fae() ? 2 : 1;  // Hot and cold steps have theirs.
    const uint64_t transfers =
        kinds * StepsUnderWay(job_) * TransferBytes(job_, training, /*has_gradients=*/true) +
        kEvaluationStepsUnderWay * TransferBytes(job_, evaluation, /*has_gradients=*/false);
    Add(&plan_.device, "rows, gradients and indices of steps under way, at most",
        static_cast<double>(transfers));
    Add(&plan_.device, "scratch, and cuBLASLt's workspace",
        static_cast<double>(kDeviceScratchBytes + kGemmWorkspaceBytes));
    Add(&plan_.device, "the driver's context, about", kGpuContextBytes);
    plan_.device_bytes = SumOf(plan_.device);
    Add(&plan_.worker, "copy of the dense parameters",
        static_cast<double>(DenseParameterBytes(tables_.dense, gpu)));
    Add(&plan_.worker, "pinned, of steps under way", static_cast<double>(transfers));
    AddAll(hot_.pinned, &plan_.worker);
  }

  // Adds the parts of a model that the worker computes on the CPU.
  void AddModel(const BatchRoom& room) {
    Add(&plan_.worker, "dense parameters",
        static_cast<double>(DenseParameterBytes(tables_.dense, ComputeOn::kCpu)));
    Add(&plan_.worker, "activations",
        static_cast<double>(model_.ActivationBytes(room, ComputeOn::kCpu, StepsOfSamples())));
  }

  // Batches with their rows, and gradients on the way back, where a script computes the model.
  void AddShared(const StepTraffic& training, const StepTraffic& evaluation) {
    const auto bytes_of = [this](const StepTraffic& step, double row_copies) {
      return PlannedBytes(step, /*batches=*/1) + row_copies * sizeof(float) * step.floats;
    };
    Add(&plan_.worker, "batches and rows that it shares with the script, about",
        kScriptBatches * std::max(bytes_of(training, 2), bytes_of(evaluation, 1)));
  }

  void AddWorker() {
    const StepTraffic training =
        TrafficOf(std::ceil(double{1} * job_.train().batch_size() / workers_));
    const auto eval_batch = static_cast<double>(job_.train().eval_batch_size());
    if (on_device_) {
      AddDevice(training, TrafficOf(eval_batch));
    } else {
      if (model_.is_script) {
        AddShared(training, TrafficOf(eval_batch));
      } else {
        AddModel(RoomFor(training, TrafficOf(eval_batch)));
      }
      if (job_.has_cache()) {
        Add(&plan_.worker, "cache", static_cast<double>(SizeOf(job_.cache().budget())));
      }
      AddAll(hot_.compute, &plan_.worker);
    }
    AddAll(hot_.worker, &plan_.worker);
    const double ahead = static_cast<double>(job_.data().read_ahead_batches() + kStepsHeld) +
                         (job_.has_cache() ? job_.cache().window_steps() : 0);
    Add(&plan_.worker, "batches read and planned ahead",
        PlannedBytes(training, ahead) + static_cast<double>(kStepsHeld) * 8.0 * training.floats +
            RawBytes(ahead));
    const StepTraffic evaluation = TrafficOf(std::min(eval_batch, HeldOutRows()));
    const double held =
        std::min<double>(kEvaluationContexts, std::ceil(HeldOutRows() / std::max(1.0, eval_batch)));
    Add(&plan_.worker, "batches of an evaluation",
        PlannedBytes(evaluation, held) + held * 8.0 * evaluation.floats);
    if (ExchangesBlocks(job_)) AddExchange(training);
    Add(&plan_.worker, "the program", kWorkerBytes);
    plan_.memory_bytes += workers_ * SumOf(plan_.worker);
  }

  // Blocks to other workers and from them (worker/exchange): of two steps each, gradients and
  // weights of the dense parameters; with a cache also keys, of the window, and rows and gradients.
  void AddExchange(const StepTraffic& step) {
    const double dense = 8.0 * static_cast<double>(DenseExchangeBytes());
    Add(&plan_.worker, "dense parameters on their way between workers", dense);
    if (job_.has_fae()) {  // From every worker to every other.
      Add(&plan_.worker, "gradients of hot rows on their way between workers",
          2 * workers_ * (12 * step.keys + 4 * step.floats));
    }
    if (!job_.has_cache()) return;
    const double window = job_.cache().window_steps();
    Add(&plan_.worker, "cached rows on their way between workers, at most",
        2 * window * 12 * step.keys + 8 * 4 * step.floats);
  }

  // The bytes of batches with their plans.
  double PlannedBytes(const StepTraffic& step, double batches) const {
    const double sample_bytes =
        4.0 * static_cast<double>(job_.data().num_dense() + NumbersOfLabels(job_));
    return batches * (step.samples * sample_bytes + step.lookups * kPlannedLookupBytes);
  }

  // Text of global batches, and of the block that is shuffled.
  double RawBytes(double batches) const {
    if (figures_ == nullptr || IsNpy(job_.data())) return 0;
    double text = 0;
    for (const Json& column : figures_->at("columns")) {
      if (column.contains("text_bytes")) text += column.at("text_bytes").get<double>();
    }
    const double row = text / figures_->at("rows").get<double>();
    return row * (batches * job_.train().batch_size() + job_.data().shuffle().block_rows());
  }

  void AddDisk() {
    CheckpointSizes sizes = {0, changed_bytes_per_step_, figures_ == nullptr ? 0 : Steps()};
    uint64_t spilled = 0;
    for (const PlannedTable& table : plan_.tables) {
      sizes.all_bytes += table.checkpoint_bytes;
      spilled += table.spilled_bytes;
    }
    for (const DenseTable& tensor : tables_.dense) {
      const uint64_t bytes = tensor.num_blocks() * RowsFileRowBytes(tensor.layout.row_floats());
      sizes.all_bytes += bytes;
      sizes.changed_bytes_per_step += static_cast<double>(bytes);
    }
    if (WritesCheckpoints(job_)) plan_.disk.push_back(CheckpointPart(job_, sizes));
    if (job_.cluster().durability() != NONE) AddLog();
    AddAll(hot_.disk, &plan_.disk);
    Add(&plan_.disk, "rows in RocksDB, and as much again for a while", spilled);
    plan_.disk_bytes = SumOf(plan_.disk);
  }

  void AddLog() {
    if (WritesCheckpoints(job_)) {
      Add(&plan_.disk, "push logs (cluster.max_log_size)",
          static_cast<double>(servers_ * SizeOf(job_.cluster().max_log_size())));
    } else if (figures_ != nullptr) {
      Add(&plan_.disk, "push logs of the whole job: without checkpoints they grow",
          Steps() * static_cast<double>(plan_.pushed_bytes_per_step));
    }
  }

  // REQUIRES: there are figures.
  double Steps() const {
    return figures_->at("rows").get<double>() * job_.train().passes() / job_.train().batch_size();
  }

  const Job& job_;
  const Json* const figures_;
  const JobTables tables_;
  const std::vector<const Feature*> features_;  // The job's, that read tables.
  const std::vector<LookedUp> looked_up_;
  const ModelSpec model_;
  const uint64_t servers_, workers_;
  const bool on_device_;
  const double held_out_share_;  // In the inspected rows; 0: it is of other rows, or not known.
  HotRowsPlan hot_;              // Empty if the job counts no hot rows.
  double changed_bytes_per_step_ = 0;  // In a checkpoint; without dense parameters.
  JobPlan plan_;
};

}  // namespace

uint64_t SumOf(const std::vector<PlanPart>& parts) {
  uint64_t bytes = 0;
  for (const PlanPart& part : parts) bytes += part.bytes;
  return bytes;
}

absl::StatusOr<JobPlan> PlanJob(const Job& job, const PlanInputs& inputs, const Machine& machine) {
  return Planner(job, inputs, machine).Run();
}

}  // namespace thermocline
