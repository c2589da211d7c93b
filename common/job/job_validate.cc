#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/ids.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"
#include "common/job/resolved_job.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"
#include "common/model/step_rows.h"
#include "common/net/host_port.h"
#include "common/net/rpc.h"

namespace thermocline {
namespace {

// The optimizers that first-order weights have of their own, by the fields that name them.
std::vector<std::pair<std::string, const Optimizer*>> FirstOrderOptimizers(const Job& job) {
  std::vector<std::pair<std::string, const Optimizer*>> optimizers;
  if (job.wide_deep().has_wide_optimizer()) {
    optimizers.emplace_back("wide_deep.wide_optimizer", &job.wide_deep().wide_optimizer());
  }
  for (int i = 0; i < job.layer_size(); ++i) {
    const Layer::FirstOrder& layer = job.layer(i).first_order();
    if (!layer.has_optimizer()) continue;
    optimizers.emplace_back(absl::StrCat("layer[", i, "].first_order.optimizer"),
                            &layer.optimizer());
  }
  return optimizers;
}

// Limits: above them a value is a typo, not a wish.
constexpr uint64_t kMaxBatchSize = 1 << 24;
// A worker holds the batches that it has fetched ahead.
constexpr uint64_t kMaxStalenessSteps = 1024;
constexpr uint64_t kMaxSizeBytes = uint64_t{1} << 50;
// Far more steps than any data has, and exact as a double.
constexpr uint64_t kMaxSteps = 1'000'000'000'000;
// Servers count steps in 32 bits.
constexpr uint64_t kMaxUnusedSteps = (uint64_t{1} << 32) - 2;
// A worker numbers the bags of its batch with int32.
constexpr uint64_t kMaxBags = (uint64_t{1} << 31) - 1;
constexpr uint64_t kMaxProcesses = 1024;
constexpr uint64_t kMaxChannels = 64;
constexpr size_t kMaxNameLength = 128;
constexpr uint64_t kMaxTimeoutS = 24 * 3600;
constexpr uint64_t kMaxCheckpoints = 1'000'000;
// Less than a few pushes would make a checkpoint of every step.
constexpr uint64_t kMinLogBytes = 1 << 20;

// A worker holds the batches of its window.
constexpr uint64_t kMaxWindowSteps = 1024;
constexpr uint64_t kMaxChunks = 1 << 20;
constexpr uint64_t kMaxFalls = 1 << 20;

bool IsHostName(absl::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
  });
}

// Checks what keeps rows on devices: `cache`, `fae`, `calibration`, and tables' placements.
class DeviceRowsValidator {
 public:
  DeviceRowsValidator(const Job& job, const JobSource& source) : job_(job), source_(source) {}

  absl::Status Run() const {
    if (job_.has_cache()) RETURN_IF_ERROR(CheckCache());
    const ModelSpec model = DescribeModel(job_);
    for (int i = 0; i < job_.table_size(); ++i) RETURN_IF_ERROR(CheckPlacement(i, model));
    if (job_.has_fae()) RETURN_IF_ERROR(CheckFae());
    if (CountsHotRows(job_)) return CheckCalibration();
    if (!job_.has_calibration()) return absl::OkStatus();
    return source_.Error("calibration",
                         "is set, but the job has neither `fae` nor a cache with "
                         "policy: STATIC");
  }

 private:
  absl::Status CheckBudget(const std::string& path, const std::string& budget) const {
    if (budget.empty()) {
      return source_.Error(path, "is missing; write a size, such as \"256MiB\"",
                           path == "fae.budget" ? " (`thermocline calibrate` says what sizes are "
                                                  "worth)"
                                                : "");
    }
    if (EmbeddedFeatures(job_).empty()) {
      return source_.Error(path, "is set, but there are no categorical columns");
    }
    return CheckSize(source_, path, budget, kMinMemoryBudgetBytes);
  }

  absl::Status CheckCache() const {
    const Cache& cache = job_.cache();
    RETURN_IF_ERROR(CheckBudget("cache.budget", cache.budget()));
    RETURN_IF_ERROR(
        CheckRange(source_, "cache.window_steps", cache.window_steps(), 1, kMaxWindowSteps));
    if (cache.prefetch_steps() >= cache.window_steps()) {
      return source_.Error("cache.prefetch_steps", "is ", cache.prefetch_steps(),
                           "; it must be less than cache.window_steps, which is ",
                           cache.window_steps());
    }
    if (cache.policy() == Cache::STATIC && job_.cluster().workers() > 1) {
      return source_.Error("cache.policy",
                           "is STATIC, which is for one worker; "
                           "cluster.workers is ",
                           job_.cluster().workers());
    }
    return absl::OkStatus();
  }

