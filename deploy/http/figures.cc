#include "deploy/http/figures.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "proto/monitor.pb.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr FigureKind kGauge = FigureKind::kGauge;
constexpr FigureKind kCounter = FigureKind::kCounter;
constexpr FigureKind kHistogram = FigureKind::kHistogram;

// Steps are exported as counts, so that step 0 is 1 step, and "none" (-1) is 0.
constexpr double kStepToCount = 1;

constexpr Figure kFigures[] = {
    // The job.
    {"JobFigures", "step", kGauge, "thermocline_job_step",
     "How many steps of the job are trained; it falls when the job goes back to a checkpoint."},
    {"JobFigures", "samples", kGauge, "thermocline_job_samples",
     "How many samples the job has trained on; it falls when the job goes back to a checkpoint."},
    {"JobFigures", "samples_per_s", kGauge, "thermocline_job_samples_per_second",
     "How many samples the job trains on in a second."},
    {"JobFigures", "fraction", kGauge, "thermocline_job_progress_ratio",
     "Which share of the job's steps is trained, from 0 to 1."},
    {"JobFigures", "loss", kGauge, "thermocline_job_loss",
     "The mean training loss per sample since the progress line before."},
    {"JobFigures", "auc", kGauge, "thermocline_job_train_auc",
     "The AUC of the last batch that the first worker has trained on."},
    {"JobFigures", "learning_rate", kGauge, "thermocline_job_learning_rate",
     "The learning rate of the last step."},
    {"JobFigures", "wait_share", kGauge, "thermocline_job_wait_ratio",
     "Which share of its time the first worker waits for other processes, from 0 to 1."},
    {"JobFigures", "eval_auc", kGauge, "thermocline_job_eval_auc",
     "The AUC of the held-out rows at the last evaluation."},
    {"JobFigures", "eval_gauc", kGauge, "thermocline_job_eval_gauc",
     "The AUC of the held-out rows within groups, such as users, at the last evaluation."},
    {"JobFigures", "eval_logloss", kGauge, "thermocline_job_eval_logloss",
     "The log loss of the held-out rows at the last evaluation."},
    {"JobFigures", "eval_normalized_entropy", kGauge, "thermocline_job_eval_normalized_entropy",
     "The log loss by that of a model which knows the share of clicks alone."},
    {"JobFigures", "eval_calibration", kGauge, "thermocline_job_eval_calibration",
     "The predicted clicks of the held-out rows by those that were made, at the last evaluation."},
    {"JobFigures", "eval_own_metric", kGauge, "thermocline_job_eval_own_metric",
     "The metric that the job's script computes, at the last evaluation."},
    {"TaskFigures", "loss", kGauge, "thermocline_job_task_loss",
     "The mean training loss of one of several tasks since the progress line before."},
    {"TaskFigures", "auc", kGauge, "thermocline_job_task_train_auc",
     "The AUC of one of several tasks on the last batch that the first worker has trained on."},
    {"TaskFigures", "eval_auc", kGauge, "thermocline_job_task_eval_auc",
     "The AUC of one of several tasks on the held-out rows at the last evaluation."},
    {"TaskFigures", "eval_gauc", kGauge, "thermocline_job_task_eval_gauc",
     "The AUC of one of several tasks within groups of held-out rows at the last evaluation."},
    {"TaskFigures", "eval_logloss", kGauge, "thermocline_job_task_eval_logloss",
     "The log loss of one of several tasks on the held-out rows at the last evaluation."},
    {"TaskFigures", "eval_normalized_entropy", kGauge,
     "thermocline_job_task_eval_normalized_entropy",
     "The log loss of one of several tasks by that of a model which knows the share of 1s alone."},
    {"TaskFigures", "eval_calibration", kGauge, "thermocline_job_task_eval_calibration",
     "The predicted 1s of one of several tasks by those in the held-out rows."},
    {"JobFigures", "evaluations", kCounter, "thermocline_job_evaluations_total",
     "How many evaluations this launch of the job has made."},
    {"JobFigures", "evaluating_s", kCounter, "thermocline_job_evaluation_seconds_total",
     "How long evaluations have taken in this launch of the job."},
    {"JobFigures", "server_restarts", kCounter, "thermocline_job_server_restarts_total",
     "How often a server was started again in this launch of the job."},
    {"JobFigures", "rollbacks", kCounter, "thermocline_job_rollbacks_total",
     "How often this launch of the job has gone back to a checkpoint."},
    {"JobFigures", "checkpoints", kCounter, "thermocline_job_checkpoints_total",
     "How many checkpoints this launch of the job has written."},
    {"JobFigures", "checkpoints_called_off", kCounter,
     "thermocline_job_checkpoints_called_off_total",
     "How many checkpoints this launch of the job has called off."},
    {"JobFigures", "checkpoint_bytes_written", kCounter,
     "thermocline_job_checkpoint_written_bytes_total",
     "How many bytes the checkpoints of this launch have."},
    {"JobFigures", "checkpoint_write_s", kCounter, "thermocline_job_checkpoint_write_seconds_total",
     "How long the checkpoints of this launch took to write; training goes on meanwhile."},
    {"JobFigures", "checkpoint_pause_s", kCounter, "thermocline_job_checkpoint_pause_seconds_total",
     "For how long checkpoints of this launch have kept servers from applying steps."},
    {"JobFigures", "warnings", kCounter, "thermocline_job_warnings_total",
     "How many warnings this launch of the job has written."},
    {"JobFigures", "slow_hosts", kGauge, "thermocline_job_slow_hosts",
     "How many hosts are slow now, so that the others wait for them."},
    {"JobFigures", "checkpoint_store_bytes", kGauge, "thermocline_job_checkpoint_store_bytes",
     "The size of all files in the folder of checkpoints."},
    {"JobFigures", "generation", kGauge, "thermocline_job_generation",
     "The generation of the job, which each start and each rollback raises."},
    {"JobFigures", "start_time", kGauge, "thermocline_job_start_time_seconds",
     "When this launch of the job began, in seconds since 1970."},

    // Both roles.
    {"ServerStats", "uptime_s", kGauge, "thermocline_process_uptime_seconds",
     "How long the process has run."},
    {"WorkerStats", "uptime_s", kGauge, "thermocline_process_uptime_seconds",
     "How long the process has run."},
    {"ServerStats", "resident_bytes", kGauge, "thermocline_process_resident_bytes",
     "How much memory of the host the process takes."},
    {"WorkerStats", "resident_bytes", kGauge, "thermocline_process_resident_bytes",
     "How much memory of the host the process takes."},

    // Servers.
    {"ServerStats", "generation", kGauge, "thermocline_server_generation",
     "The generation of the job that the server belongs to; a rollback begins the next one."},
    {"ServerStats", "configured", kGauge, "thermocline_server_configured",
     "Whether (1) or not (0) the server has its tables and answers workers."},
    {"ServerStats", "complete_through", kGauge, "thermocline_server_complete_steps",
     "How many steps of the job the server has applied as a whole.", kStepToCount},
    {"ServerStats", "pulls_held", kCounter, "thermocline_server_pulls_held_total",
     "How many pulls of training were held until the pushes that they need were applied."},
    {"ServerStats", "pulls_waiting", kGauge, "thermocline_server_pulls_waiting",
     "How many pulls of training are held now."},
    {"ServerStats", "pulls_not_ready", kCounter, "thermocline_server_pulls_not_ready_total",
     "How many pulls of training were sent away, to come again later."},
    {"ServerStats", "hold_time", kHistogram, "thermocline_pull_hold_seconds",
     "For how long pulls of training were held, over all servers."},
    {"ServerStats", "pushes_accepted", kCounter, "thermocline_server_pushes_accepted_total",
     "How many pushes the server has accepted."},
    {"ServerStats", "push_duplicates", kCounter, "thermocline_server_push_duplicates_total",
     "How many pushes, or parts of them, had been accepted or stored before."},
    {"ServerStats", "pushes_not_ready", kCounter, "thermocline_server_pushes_not_ready_total",
     "How many pushes were sent away, to come again later."},
    {"ServerStats", "max_staleness_seen", kGauge, "thermocline_server_max_staleness_steps",
     "The most steps that were missing in the rows of any answered pull of training."},
    {"ServerStats", "mean_staleness_seen", kGauge, "thermocline_server_mean_staleness_steps",
     "How many steps were missing in the rows of answered pulls of training, on average."},
    {"ServerStats", "requests_refused", kCounter, "thermocline_server_requests_refused_total",
     "How many requests the server has refused since there was no room, in memory or on the disk."},
    {"ServerStats", "pending_push_bytes", kGauge, "thermocline_server_pending_push_bytes",
     "How much memory the pushes take that are not applied yet."},
    {"ServerStats", "replayed_chunks", kCounter, "thermocline_server_replayed_chunks_total",
     "How many parts of pushes came from the push log after a restart."},
    {"ServerStats", "push_log_bytes", kGauge, "thermocline_server_push_log_bytes",
     "The size of the server's push log."},
    {"ServerStats", "loaded_rows", kCounter, "thermocline_server_loaded_rows_total",
     "How many rows the server has read from checkpoints."},
    {"ServerStats", "recovery_s", kGauge, "thermocline_server_recovery_seconds",
     "How long the server took to load its checkpoint and replay its push log."},
    {"ServerStats", "checkpoint_step", kGauge, "thermocline_server_checkpoint_steps",
     "How many steps the last committed checkpoint has, as the server knows it.", kStepToCount},
    {"ServerStats", "reads_held", kCounter, "thermocline_server_reads_held_total",
     "How many reads of evaluations and other readers were held."},
    {"ServerStats", "reads_waiting", kGauge, "thermocline_server_reads_waiting",
     "How many reads are held now."},
    {"ServerStats", "reads_not_ready", kCounter, "thermocline_server_reads_not_ready_total",
     "How many reads were sent away, to come again later."},

    // A server's methods.
    {"RpcStats", "count", kCounter, "thermocline_server_requests_total",
     "How many requests of the method the server has answered."},
    {"RpcStats", "errors", kCounter, "thermocline_server_request_errors_total",
     "How many requests of the method ended with an error."},
    {"RpcStats", "in_flight", kGauge, "thermocline_server_requests_in_flight",
     "How many requests of the method the server handles now."},
    {"RpcStats", "latency", kHistogram, "thermocline_request_seconds",
     "How long servers took to handle requests of the method, without the time for which pulls "
     "were held, over all servers."},

    // What a server spends its time on.
    {"ServerStats.stages", "count", kCounter, "thermocline_server_stage_runs_total",
     "How often the server has gone through the stage."},
    {"ServerStats.stages", "total_s", kCounter, "thermocline_server_stage_seconds_total",
     "How long the server has spent in the stage."},

    // Tables, summed over the servers.
    {"TableStats", "rows", kGauge, "thermocline_table_rows",
     "How many rows the table has, over all servers."},
    {"TableStats", "bytes", kGauge, "thermocline_table_bytes",
     "How much memory the table takes with its index, over all servers."},
    {"TableStats", "keys_pulled", kCounter, "thermocline_table_keys_pulled_total",
     "How many keys of the table training has pulled."},
    {"TableStats", "keys_pushed", kCounter, "thermocline_table_keys_pushed_total",
     "How many keys of the table training has pushed gradients of."},
    {"TableStats", "keys_read", kCounter, "thermocline_table_keys_read_total",
     "How many keys of the table evaluations and other readers have read."},
    {"TableStats", "rows_created", kCounter, "thermocline_table_rows_created_total",
     "How many rows of the table servers have created."},
    {"TableStats", "rows_in_memory", kGauge, "thermocline_table_rows_in_memory",
     "How many rows are in memory, of a table that may spill rows to disk."},
    {"TableStats", "bytes_spilled", kGauge, "thermocline_table_spilled_bytes",
     "How many bytes of the table's rows are on disk."},
    {"TableStats", "rows_read_back", kCounter, "thermocline_table_rows_read_back_total",
     "How many rows were read back from disk."},
    {"TableStats", "rows_spilled", kCounter, "thermocline_table_rows_spilled_total",
     "How many rows were written to disk for want of memory."},
    {"TableStats", "old_image_bytes", kGauge, "thermocline_table_old_image_bytes",
     "How much memory keeps what a checkpoint that is being written needs of rows that have "
     "changed since."},
    {"TableStats", "old_image_waits", kCounter, "thermocline_table_old_image_waits_total",
     "How often a step has waited for a checkpoint to read the table's rows."},
    {"TableStats", "candidates", kGauge, "thermocline_table_candidates",
     "How many keys are counted and have no row yet, since they were looked up too rarely."},
    {"TableStats", "gradients_dropped", kCounter, "thermocline_table_gradients_dropped_total",
     "How many gradients were dropped, since their keys have no row yet."},
    {"TableStats", "rows_forgotten", kCounter, "thermocline_table_rows_forgotten_total",
     "How many rows the table's eviction has removed."},

    // Workers.
    {"WorkerStats", "step", kGauge, "thermocline_worker_step",
     "The step that the worker has reached; it falls when the job goes back to a checkpoint."},
    {"WorkerStats", "samples", kCounter, "thermocline_worker_samples_total",
     "How many samples the worker has trained on in this launch; steps that are made again count "
     "again."},
    {"WorkerStats", "loss", kGauge, "thermocline_worker_loss",
     "The worker's mean loss per sample of late."},
    {"TaskStats", "loss", kGauge, "thermocline_worker_task_loss",
     "The worker's mean loss of late, of one of several tasks."},
    {"WorkerStats", "samples_per_s", kGauge, "thermocline_worker_samples_per_second",
     "How many samples the worker trains on in a second."},
    {"WorkerStats", "step_time", kHistogram, "thermocline_step_seconds",
     "From the end of a step to that of the next, without evaluations between them."},
    {"WorkerStats", "bytes_pulled", kCounter, "thermocline_worker_pulled_bytes_total",
     "How many bytes the worker has pulled from servers."},
    {"WorkerStats", "bytes_pushed", kCounter, "thermocline_worker_pushed_bytes_total",
     "How many bytes the worker has pushed to servers."},
    {"WorkerStats", "bytes_to_device", kCounter, "thermocline_worker_to_device_bytes_total",
     "How many bytes were copied from the worker's host to its device."},
    {"WorkerStats", "bytes_from_device", kCounter, "thermocline_worker_from_device_bytes_total",
     "How many bytes were copied from the worker's device to its host."},
    {"WorkerStats", "rpc_retries", kCounter, "thermocline_worker_request_retries_total",
     "How often the worker has sent a request again."},
    {"WorkerStats", "bad_lines", kCounter, "thermocline_worker_bad_lines_total",
     "How many malformed lines of the data the worker has left out."},
    {"WorkerStats", "padding_ids", kCounter, "thermocline_worker_padding_ids_total",
     "How many ids of the rows that it trained on were padding."},
    {"WorkerStats", "max_staleness", kGauge, "thermocline_worker_max_staleness_steps",
     "The most steps that were missing in the rows that the worker computed with."},
    {"WorkerStats", "mean_staleness", kGauge, "thermocline_worker_mean_staleness_steps",
     "How many steps were missing in the rows that the worker computed with, on average."},
    {"WorkerStats", "failed_captures", kGauge, "thermocline_worker_failed_captures",
     "How many pieces of a step could not be captured as CUDA graphs."},
    {"WorkerStats", "full_precision_products", kGauge, "thermocline_worker_full_precision_products",
     "How many shapes of products are computed in float32, since the device has no other way."},

    // What a worker spends its time on.
    {"WorkerStats.stages", "count", kCounter, "thermocline_worker_stage_runs_total",
     "How often the worker has gone through the stage."},
    {"WorkerStats.stages", "total_s", kCounter, "thermocline_worker_stage_seconds_total",
     "How long the worker has spent in the stage; stages that are marked \"(ahead)\" run beside "
     "the training thread."},
    {"WorkerPhase", "done", kGauge, "thermocline_worker_phase_done",
     "How much of the present phase is done, such as samples or bytes."},
    {"WorkerPhase", "total", kGauge, "thermocline_worker_phase_size",
     "How much is to be done in the present phase; 0: that is not known."},
    {"WorkerPhase", "advances", kCounter, "thermocline_worker_phase_advances_total",
     "How often the worker got further in a phase without steps, such as an evaluation."},
    {"WorkerWait", "seconds", kGauge, "thermocline_worker_wait_seconds",
     "How long the worker's longest present wait of the kind has lasted; 0: there is none."},

    // A worker's cache.
    {"CacheStats", "budget_bytes", kGauge, "thermocline_cache_budget_bytes",
     "How much device memory the worker's cache may take."},
    {"CacheStats", "capacity_rows", kGauge, "thermocline_cache_capacity_rows",
     "How many rows the worker's cache has room for."},
    {"CacheStats", "rows_held", kGauge, "thermocline_cache_rows",
     "How many rows the worker's cache holds."},
    {"CacheStats", "hits", kCounter, "thermocline_cache_hits_total",
     "How many keys of steps were found in the worker's cache."},
    {"CacheStats", "loaded", kCounter, "thermocline_cache_loaded_total",
     "How many rows were pulled to stay in the worker's cache."},
    {"CacheStats", "bypassed", kCounter, "thermocline_cache_bypassed_total",
     "How many rows were pulled for one step alone."},
    {"CacheStats", "rejected_no_room", kCounter, "thermocline_cache_rejected_total",
     "How many rows were pulled for one step that would have stayed if there had been room."},
    {"CacheStats", "evicted", kCounter, "thermocline_cache_evicted_total",
     "How many rows have left the worker's cache."},
    {"CacheStats", "window_steps", kGauge, "thermocline_cache_window_steps",
     "How many batches ahead the worker knows when it decides which rows stay."},
    {"CacheStats", "prefetch_steps", kGauge, "thermocline_cache_prefetch_steps",
     "How many steps ahead the worker pulls rows."},
    {"CacheStats", "written_ahead", kCounter, "thermocline_cache_written_ahead_total",
     "How many rows were written back while they were held."},
    {"CacheStats", "rows_kept", kGauge, "thermocline_cache_kept_rows",
     "How many rows the cache holds of tables that are placed on the device."},
    {"CacheStats", "kept_capacity_rows", kGauge, "thermocline_cache_kept_capacity_rows",
     "How many rows the cache has room for of tables that are placed on the device."},

    // What workers exchange.
    {"PhaseStats", "bytes_sent", kCounter, "thermocline_exchange_sent_bytes_total",
     "How many bytes the worker has sent to other workers in the phase."},
    {"PhaseStats", "bytes_received", kCounter, "thermocline_exchange_received_bytes_total",
     "How many bytes the worker has received from other workers in the phase."},
    {"PhaseStats", "wait_s", kCounter, "thermocline_exchange_wait_seconds_total",
     "How long the worker has waited for blocks of the phase."},
    {"ExchangeStats", "bytes_sent_again", kCounter, "thermocline_exchange_resent_bytes_total",
     "How many bytes were sent again after a stream broke."},
    {"ExchangeStats", "streams_opened", kCounter, "thermocline_exchange_streams_opened_total",
     "How many streams to other workers the worker has opened."},
    {"ExchangeStats", "bytes_owed", kGauge, "thermocline_exchange_owed_bytes",
     "How many bytes are sent or to be sent, and not acknowledged yet."},
    {"ExchangeStats", "bytes_held", kGauge, "thermocline_exchange_held_bytes",
     "How many bytes are received and not used up yet."},
    {"ExchangeStats", "wait_for_rank_s", kCounter, "thermocline_worker_awaited_seconds_total",
     "How long all other workers have waited for this one's blocks."},

    // Hot and cold batches.
    {"HotStats", "is_hot", kGauge, "thermocline_hot_batches",
     "Whether the worker trains hot batches (1) or cold ones (0)."},
    {"HotStats", "rate", kGauge, "thermocline_hot_rate_percent",
     "The rate at which hot and cold batches take turns, in percent of a pass."},
    {"HotStats", "changes", kCounter, "thermocline_hot_changes_total",
     "How often the worker went from hot batches to cold ones, or back."},
    {"HotStats", "hot_rows", kGauge, "thermocline_hot_rows", "How many hot rows the worker holds."},
};

