#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/thread_pool.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"
#include "common/job/resolved_job.h"
#include "common/math/sparse_optimizer.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

using google::protobuf::RepeatedPtrField;

constexpr uint32_t kDefaultDim = 16;
constexpr float kDefaultInitScale = 0.01f;
constexpr uint32_t kDefaultWindowSteps = 8;
// Criteo's columns.
constexpr uint32_t kDefaultIntegers = 13;
constexpr uint32_t kDefaultCategories = 26;
constexpr double kDefaultShare = 0.1;

// Sets `field` of `message` where the user left it out. For proto3 `optional` fields.
#define SET_DEFAULT(message, field, value)                        \
  do {                                                            \
    if (!(message)->has_##field()) (message)->set_##field(value); \
  } while (false)

// An optimizer without a kind takes that of `fallback`, and what it does not set itself.
void ResolveOptimizer(const Optimizer& fallback, Optimizer* optimizer) {
  if (optimizer->kind_case() == Optimizer::KIND_NOT_SET) {
    const Optimizer own = *optimizer;
    *optimizer = fallback;
    optimizer->MergeFrom(own);
  }
  // Values out of range are left for ValidateJob.
  const auto config = OptimizerFromProto(*optimizer);
  if (config.ok()) *optimizer = OptimizerToProto(*config);
}

// A table that says nothing begins as `fallback`. One of both is set then, unless the user set
// both.
void ResolveInitializer(const TableSettings& fallback, TableSettings* settings) {
  if (settings->initializer().kind_case() != Initializer::KIND_NOT_SET) return;
  settings->clear_initializer();
  if (settings->has_init_scale()) return;
  if (fallback.has_initializer()) {
    *settings->mutable_initializer() = fallback.initializer();
  } else {
    settings->set_init_scale(fallback.init_scale());
  }
}

void ResolveDefaultTable(TableSettings* settings) {
  if (settings->dim() == 0) settings->set_dim(kDefaultDim);
  TableSettings uniform;
  uniform.set_init_scale(kDefaultInitScale);
  ResolveInitializer(uniform, settings);
  Optimizer adagrad;
  adagrad.mutable_adagrad();
  ResolveOptimizer(adagrad, settings->mutable_optimizer());
  if (settings->storage().tier_case() == Storage::TIER_NOT_SET) {
    settings->mutable_storage()->mutable_memory();
  }
}

void ResolveSettings(const TableSettings& fallback, TableSettings* settings) {
  if (settings->dim() == 0) settings->set_dim(fallback.dim());
  ResolveInitializer(fallback, settings);
  ResolveOptimizer(fallback.optimizer(), settings->mutable_optimizer());
  if (settings->storage().tier_case() == Storage::TIER_NOT_SET) {
    *settings->mutable_storage() = fallback.storage();
  }
  if (settings->min_count() == 0) settings->set_min_count(fallback.min_count());
  if (!settings->has_eviction() && fallback.has_eviction()) {
    *settings->mutable_eviction() = fallback.eviction();
  }
  if (!settings->has_placement() && fallback.has_placement()) {
    settings->set_placement(fallback.placement());
  }
}

// min_count by table, as features set it. ValidateJob refuses features of one table that differ.
std::map<std::string, uint32_t> MinCountsOfFeatures(const Job& job) {
  std::map<std::string, uint32_t> counts;
  for (const Feature* feature : EmbeddedFeatures(job)) {
    const uint32_t count = feature->categorical().min_count();
    if (count > 0) counts.emplace(feature->table(), count);
  }
  return counts;
}

void ResolveTables(Job* job) {
  ResolveDefaultTable(job->mutable_default_table());
  const std::map<std::string, uint32_t> min_counts = MinCountsOfFeatures(*job);
  const auto set_min_count = [&min_counts](Table* table) {
    const auto count = min_counts.find(table->name());
    if (count != min_counts.end()) table->mutable_settings()->set_min_count(count->second);
  };
  std::set<std::string> names;
  for (Table& table : *job->mutable_table()) {
    names.insert(table.name());
    if (table.settings().min_count() == 0) set_min_count(&table);
    ResolveSettings(job->default_table(), table.mutable_settings());
  }
  // A table under a feature's own name needs no stanza; any other name must be defined.
  for (const Feature* feature : EmbeddedFeatures(*job)) {
    if (feature->table() != feature->name() || !names.insert(feature->table()).second) continue;
    Table* table = job->add_table();
    table->set_name(feature->table());
    *table->mutable_settings() = job->default_table();
    set_min_count(table);
  }
}

void ResolveScript(Job* job) {
  if (!job->has_worker()) return;
  Script* const script = job->mutable_worker();
  if (script->memory().empty()) script->set_memory("2GiB");
  if (job->device() == Job::AUTO) job->set_device(Job::CPU);
}

void ResolveTrain(Train* train) {
  SET_DEFAULT(train, passes, 1);
  SET_DEFAULT(train, metrics_every_steps, 20);
  SET_DEFAULT(train, eval_batch_size, 4096);
  if (train->learning_rate().has_decay()) {
    SET_DEFAULT(train->mutable_learning_rate()->mutable_decay(), power, 2);
  }
}

void ResolveCluster(Cluster* cluster) {
  SET_DEFAULT(cluster, servers, 1);
  SET_DEFAULT(cluster, workers, 1);
  SET_DEFAULT(cluster, worker_threads, static_cast<uint32_t>(HardwareThreads()));
  SET_DEFAULT(cluster, server_threads, 1);
  SET_DEFAULT(cluster, max_message_bytes, 4u << 20);
  SET_DEFAULT(cluster, channels_per_server, 2);
  SET_DEFAULT(cluster, startup_timeout_s, 30);
  SET_DEFAULT(cluster, rpc_timeout_s, 20);
  SET_DEFAULT(cluster, stall_timeout_s, 600);
  SET_DEFAULT(cluster, max_server_restarts, 10);
  SET_DEFAULT(cluster, handler_threads, 2);
  SET_DEFAULT(cluster, max_held_pulls, 4096);
  SET_DEFAULT(cluster, node_lease_s, 20);
  SET_DEFAULT(cluster, host_timeout_s, 30);
  SET_DEFAULT(cluster, host_wait_s, 300);
  if (cluster->max_log_size().empty()) cluster->set_max_log_size("8GiB");
  if (cluster->max_pending_size().empty()) cluster->set_max_pending_size("4GiB");
  if (cluster->listen_host().empty()) cluster->set_listen_host("127.0.0.1");
}

void ResolveCheckpoint(Job* job) {
  // Without a word of the user, a loss does not start hours of training over.
  if (!job->has_checkpoint()) job->mutable_checkpoint()->set_max_rollbacks(0);
  CheckpointPolicy* const policy = job->mutable_checkpoint();
  if (policy->none()) return;
  SET_DEFAULT(policy, at_end, true);
  SET_DEFAULT(policy, keep, 3);
  SET_DEFAULT(policy, full_every, 8);
  SET_DEFAULT(policy, max_rollbacks, 10);
}

// Data and features
// ------------------------------------------------------------------------------------------------

bool IsCriteo(const Data& data) {
  return data.has_train() ? data.train().has_criteo_tsv() : data.format() == Data::CRITEO_TSV;
}

void ResolveFormat(Data::Files* files) {
  if (files->has_csv()) {
    SET_DEFAULT(files->mutable_csv(), separator, ",");
    SET_DEFAULT(files->mutable_csv(), quotes, true);
  } else if (files->has_criteo_tsv()) {
    SET_DEFAULT(files->mutable_criteo_tsv(), integers, kDefaultIntegers);
    SET_DEFAULT(files->mutable_criteo_tsv(), categories, kDefaultCategories);
  }
}

void ResolveLongForm(Data* data) {
  // Fields of the short form, which --data and --set write.
  if (!data->path().empty()) {
    data->mutable_train()->clear_path();
    data->mutable_train()->add_path(data->path());
    data->clear_path();
  }
  if (!data->test_path().empty()) {
    data->mutable_test()->clear_path();
    data->mutable_test()->add_path(data->test_path());
    data->clear_test_path();
  }
  if (data->has_test_share()) {
    data->mutable_split()->set_last_share(data->test_share());
    data->clear_test_share();
  }
  ResolveFormat(data->mutable_train());
  if (data->has_test() && data->test().format_case() == Data::Files::FORMAT_NOT_SET) {
    Data::Files test = data->train();
    test.mutable_path()->Swap(data->mutable_test()->mutable_path());
    data->mutable_test()->Swap(&test);
  }
  if (data->has_test()) {
    ResolveFormat(data->mutable_test());
  } else {
    SET_DEFAULT(data->mutable_split(), last_share,
                !data->train().has_npy() && data->split().column().empty() ? kDefaultShare : 0);
  }
  if (data->train().has_criteo_tsv() && data->label().column().empty()) {
    data->mutable_label()->add_column("label");
  }
}

void ResolveShortForm(Data* data) {
  // The npy convention has its own files of held-out rows; a share of the others is held out on
  // request only.
  const bool has_test_rows = !data->test_path().empty() || data->format() == Data::DLRM_NPY;
  SET_DEFAULT(data, test_share, has_test_rows ? 0 : kDefaultShare);
}

// The features of one stanza: one for each of its columns.
std::vector<Feature> ExpandStanza(const Feature& stanza) {
  const std::vector<std::string> columns = ExpandColumns(stanza.column());
  if (columns.size() < 2) return {stanza};
  std::vector<Feature> features(columns.size(), stanza);
  for (size_t i = 0; i < columns.size(); ++i) {
    features[i].set_name(columns[i]);
    features[i].clear_column();
    features[i].add_column(columns[i]);
  }
  return features;
}

void ResolveCategorical(bool is_criteo, Feature* feature) {
  Feature::Categorical* categorical = feature->mutable_categorical();
  const bool is_sequence = feature->has_sequence();
  if (categorical->boundaries().empty() &&
      categorical->id() == Feature::Categorical::ID_UNSPECIFIED) {
    categorical->set_id(is_criteo ? Feature::Categorical::HEX : Feature::Categorical::STRING);
  }
  if (categorical->missing() == Feature::Categorical::MISSING_UNSPECIFIED) {
    categorical->set_missing(is_sequence ? Feature::Categorical::NO_KEY
                                         : Feature::Categorical::OWN_KEY);
  }
  SET_DEFAULT(categorical, separator, is_criteo ? "," : is_sequence ? "|" : "");
}

// `*unnamed`: how many features of the short form have taken their column by their place.
void ResolveFeature(const Data& data, uint32_t* unnamed, Feature* feature) {
  if (feature->name().empty() && feature->column_size() == 1) feature->set_name(feature->column(0));
  const bool is_text = !IsNpy(data);
  if (is_text && feature->column().empty() && !feature->has_cross()) {
    const bool by_place = !data.has_train() && !IsNumeric(*feature);
    feature->add_column(by_place ? absl::StrCat("C", ++*unnamed) : feature->name());
  }
  if (IsNumeric(*feature)) return;
  if (feature->table().empty()) feature->set_table(feature->name());
  if (feature->pooling() == POOLING_UNSPECIFIED) feature->set_pooling(SUM);
  SET_DEFAULT(feature, columns, 1);
  if (feature->has_sequence() &&
      feature->sequence().keep() == Feature::Sequence::KEEP_UNSPECIFIED) {
    feature->mutable_sequence()->set_keep(Feature::Sequence::LAST);
  }
  if (is_text && !feature->has_cross()) ResolveCategorical(IsCriteo(data), feature);
}

void AddCriteoIntegers(uint32_t count, Job* job) {
  for (uint32_t i = 1; i <= std::min(count, kMaxColumns); ++i) {
    Feature* feature = job->add_feature();
    feature->set_name(absl::StrCat("I", i));
    feature->add_column(feature->name());
    feature->mutable_numeric()->set_missing(0);
    feature->mutable_numeric()->add_transform()->mutable_log1p();
  }
}

void AddCategories(uint32_t count, Job* job) {
  for (uint32_t i = 1; i <= std::min(count, kMaxColumns); ++i) {
    job->add_feature()->set_name(absl::StrCat("C", i));
  }
}

// Fills in `data` and lists every feature that the job has, each with its one column and what that
// becomes.
void ResolveData(Job* job) {
  Data* const data = job->mutable_data();
  SET_DEFAULT(data, read_ahead_batches, 4);
  const bool is_short = !data->has_train();
  const bool is_criteo = IsCriteo(*data);
  is_short ? ResolveShortForm(data) : ResolveLongForm(data);

  RepeatedPtrField<Feature> stanzas;
  stanzas.Swap(job->mutable_feature());
  for (const Feature& stanza : stanzas) {
    for (Feature& feature : ExpandStanza(stanza)) *job->add_feature() = std::move(feature);
  }
  // The columns that the data have and no stanza tells of.
  const bool is_all = job->feature_size() == 0;
  if (is_all && (is_short || is_criteo || IsNpy(*data))) {
    const bool is_counted = is_criteo && !is_short;
    if (!is_counted) SET_DEFAULT(data, num_categorical, kDefaultCategories);
    AddCategories(is_counted ? data->train().criteo_tsv().categories() : data->num_categorical(),
                  job);
  }
  uint32_t unnamed = 0;
  for (Feature& feature : *job->mutable_feature()) ResolveFeature(*data, &unnamed, &feature);
  uint32_t numeric = static_cast<uint32_t>(NumericFeatures(*job).size());
  if (is_short || IsNpy(*data)) {
    SET_DEFAULT(data, num_dense, numeric > 0 ? numeric : kDefaultIntegers);
    if (is_criteo && numeric == 0) AddCriteoIntegers(data->num_dense(), job);
  } else {
    if (is_all && is_criteo) AddCriteoIntegers(data->train().criteo_tsv().integers(), job);
    data->set_num_dense(static_cast<uint32_t>(NumericFeatures(*job).size()));
  }
  uint32_t columns = 0;
  for (const Feature* feature : EmbeddedFeatures(*job)) columns += feature->columns();
  if (is_short || IsNpy(*data)) {
    SET_DEFAULT(data, num_categorical, columns);
  } else {
    data->set_num_categorical(columns);
  }
}

// A task has the label's only column, if it names none.
void ResolveTasks(Job* job) {
  const std::vector<std::string> labels = LabelColumns(*job);
  if (labels.size() > 1) return;
  for (Task& task : *job->mutable_task()) {
    if (task.label().empty()) task.set_label(labels[0]);
  }
}

// Earlier versions had both in `dlrm`. Where the user wrote two that differ, ValidateJob says so.
void ResolvePrecision(Job* job) {
  Dlrm* const dlrm = job->mutable_dlrm();
  if (job->precision() == FLOAT32) job->set_precision(dlrm->precision());
  if (dlrm->has_initializer() && !job->has_initializer()) {
    *job->mutable_initializer() = dlrm->initializer();
  }
  dlrm->clear_precision();
  dlrm->clear_initializer();
}

void ResolveFae(Fae* fae) {
  Fae::Schedule* const schedule = fae->mutable_schedule();
  SET_DEFAULT(schedule, rate, 50);
  SET_DEFAULT(schedule, min_rate, 1);
  SET_DEFAULT(schedule, max_rate, 100);
  SET_DEFAULT(schedule, falls_to_double, 4);
  SET_DEFAULT(schedule, fixed, false);
  SET_DEFAULT(schedule, scored_rows, 16384);
}

void ResolveCalibration(Calibration* calibration) {
  SET_DEFAULT(calibration, sample_share, 0.05);
  SET_DEFAULT(calibration, chunks, 35);
  SET_DEFAULT(calibration, chunk_rows, 1024);
  SET_DEFAULT(calibration, confidence, 0.999);
}

}  // namespace

void ResolveJob(Job* job) {
  ResolveData(job);
  ResolveTasks(job);
  if (job->has_dlrm()) ResolvePrecision(job);
  ResolveTables(job);
  // A script has its own optimizer.
  if (!job->has_worker()) {
    Optimizer of_rows = job->default_table().optimizer();
    of_rows.clear_clip_norm();  // These two are for rows alone.
    of_rows.clear_cow_clip();
    ResolveOptimizer(of_rows, job->mutable_dense_optimizer());
  }
  ResolveScript(job);
  ResolveTrain(job->mutable_train());
  ResolveCluster(job->mutable_cluster());
  ResolveCheckpoint(job);
  if (job->has_evaluate()) {
    SET_DEFAULT(job->mutable_evaluate(), keep_best, WritesCheckpoints(*job));
  }
  if (job->has_cache()) SET_DEFAULT(job->mutable_cache(), window_steps, kDefaultWindowSteps);
  if (job->has_fae()) ResolveFae(job->mutable_fae());
  if (CountsHotRows(*job)) ResolveCalibration(job->mutable_calibration());
}

#undef SET_DEFAULT

}  // namespace thermocline
