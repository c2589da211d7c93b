#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "common/base/thread_pool.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"
#include "common/math/sparse_optimizer.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

constexpr uint32_t kDefaultDim = 16;
constexpr float kDefaultInitScale = 0.01f;
constexpr uint32_t kDefaultWindowSteps = 8;

// Sets `field` of `message` where the user left it out. For proto3 `optional` fields.
#define SET_DEFAULT(message, field, value)                        \
  do {                                                            \
    if (!(message)->has_##field()) (message)->set_##field(value); \
  } while (false)

// An optimizer without a kind takes that of `fallback`; its own learning_rate_scale stays.
void ResolveOptimizer(const Optimizer& fallback, Optimizer* optimizer) {
  if (optimizer->kind_case() == Optimizer::KIND_NOT_SET) {
    const bool has_scale = optimizer->has_learning_rate_scale();
    const float scale = optimizer->learning_rate_scale();
    *optimizer = fallback;
    if (has_scale) optimizer->set_learning_rate_scale(scale);
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
}

// What features say of their tables. ValidateJob refuses those that differ.
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
  if (cluster->max_log_size().empty()) cluster->set_max_log_size("8GiB");
  if (cluster->max_pending_size().empty()) cluster->set_max_pending_size("4GiB");
  if (cluster->listen_host().empty()) cluster->set_listen_host("127.0.0.1");
}

void ResolveCheckpoint(CheckpointPolicy* policy) {
  SET_DEFAULT(policy, at_end, true);
  SET_DEFAULT(policy, keep, 3);
  SET_DEFAULT(policy, full_every, 8);
  SET_DEFAULT(policy, max_rollbacks, 10);
}

}  // namespace

void ResolveJob(Job* job) {
  ResolveData(job);
  ResolveTables(job);
  ResolveOptimizer(job->default_table().optimizer(), job->mutable_dense_optimizer());
  ResolveTrain(job->mutable_train());
  ResolveCluster(job->mutable_cluster());
  if (job->has_checkpoint()) ResolveCheckpoint(job->mutable_checkpoint());
  if (job->has_evaluate()) {
    SET_DEFAULT(job->mutable_evaluate(), keep_best, job->has_checkpoint());
  }
  if (job->has_cache()) SET_DEFAULT(job->mutable_cache(), window_steps, kDefaultWindowSteps);
}

#undef SET_DEFAULT

}  // namespace thermocline