constexpr char kLabel[] = "it is a label";
constexpr char kClock[] = "it is a clock, which only a trace needs";
constexpr char kInHistogram[] = "the histogram has it";
constexpr char kOfWait[] = "it names one wait; the metrics have the longest of each kind";

constexpr LeftOut kLeftOut[] = {
    {"ServerStats", "server_index", kLabel},
    {"ServerStats", "num_servers", "it is that of thermocline_up"},
    {"ServerStats", "clock_ns", kClock},
    {"ServerStats", "embedded", "it is a setting of the job"},
    {"ServerStats", "accepted_through",
     "servers times workers are too many; thermocline_worker_accepted_steps has the least of a "
     "worker over all servers"},
    {"WorkerStats", "worker_rank", kLabel},
    {"WorkerStats", "clock_ns", kClock},
    {"TableStats", "id", "its name is a label"},
    {"TableStats", "dim", "it is a setting of the job"},
    {"TableStats", "role", "tables of dense parameters are named by it"},
    {"ServerStats.stages", "mean_us", "it is total_s by count"},
    {"WorkerStats.stages", "mean_us", "it is total_s by count"},
    {"LatencyStats", "count", kInHistogram},
    {"LatencyStats", "mean_us", kInHistogram},
    {"LatencyStats", "p50_us", kInHistogram},
    {"LatencyStats", "p99_us", kInHistogram},
    {"LatencyStats", "max_us", "a maximum since the process began says little of now"},
    {"LatencyStats", "buckets", kInHistogram},
    {"WorkerWait", "server", kOfWait},
    {"WorkerWait", "worker", kOfWait},
    {"WorkerWait", "kind", kLabel},
    {"WorkerWait", "step", kOfWait},
    {"WorkerWait", "needed_step", kOfWait},
};