  // The field that gives table `i` its placement.
  std::string PlacementPath(int i) const {
    const bool is_own =
        i < source_.job().table_size() && source_.job().table(i).settings().has_placement();
    return is_own ? absl::StrCat("table[", i, "].settings.placement") : "default_table.placement";
  }

  absl::Status CheckPlacement(int i, const ModelSpec& model) const {
    const TableSettings& settings = job_.table(i).settings();
    if (settings.placement() == TableSettings::CACHED) return absl::OkStatus();
    const auto refuse = [&](const auto&... why) {
      return source_.Error(PlacementPath(i), "is ",
                           TableSettings::Placement_Name(settings.placement()), why...);
    };
    if (!job_.has_cache()) return refuse(", but the job has no `cache`");
    if (job_.cache().policy() == Cache::STATIC) {
      return refuse("; where cache.policy is STATIC, that alone says which rows are held");
    }
    if (settings.placement() == TableSettings::REMOTE) return absl::OkStatus();
    const char* const why =
        ": its servers decide which keys have a row, so no worker can hold them";
    const std::string of_table = absl::StrCat(", but table '", job_.table(i).name(), "' has ");
    if (settings.min_count() > 1) {
      return refuse(of_table, "min_count ", settings.min_count(), why);
    }
    if (settings.has_eviction()) return refuse(of_table, "eviction", why);
    const auto first_order = model.first_order.find(job_.table(i).name());
    const bool clips_first_order =
        first_order != model.first_order.end() && first_order->second.optimizer.has_cow_clip();
    if (settings.optimizer().has_cow_clip() || clips_first_order) {
      return refuse(of_table,
                    "optimizer.cow_clip: servers alone count the lookups "
                    "that it needs, so no worker can hold its rows");
    }
    return absl::OkStatus();
  }

  absl::Status CheckFae() const {
    if (job_.has_cache()) {
      return source_.Error("fae", "is set, and `cache` as well; choose one");
    }
    RETURN_IF_ERROR(CheckBudget("fae.budget", job_.fae().budget()));
    if (job_.train().staleness_steps() > 0) {
      return source_.Error("train.staleness_steps", "is ", job_.train().staleness_steps(),
                           "; with `fae` it must be 0");
    }
    if (job_.data().has_shuffle()) {
      return source_.Error("data.shuffle",
                           "is set; with `fae` samples go into batches once, in the data's order");
    }
    for (int i = 0; i < job_.table_size(); ++i) {
      const TableSettings& settings = job_.table(i).settings();
      const std::string path = absl::StrCat("table[", i, "].settings.");
      const char* const why = "is set; with `fae` every key that is looked up has a row";
      if (settings.min_count() > 1) return source_.Error(path + "min_count", why);
      if (settings.has_eviction()) return source_.Error(path + "eviction", why);
      RETURN_IF_ERROR(RefuseCowClip(path + "optimizer", settings.optimizer()));
    }
    for (const auto& [path, optimizer] : FirstOrderOptimizers(job_)) {
      RETURN_IF_ERROR(RefuseCowClip(path, *optimizer));
    }
    return CheckSchedule();
  }

  absl::Status RefuseCowClip(const std::string& path, const Optimizer& optimizer) const {
    if (!optimizer.has_cow_clip()) return absl::OkStatus();
    return source_.Error(path + ".cow_clip",
                         "is set; with `fae` workers update hot rows, and servers alone count the "
                         "lookups that it needs");
  }

  absl::Status CheckSchedule() const {
    const Fae::Schedule& schedule = job_.fae().schedule();
    const std::string path = "fae.schedule.";
    RETURN_IF_ERROR(CheckPercent(path + "min_rate", schedule.min_rate()));
    RETURN_IF_ERROR(CheckPercent(path + "max_rate", schedule.max_rate()));
    RETURN_IF_ERROR(CheckPercent(path + "rate", schedule.rate()));
    if (!(schedule.min_rate() <= schedule.rate() && schedule.rate() <= schedule.max_rate())) {
      return source_.Error(path + "rate", "is ", schedule.rate(), "; it must be from min_rate, ",
                           schedule.min_rate(), ", to max_rate, ", schedule.max_rate());
    }
    RETURN_IF_ERROR(
        CheckRange(source_, path + "falls_to_double", schedule.falls_to_double(), 1, kMaxFalls));
    if (schedule.fixed()) return absl::OkStatus();
    return CheckHeldOut(job_, source_, "fae", "; or write fae.schedule.fixed: true");
  }