// All messages that have figures.
const std::vector<const Descriptor*>& Messages() {
  static const auto* const all =
      new std::vector<const Descriptor*>{JobFigures::descriptor(),
                                         ServerStats::descriptor(),
                                         RpcStats::descriptor(),
                                         TableStats::descriptor(),
                                         WorkerStats::descriptor(),
                                         WorkerPhase::descriptor(),
                                         WorkerWait::descriptor(),
                                         CacheStats::descriptor(),
                                         ExchangeStats_PhaseStats::descriptor(),
                                         ExchangeStats::descriptor(),
                                         HotStats::descriptor(),
                                         TaskStats::descriptor(),
                                         TaskFigures::descriptor()};
  return *all;
}

std::vector<FieldFigure> FieldsNamed(absl::string_view message, const Descriptor* descriptor) {
  std::vector<FieldFigure> found;
  for (const Figure& figure : kFigures) {
    if (figure.message != message) continue;
    const FieldDescriptor* const field = descriptor->FindFieldByName(std::string(figure.field));
    CHECK(field != nullptr);
    found.push_back({field, &figure});
  }
  return found;
}

// By message; of stages by the field whose messages they are.
using FiguresByMessage =
    std::map<std::pair<const Descriptor*, const FieldDescriptor*>, std::vector<FieldFigure>>;

FiguresByMessage MakeFiguresByMessage() {
  FiguresByMessage all;
  for (const Descriptor* const message : Messages()) {
    all[{message, nullptr}] = FieldsNamed(message->name(), message);
  }
  for (const Descriptor* const owner : {ServerStats::descriptor(), WorkerStats::descriptor()}) {
    all[{StageStats::descriptor(), owner->FindFieldByName("stages")}] =
        FieldsNamed(owner->name() + ".stages", StageStats::descriptor());
  }
  return all;
}

// The sum of two: counts and times add up, and the rest is of the values that both had.
void AddLatency(const LatencyStats& from, LatencyStats* to) {
  const double total_us = from.mean_us() * static_cast<double>(from.count()) +
                          to->mean_us() * static_cast<double>(to->count());
  to->set_count(from.count() + to->count());
  to->set_mean_us(to->count() == 0 ? 0 : total_us / static_cast<double>(to->count()));
  to->set_max_us(std::max(from.max_us(), to->max_us()));
  while (to->buckets_size() < from.buckets_size()) to->add_buckets(0);
  for (int i = 0; i < from.buckets_size(); ++i) {
    to->set_buckets(i, to->buckets(i) + from.buckets(i));
  }
}

// Null: entries of the list have no name.
const FieldDescriptor* NameFieldOf(const Descriptor* descriptor) {
  for (const char* name : {"name", "method", "stage"}) {
    if (const FieldDescriptor* field = descriptor->FindFieldByName(name)) return field;
  }
  return nullptr;
}