  absl::Status CheckPercent(const std::string& path, double percent) const {
    if (percent > 0 && percent <= 100) return absl::OkStatus();
    return source_.Error(path, "is ", percent, "; it must be in (0, 100]");
  }

  absl::Status CheckCalibration() const {
    const Calibration& calibration = job_.calibration();
    const double share = calibration.sample_share();
    if (!(share > 0 && share <= 1)) {
      return source_.Error("calibration.sample_share", "is ", share, "; it must be in (0, 1]");
    }
    if (!calibration.whole_table().empty() && calibration.whole_table() != "0") {
      RETURN_IF_ERROR(CheckSize(source_, "calibration.whole_table", calibration.whole_table(), 0));
    }
    RETURN_IF_ERROR(CheckRange(source_, "calibration.chunks", calibration.chunks(), 2, kMaxChunks));
    RETURN_IF_ERROR(
        CheckRange(source_, "calibration.chunk_rows", calibration.chunk_rows(), 1, kMaxChunks));
    const double confidence = calibration.confidence();
    if (confidence > 0 && confidence < 1) return absl::OkStatus();
    return source_.Error("calibration.confidence", "is ", confidence,
                         "; it must be between 0 and 1");
  }

  const Job& job_;
  const JobSource& source_;
};

class Validator {
 public:
  Validator(const Job& job, const JobSource& source) : job_(job), source_(source) {}

  absl::Status Run() const {
    RETURN_IF_ERROR(CheckName(source_, "name", job_.name()));
    RETURN_IF_ERROR(ValidateData(job_, source_));
    RETURN_IF_ERROR(CheckSettings("default_table", job_.default_table()));
    RETURN_IF_ERROR(ValidateFeatures(job_, source_));
    RETURN_IF_ERROR(CheckTables());
    RETURN_IF_ERROR(ValidateSequences(job_, source_));
    RETURN_IF_ERROR(CheckMinCounts());
    if (!job_.has_worker()) {
      RETURN_IF_ERROR(CheckOptimizer("dense_optimizer", job_.dense_optimizer(), CheckForDense));
      RETURN_IF_ERROR(CheckGlobalNorm());
    }
    for (const auto& [path, optimizer] : FirstOrderOptimizers(job_)) {
      RETURN_IF_ERROR(CheckOptimizer(path, *optimizer, CheckForRows));
    }
    RETURN_IF_ERROR(CheckFirstWeights());
    RETURN_IF_ERROR(CheckWrittenOnce());
    RETURN_IF_ERROR(CheckModelStanza());
    RETURN_IF_ERROR(CheckRowWidths());
    RETURN_IF_ERROR(CheckTrain());
    RETURN_IF_ERROR(CheckLearningRate());
    RETURN_IF_ERROR(CheckCluster());
    RETURN_IF_ERROR(CheckCheckpoint());
    RETURN_IF_ERROR(CheckEvaluate());
    RETURN_IF_ERROR(CheckScript());
    RETURN_IF_ERROR(CheckDevice());
    return CheckSecurity();
  }

 private:
  absl::Status Range(absl::string_view path, uint64_t value, uint64_t low, uint64_t high) const {
    return CheckRange(source_, path, value, low, high);
  }

  // check_use: CheckForRows or CheckForDense.
  absl::Status CheckOptimizer(const std::string& path, const Optimizer& optimizer,
                              absl::Status (*check_use)(const OptimizerConfig&)) const {
    const auto config = OptimizerFromProto(optimizer);
    const absl::Status status = config.ok() ? check_use(*config) : config.status();
    if (status.ok()) return absl::OkStatus();
    // The message begins with the value's name ("epsilon is -1; ..."): find where it was written.
    const std::string message(status.message());
    const std::string name = message.substr(0, message.find(' '));
    const auto* const type = Optimizer::descriptor();
    const auto* const kind = type->FindFieldByNumber(optimizer.kind_case());
    const bool is_of_kind =
        kind != nullptr && type->FindFieldByName(name.substr(0, name.find('.'))) == nullptr;
    const std::string field = absl::StrCat(path, ".", is_of_kind ? kind->name() + "." : "", name);
    return absl::InvalidArgumentError(
        absl::StrCat(source_.Locate(field), ": ", path, ": ", message));
  }

  // The norm is that of all dense gradients of one step, which one worker has.
  absl::Status CheckGlobalNorm() const {
    const float norm = job_.dense_optimizer().clip_global_norm();
    const auto refuse = [&](const char* needs, const char* field, uint32_t value) {
      return source_.Error("dense_optimizer.clip_global_norm", "is ", norm, "; it needs ", needs,
                           ", and ", field, " is ", value);
    };
    if (norm == 0) return absl::OkStatus();
    if (job_.cluster().workers() > 1) {
      return refuse("one worker", "cluster.workers", job_.cluster().workers());
    }
    if (job_.train().staleness_steps() == 0) return absl::OkStatus();
    return refuse("steps in sync", "train.staleness_steps", job_.train().staleness_steps());
  }