Message* EntryNamed(const std::string& name, const FieldDescriptor* list, Message* message) {
  const Reflection* reflection = message->GetReflection();
  const FieldDescriptor* const key = NameFieldOf(list->message_type());
  for (int i = 0; i < reflection->FieldSize(*message, list); ++i) {
    Message* const entry = reflection->MutableRepeatedMessage(message, list, i);
    if (entry->GetReflection()->GetString(*entry, key) == name) return entry;
  }
  Message* const made = reflection->AddMessage(message, list);
  made->GetReflection()->SetString(made, key, name);
  return made;
}

void AddNumber(const Message& from, const FieldDescriptor* field, Message* to) {
  const Reflection* reflection = from.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->SetUInt64(
          to, field, reflection->GetUInt64(from, field) + reflection->GetUInt64(*to, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->SetDouble(
          to, field, reflection->GetDouble(from, field) + reflection->GetDouble(*to, field));
    default:
      CHECK(false);  // No counter has another type.
  }
}

void AddNumbers(const Message& from, const FieldDescriptor* list, Message* to) {
  const Reflection* reflection = from.GetReflection();
  CHECK(list->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE);
  for (int i = 0; i < reflection->FieldSize(from, list); ++i) {
    const double value = reflection->GetRepeatedDouble(from, list, i);
    if (i < reflection->FieldSize(*to, list)) {
      reflection->SetRepeatedDouble(to, list, i,
                                    value + reflection->GetRepeatedDouble(*to, list, i));
    } else {
      reflection->AddDouble(to, list, value);
    }
  }
}

void AddCountersOf(const Message& from, const FieldDescriptor* in, Message* to);

void AddMessage(const Message& from, const FieldDescriptor* in, Message* to) {
  if (from.GetDescriptor() == LatencyStats::descriptor()) {
    return AddLatency(static_cast<const LatencyStats&>(from), static_cast<LatencyStats*>(to));
  }
  AddCountersOf(from, in, to);
}

void AddCountersOf(const Message& from, const FieldDescriptor* in, Message* to) {
  const Descriptor* const descriptor = from.GetDescriptor();
  const Reflection* const reflection = from.GetReflection();
  for (const auto& [field, figure] : FiguresOf(descriptor, in)) {
    if (figure->kind != kCounter) continue;
    field->is_repeated() ? AddNumbers(from, field, to) : AddNumber(from, field, to);
  }
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* const field = descriptor->field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (!reflection->HasField(from, field)) continue;
      AddMessage(reflection->GetMessage(from, field), field, reflection->MutableMessage(to, field));
      continue;
    }
    const FieldDescriptor* const key = NameFieldOf(field->message_type());
    if (key == nullptr) continue;  // Waits and tasks: they have no counters.
    for (int at = 0; at < reflection->FieldSize(from, field); ++at) {
      const Message& entry = reflection->GetRepeatedMessage(from, field, at);
      const std::string name = entry.GetReflection()->GetString(entry, key);
      Message* const sum = EntryNamed(name, field, to);
      // It tells tables of dense parameters from others.
      if (field->message_type() == TableStats::descriptor()) {
        static_cast<TableStats*>(sum)->set_role(static_cast<const TableStats&>(entry).role());
      }
      AddMessage(entry, field, sum);
    }
  }
}

}  // namespace

absl::Span<const Figure> AllFigures() { return kFigures; }

absl::Span<const LeftOut> FieldsLeftOut() { return kLeftOut; }

const std::vector<FieldFigure>& FiguresOf(const Descriptor* descriptor, const FieldDescriptor* in) {
  static const auto* const all = new FiguresByMessage(MakeFiguresByMessage());
  static const auto* const none = new std::vector<FieldFigure>();
  const bool is_stage = descriptor == StageStats::descriptor();
  const auto found = all->find({descriptor, is_stage ? in : nullptr});
  return found == all->end() ? *none : found->second;
}

double NumberOf(const Message& message, const FieldDescriptor* field) {
  const Reflection* const reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(reflection->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? 1 : 0;
    default:
      CHECK(false);  // The tables above have numbers alone.
  }
  return 0;
}

void AddCounters(const Message& from, Message* to) { AddMessage(from, nullptr, to); }

}  // namespace thermocline