  // How first-order weights begin.
  absl::Status CheckFirstWeights() const {
    for (int i = 0; i < job_.layer_size(); ++i) {
      const Layer::FirstOrder& layer = job_.layer(i).first_order();
      if (!layer.has_initializer()) continue;
      RETURN_IF_ERROR(CheckInitializer(absl::StrCat("layer[", i, "].first_order.initializer"),
                                       layer.initializer()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckInitializer(const std::string& path, const Initializer& initializer) const {
    if (initializer.kind_case() == Initializer::KIND_NOT_SET) {
      return source_.Error(
          path, "is empty; it has uniform, normal, truncated_normal, constant or by_rows");
    }
    InitialDistribution distribution;
    float scale;
    const absl::Status read = ReadInitializer(initializer, "", &distribution, &scale);
    if (read.ok()) return read;
    // The message begins with the value's name: "normal.std is -1; ...".
    const auto [field, rest] = std::pair<std::string, std::string>(
        absl::StrSplit(read.message(), absl::MaxSplits(' ', 1)));
    return source_.Error(absl::StrCat(path, ".", field), rest);
  }

  absl::Status CheckInitializer(const std::string& path, const TableSettings& settings) const {
    if (settings.has_initializer() && settings.has_init_scale()) {
      return source_.Error(path + ".initializer", "is set, and ", path,
                           ".init_scale as well; choose one");
    }
    if (!settings.has_initializer()) {
      // Written so that NaN fails too.
      if (settings.init_scale() >= 0 && settings.init_scale() <= kMaxInitScale) {
        return absl::OkStatus();
      }
      return source_.Error(path + ".init_scale", "is ", settings.init_scale(),
                           "; it must be in [0, ", kMaxInitScale, "]");
    }
    return CheckInitializer(path + ".initializer", settings.initializer());
  }

  absl::Status CheckSettings(const std::string& path, const TableSettings& settings) const {
    RETURN_IF_ERROR(Range(path + ".dim", settings.dim(), 1, kMaxDim));
    RETURN_IF_ERROR(CheckInitializer(path, settings));
    if (settings.storage().has_rocksdb()) {
      RETURN_IF_ERROR(CheckSize(source_, path + ".storage.rocksdb.memory",
                                settings.storage().rocksdb().memory(), kMinMemoryBudgetBytes));
    }
    if (settings.has_eviction()) {
      RETURN_IF_ERROR(Range(path + ".eviction.unused_steps", settings.eviction().unused_steps(),
                            settings.eviction().max_rows() > 0 ? 0 : 1, kMaxUnusedSteps));
    }
    return CheckOptimizer(path + ".optimizer", settings.optimizer(), CheckForRows);
  }

  absl::Status CheckMinCounts() const {
    const std::vector<int> stanzas = FeatureStanzas(source_.job());
    for (int i = 0; i < job_.feature_size(); ++i) {
      const Feature& feature = job_.feature(i);
      const uint32_t count = feature.categorical().min_count();
      if (count == 0) continue;
      const auto table = std::find_if(job_.table().begin(), job_.table().end(),
                                      [&](const Table& t) { return t.name() == feature.table(); });
      if (table == job_.table().end() || table->settings().min_count() == count) continue;
      return source_.Error(absl::StrCat("feature[", stanzas[i], "].categorical.min_count"), "is ",
                           count, ", but table '", table->name(), "', which it reads, has ",
                           table->settings().min_count());
    }
    return absl::OkStatus();
  }

  absl::Status CheckTables() const {
    std::map<std::string, int> tables;
    std::vector<std::string> names;
    for (int i = 0; i < job_.table_size(); ++i) {
      const std::string path = absl::StrCat("table[", i, "]");
      RETURN_IF_ERROR(CheckName(source_, path + ".name", job_.table(i).name()));
      const auto [first, is_new] = tables.emplace(job_.table(i).name(), i);
      if (!is_new) {
        return source_.Error(path + ".name", "is '", job_.table(i).name(), "', as is table[",
                             first->second, "].name");
      }
      RETURN_IF_ERROR(CheckSettings(path + ".settings", job_.table(i).settings()));
      names.push_back(job_.table(i).name());
    }
    std::map<std::string, int> unread = tables;
    const std::vector<int> stanzas = FeatureStanzas(source_.job());
    for (int i = 0; i < job_.feature_size(); ++i) {
      if (IsNumeric(job_.feature(i))) continue;
      const std::string& table = job_.feature(i).table();
      unread.erase(table);
      if (tables.count(table) > 0) continue;
      return source_.Error(absl::StrCat("feature[", stanzas[i], "].table"), "is '", table,
                           "', but there is no such table", DidYouMean(table, names));
    }
    if (unread.empty()) return absl::OkStatus();
    return source_.Error(absl::StrCat("table[", unread.begin()->second, "].name"), "is '",
                         unread.begin()->first, "', but no feature reads this table");
  }

  // Precision and initializer may stand in `dlrm` as well: earlier versions had them there.
  absl::Status CheckWrittenOnce() const {
    const Job& written = source_.job();
    const Precision of_dlrm = written.dlrm().precision();
    if (of_dlrm != FLOAT32 && of_dlrm != job_.precision()) {
      return source_.Error("dlrm.precision", "is ", Precision_Name(of_dlrm), ", and precision is ",
                           Precision_Name(job_.precision()), "; write precision alone");
    }
    if (written.dlrm().has_initializer() &&
        written.dlrm().initializer().kind_case() != job_.initializer().kind_case()) {
      return source_.Error("dlrm.initializer",
                           "is set, and initializer is another; write initializer alone");
    }
    return absl::OkStatus();
  }

  // A vector's dim is in range, and its row has a first-order weight beside it.
  absl::Status CheckRowWidths() const {
    for (const TableLayout& layout : ResolveTables(job_).sparse) {
      if (layout.dim <= kMaxDim) continue;
      const auto table =
          std::find_if(job_.table().begin(), job_.table().end(),
                       [&](const Table& other) { return other.name() == layout.name; });
      return source_.Error(absl::StrCat("table[", table - job_.table().begin(), "].settings.dim"),
                           "is ", layout.dim - 1, "; with first-order weights it must be in [1, ",
                           kMaxDim - 1, "]");
    }
    return absl::OkStatus();
  }

  absl::Status CheckModelStanza() const {
    const std::optional<ModelError> error = CheckModel(job_, InputsOf(job_));
    return error.has_value() ? source_.Error(error->field, error->what) : absl::OkStatus();
  }

  // Samples of a batch that one worker can number: a bag for each feature and one more, and the
  // lookups of a table, as far as the job tells them (a list in text is as long as its line says,
  // and a sequence at most as long as the job does).
  uint64_t MaxSamplesOfWorker() const {
    std::map<int, uint64_t> columns, steps;  // By table, and by sequence.
    const std::vector<const Feature*> features = EmbeddedFeatures(job_);
    for (const FeatureSpec& spec : ResolveTables(job_).features) {
      const Feature& feature = *features[spec.source];
      const uint64_t lookups =
          uint64_t{spec.then >= 0} + std::max(feature.columns(), feature.sequence().max_length());
      columns[spec.table_index] += lookups;
      if (spec.sequence >= 0) steps[spec.sequence] = lookups;
    }
    uint64_t most = 1;
    for (const auto& [table, count] : columns) most = std::max(most, count);
    uint64_t bags = features.size() + 1;  // A script's batches have no others.
    uint64_t rows = 0, padding = 0;       // For steps, of all sequences.
    for (const PooledFeatures& pooled : DescribeModel(job_).graph.pooled) {
      const uint64_t vectors = pooled.leading + pooled.features.size();
      if (pooled.sequence == kSamples) {
        bags = std::max(bags, vectors);
      } else {
        rows += steps[pooled.sequence] * vectors;
        padding += kStepRows * vectors;
      }
    }
    if (rows > 0) rows += 1 + rows / kStepShare;
    return std::min((kMaxBags - std::min(kMaxBags, padding)) / (bags + rows),
                    uint64_t{kMaxTableLookups} / most);
  }

  // `samples` is the share of the batch at `path` that one worker computes.
  absl::Status CheckBatch(absl::string_view path, uint64_t batch, uint64_t samples) const {
    RETURN_IF_ERROR(Range(path, batch, 1, kMaxBatchSize));
    const uint64_t most = MaxSamplesOfWorker();
    if (samples <= most) return absl::OkStatus();
    return source_.Error(
        path, "is ", batch, ", which gives a worker batches of ", samples, " samples; with ",
        EmbeddedFeatures(job_).size(), " features of ", job_.data().num_categorical(),
        " columns it takes at most ", most,
        job_.sequence().empty() ? "" : ", where each list of a sequence has its max_length");
  }

  absl::Status CheckTrain() const {
    const Train& train = job_.train();
    // Workers are counted by CheckCluster.
    const uint64_t workers = std::max(1u, job_.cluster().workers());
    RETURN_IF_ERROR(CheckBatch("train.batch_size", train.batch_size(),
                               (train.batch_size() + workers - 1) / workers));
    if (train.batch_size() < job_.cluster().workers()) {
      return source_.Error("train.batch_size", "is ", train.batch_size(),
                           ", less than cluster.workers (", job_.cluster().workers(), ")");
    }
    RETURN_IF_ERROR(Range("train.passes", train.passes(), 1, UINT32_MAX));
    RETURN_IF_ERROR(Range("train.max_steps", train.max_steps(), 0, kMaxSteps));
    RETURN_IF_ERROR(Range("train.staleness_steps", train.staleness_steps(), 0, kMaxStalenessSteps));
    RETURN_IF_ERROR(Range("train.metrics_every_steps", train.metrics_every_steps(), 1, UINT32_MAX));
    // One worker evaluates alone.
    return CheckBatch("train.eval_batch_size", train.eval_batch_size(), train.eval_batch_size());
  }

  absl::Status CheckLearningRate() const {
    const LearningRate& rate = job_.train().learning_rate();
    const std::string path = "train.learning_rate";
    if (!(rate.base() > 0 && std::isfinite(rate.base()))) {
      return source_.Error(path + ".base", "is ", rate.base(), "; it must be finite and above 0");
    }
    RETURN_IF_ERROR(Range(path + ".warmup_steps", rate.warmup_steps(), 0, kMaxSteps));
    if (!rate.has_decay()) return absl::OkStatus();
    const PolynomialDecay& decay = rate.decay();
    RETURN_IF_ERROR(Range(path + ".decay.steps", decay.steps(), 1, kMaxSteps));
    RETURN_IF_ERROR(Range(path + ".decay.start_step", decay.start_step(), 0, kMaxSteps));
    if (decay.start_step() < rate.warmup_steps()) {
      return source_.Error(path + ".decay.start_step", "is ", decay.start_step(), ", within the ",
                           rate.warmup_steps(), " steps of the warm-up");
    }
    if (!(decay.power() > 0 && std::isfinite(decay.power()))) {
      return source_.Error(path + ".decay.power", "is ", decay.power(),
                           "; it must be finite and above 0");
    }
    if (!(decay.end() >= 0 && decay.end() <= rate.base())) {
      return source_.Error(path + ".decay.end", "is ", decay.end(), "; it must be in [0, base]");
    }
    return absl::OkStatus();
  }

  absl::Status CheckCluster() const {
    const Cluster& cluster = job_.cluster();
    RETURN_IF_ERROR(Range("cluster.servers", cluster.servers(), 0, kMaxProcesses));
    RETURN_IF_ERROR(Range("cluster.workers", cluster.workers(), 1, kMaxProcesses));
    if (HasEmbeddedServer(cluster)) RETURN_IF_ERROR(CheckEmbeddedServer(cluster));
    RETURN_IF_ERROR(Range("cluster.worker_threads", cluster.worker_threads(), 1, kMaxThreads));
    RETURN_IF_ERROR(Range("cluster.server_threads", cluster.server_threads(), 1, kMaxThreads));
    RETURN_IF_ERROR(Range("cluster.max_message_bytes", cluster.max_message_bytes(),
                          kMinMessageBytes, kMaxMessageBytes));
    RETURN_IF_ERROR(
        Range("cluster.channels_per_server", cluster.channels_per_server(), 1, kMaxChannels));
    RETURN_IF_ERROR(
        Range("cluster.startup_timeout_s", cluster.startup_timeout_s(), 1, kMaxTimeoutS));
    RETURN_IF_ERROR(Range("cluster.rpc_timeout_s", cluster.rpc_timeout_s(), 1, kMaxTimeoutS));
    RETURN_IF_ERROR(Range("cluster.stall_timeout_s", cluster.stall_timeout_s(), 0, kMaxTimeoutS));
    RETURN_IF_ERROR(CheckHostTimeouts(cluster));
    RETURN_IF_ERROR(Range("cluster.handler_threads", cluster.handler_threads(), kMinHandlerThreads,
                          kMaxThreads));
    RETURN_IF_ERROR(Range("cluster.max_held_pulls", cluster.max_held_pulls(), 1, kMaxHeldPulls));
    RETURN_IF_ERROR(CheckSize(source_, "cluster.max_pending_size", cluster.max_pending_size(),
                              kMinPendingBytes));
    return CheckSize(source_, "cluster.max_log_size", cluster.max_log_size(), kMinLogBytes);
  }

  // The worker's process has the server, too.
  absl::Status CheckEmbeddedServer(const Cluster& cluster) const {
    if (cluster.workers() > 1) {
      return source_.Error("cluster.workers", "is ", cluster.workers(),
                           "; with cluster.servers: 0 the only worker holds the rows");
    }
    if (cluster.durability() == NONE) return absl::OkStatus();
    return source_.Error("cluster.durability", "is ", Durability_Name(cluster.durability()),
                         "; with cluster.servers: 0 the rows die with the worker, and "
                         "a push log would save nothing; checkpoints do");
  }

  absl::Status CheckHostTimeouts(const Cluster& cluster) const {
    RETURN_IF_ERROR(Range("cluster.host_wait_s", cluster.host_wait_s(), 1, kMaxTimeoutS));
    RETURN_IF_ERROR(Range("cluster.host_timeout_s", cluster.host_timeout_s(), 2, kMaxTimeoutS));
    // A host's processes end before the host is taken for lost.
    return Range("cluster.node_lease_s", cluster.node_lease_s(), 1, cluster.host_timeout_s() - 1);
  }

  absl::Status CheckCheckpoint() const {
    if (!WritesCheckpoints(job_)) return absl::OkStatus();
    const CheckpointPolicy& policy = job_.checkpoint();
    RETURN_IF_ERROR(Range("checkpoint.every_steps", policy.every_steps(), 0, kMaxSteps));
    RETURN_IF_ERROR(Range("checkpoint.keep", policy.keep(), 1, kMaxCheckpoints));
    return Range("checkpoint.full_every", policy.full_every(), 1, kMaxCheckpoints);
  }

  absl::Status CheckEvaluate() const {
    if (!job_.has_evaluate()) return absl::OkStatus();
    const Evaluate& policy = job_.evaluate();
    if (policy.every_steps() == 0 && policy.every_passes() == 0) {
      return source_.Error("evaluate", "says neither every_steps nor every_passes; set one");
    }
    if (policy.every_steps() > 0 && policy.every_passes() > 0) {
      return source_.Error("evaluate.every_passes",
                           "is set, and evaluate.every_steps as well; "
                           "choose one");
    }
    RETURN_IF_ERROR(Range("evaluate.every_steps", policy.every_steps(), 0, kMaxSteps));
    if (!policy.task().empty()) {
      std::vector<std::string> labels;
      for (const TaskSpec& task : DescribeModel(job_).tasks) labels.push_back(task.label);
      if (std::find(labels.begin(), labels.end(), policy.task()) == labels.end()) {
        return source_.Error("evaluate.task", "is '", policy.task(), "', which no task learns",
                             DidYouMean(policy.task(), labels));
      }
    }
    if (policy.keep_best() && !WritesCheckpoints(job_)) {
      return source_.Error("evaluate.keep_best", "needs checkpoints; checkpoint.none is true");
    }
    return absl::OkStatus();
  }

  absl::Status CheckScript() const {
    const Evaluate& evaluate = job_.evaluate();
    if (evaluate.minimize() && evaluate.own_metric().empty()) {
      return source_.Error("evaluate.minimize", "is set; it goes with evaluate.own_metric");
    }
    if (!evaluate.own_metric().empty()) {
      RETURN_IF_ERROR(CheckName(source_, "evaluate.own_metric", evaluate.own_metric()));
      if (!job_.has_worker()) {
        return source_.Error("evaluate.own_metric",
                             "is set; only a script (`worker`) has metrics of its own");
      }
    }
    if (!job_.has_worker()) return absl::OkStatus();
    const Script& script = job_.worker();
    RETURN_IF_ERROR(CheckSize(source_, "worker.memory", script.memory(), /*low_bytes=*/1));
    if (script.has_threads()) {
      RETURN_IF_ERROR(Range("worker.threads", script.threads(), 1, kMaxThreads));
    }
    if (job_.has_dense_optimizer()) {
      return source_.Error("dense_optimizer", "is set; a script (`worker`) has its own optimizer");
    }
    if (job_.cluster().workers() > 1) {
      return source_.Error("cluster.workers", "is ", job_.cluster().workers(),
                           "; with a script (`worker`) it must be 1");
    }
    if (job_.has_fae()) {
      return source_.Error("fae", "is set; a script (`worker`) has no hot and cold batches");
    }
    if (job_.device() == Job::CUDA) {
      return source_.Error("device",
                           "is CUDA; the worker of a script (`worker`) keeps its rows in the "
                           "host's memory, and the script computes where it wants to");
    }
    return absl::OkStatus();
  }

  absl::Status CheckDevice() const {
    if (job_.device() == Job::CPU && job_.precision() == TF32) {
      const bool is_of_dlrm = source_.job().precision() == FLOAT32;
      return source_.Error(is_of_dlrm ? "dlrm.precision" : "precision",
                           "is TF32; device CPU knows FLOAT32 and BFLOAT16");
    }
    return DeviceRowsValidator(job_, source_).Run();
  }

  absl::Status CheckHttp() const {
    const Http& http = job_.cluster().http();
    if (!job_.cluster().has_http()) return absl::OkStatus();
    const auto address = ParseHostPort(http.address(), "to serve the job's page at");
    if (!address.ok()) {
      return source_.Error("cluster.http.address", "is '", http.address(),
                           "'; host:port is an address: 127.0.0.1:0 takes a free "
                           "port");
    }
    for (const std::string& name : http.allowed_host()) {
      if (!name.empty() && (IpAddress(WithoutBrackets(name)).has_value() || IsHostName(name))) {
        continue;
      }
      return source_.Error("cluster.http.allowed_host", "is '", name,
                           "'; a name without a port is");
    }
    const Tls& tls = job_.cluster().tls();
    const bool has_tls = tls.automatic() || !tls.directory().empty() || !tls.certificate().empty();
    if (IsLoopbackHost(address->host) || has_tls || http.insecure()) return absl::OkStatus();
    return source_.Error(
        "cluster.http.address", "is ", http.address(),
        ", beyond loopback: who sees the requests sees the token; give cluster.tls "
        "(--set cluster.tls.automatic=true makes certificates), or set "
        "cluster.http.insecure to send everything in plain text");
  }

  absl::Status CheckSecurity() const {
    RETURN_IF_ERROR(CheckHttp());
    const Cluster& cluster = job_.cluster();
    const Tls& tls = cluster.tls();
    const bool any = !tls.certificate().empty() || !tls.private_key().empty() || !tls.ca().empty();
    if (tls.automatic() || !tls.directory().empty()) {
      const char* const why = "has files and also automatic or directory; choose one";
      return any ? source_.Error("cluster.tls", why) : absl::OkStatus();
    }
    if (any) {
      const std::vector<std::pair<std::string, std::string>> files = {
          {"certificate", tls.certificate()}, {"private_key", tls.private_key()}, {"ca", tls.ca()}};
      for (const auto& [name, file] : files) {
        if (!file.empty()) continue;
        return source_.Error("cluster.tls." + name,
                             "is empty; TLS needs certificate, private_key and ca");
      }
      return absl::OkStatus();
    }
    if (IsLoopbackHost(cluster.listen_host()) || cluster.insecure()) return absl::OkStatus();
    return source_.Error("cluster.listen_host", "is ", cluster.listen_host(),
                         ", beyond loopback; give cluster.tls, or set cluster.insecure "
                         "to send everything in plain text");
  }

  const Job& job_;
  const JobSource& source_;
};

}  // namespace

absl::Status CheckRange(const JobSource& source, absl::string_view path, uint64_t value,
                        uint64_t low, uint64_t high) {
  if (value < low) {
    return source.Error(path, "is ", value, "; it must be at least ", low);
  }
  if (value > high) {
    return source.Error(path, "is ", value, "; it must be at most ", high);
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const JobSource& source, absl::string_view path, absl::string_view text,
                       uint64_t low_bytes) {
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (!bytes.ok()) {
    return source.Error(path, "is '", text, "'; ", bytes.status().message());
  }
  return CheckRange(source, path, *bytes, low_bytes, kMaxSizeBytes);
}

absl::Status CheckName(const JobSource& source, absl::string_view path, absl::string_view name) {
  if (name.empty()) return source.Error(path, "is empty; it needs a name");
  if (name.size() > kMaxNameLength) {
    return source.Error(path, "is longer than ", kMaxNameLength, " letters");
  }
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '-') {
      return source.Error(path, "is '", name, "'; letters, digits, '_' and '-' are allowed");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHeldOut(const Job& resolved, const JobSource& source, const std::string& path,
                          const char* or_else) {
  const Data data = DescribeData(resolved.data());
  if (IsNpy(data) || data.has_test() || data.split().last_share() > 0 ||
      !data.split().column().empty()) {
    return absl::OkStatus();
  }
  return source.Error(path,
                      resolved.data().has_train()
                          ? "needs held-out rows: set data.test, or data.split"
                          : "needs held-out rows: set data.test_path, or data.test_share above 0",
                      or_else);
}

absl::Status ValidateJob(const Job& resolved, const JobSource& source) {
  return Validator(resolved, source).Run();
}

}  // namespace thermocline
