#include "worker/train/worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/base/timing.h"
#include "common/job/job_source.h"
#include "common/job/resolved_job.h"
#include "worker/data/dataset.h"
#include "worker/session/ps_session.h"
#include "worker/session/retry_policy.h"
#include "worker/source/cached_source.h"
#include "worker/source/dense_blocks.h"
#include "worker/source/dense_parameters.h"
#include "worker/source/dense_slices.h"
#include "worker/source/embedding_source.h"
#include "worker/source/shared_source.h"
#include "worker/train/model_step.h"

namespace thermocline {
namespace {

// Of evaluation: one computed, one fetched, one being planned.
constexpr int kEvaluationContexts = 4;
// Step contexts beyond those fetched: one computed, one pipelined, one planned next, pushes not yet
// acknowledged, and one being planned.
constexpr int kContextsBeyondFetched = 6;

// A batch is planned while others are computed: on one thread where cores are few. A GPU, whose
// hosts have many, takes batches faster than a thread plans them. The job's workers may all be on
// this host.
int NumPlanningThreads(const Job& job) {
  const int workers = static_cast<int>(job.cluster().workers());
  return std::clamp(HardwareThreads() / 4 / workers, 1, 8);
}

// Samples of the largest batch that is trained here.
int64_t TrainBatch(const Job& job) {
  const int64_t workers = job.cluster().workers();
  return (int64_t{job.train().batch_size()} + workers - 1) / workers;
}

// And of the largest that is computed.
int MaxBatch(const Job& job) {
  return static_cast<int>(std::max<int64_t>(TrainBatch(job), job.train().eval_batch_size()));
}

PsSessionOptions SessionOptions(const Job& job, const JobTables& tables,
                                const WorkerOptions& options) {
  PsSessionOptions session;
  session.job_id = options.job_id;
  session.generation = options.generation;
  session.rank = options.rank;
  session.num_servers = job.cluster().servers();
  session.staleness_steps = job.train().staleness_steps();
  session.tables = tables.AllLayouts();
  session.start_step = options.start_step;
  session.max_chunk_bytes =
      std::min<size_t>(session.max_chunk_bytes, job.cluster().max_message_bytes());
  session.give_up_us = int64_t{job.cluster().rpc_timeout_s()} * 1'000'000;
  session.jitter_seed = options.rank.value();
  session.on_notice = [](const std::string& line) { LogLine(line); };
  return session;
}

// Whether this worker exchanges blocks with the job's others.
bool HasExchange(const Job& job, const WorkerOptions& worker) {
  return ExchangesBlocks(job) && !worker.eval_only && worker.make_exchange;
}

ExchangeOptions ExchangeOptionsOf(const Job& job, const WorkerOptions& worker) {
  ExchangeOptions options;
  options.rank = worker.rank;
  options.num_ranks = job.cluster().workers();
  options.start_step = worker.start_step;
  options.phases = job.has_cache() ? kAllPhases : kDensePhases;
  options.window_steps = static_cast<int>(job.cache().window_steps());
  options.max_chunk_bytes =
      std::min<size_t>(options.max_chunk_bytes, job.cluster().max_message_bytes());
  return options;
}

std::vector<TableId> TableIds(const JobTables& tables) {
  std::vector<TableId> ids;
  for (const TableLayout& table : tables.sparse) ids.push_back(table.id);
  return ids;
}

BatchPlanner MakePlanner(const Job& job, const JobTables& tables) {
  std::vector<int32_t> feature_tables;
  for (const FeatureSpec& feature : tables.features) feature_tables.push_back(feature.table_index);
  return BatchPlanner(TableIds(tables), std::move(feature_tables),
                      ClusterMap(job.cluster().servers()), job.data().num_dense() > 0 ? 1 : 0);
}

RemoteSourceOptions UncachedOptions(const Job& job, const JobTables& tables) {
  RemoteSourceOptions options;
  options.num_servers = job.cluster().servers();
  options.num_workers = job.cluster().workers();
  options.staleness_steps = job.train().staleness_steps();
  options.tables = tables.sparse;
  return options;
}

absl::StatusOr<CachedSourceOptions> CachedOptions(const Job& job, const JobTables& tables,
                                                  const WorkerOptions& worker) {
  CachedSourceOptions options = {UncachedOptions(job, tables)};
  options.start_step = worker.start_step;
  // A checkpoint's push fits into a server's room, beside the dense parameters and what else waits
  // there.
  ASSIGN_OR_RETURN(uint64_t room_bytes, ParseByteSize(job.cluster().max_pending_size()));
  room_bytes -= std::min(room_bytes, DensePushBytes(job));
  options.max_unwritten_bytes = std::min(options.max_unwritten_bytes, room_bytes / 4);
  if (worker.max_unwritten_bytes) options.max_unwritten_bytes = *worker.max_unwritten_bytes;
  options.write_back_piece_bytes =
      worker.write_back_piece_bytes.value_or(options.write_back_piece_bytes);
  ASSIGN_OR_RETURN(const uint64_t budget_bytes, ParseByteSize(job.cache().budget()));
  options.shares_rows = HasExchange(job, worker);
  const CacheUse use = options.shares_rows        ? CacheUse::kShared
                       : options.num_workers == 1 ? CacheUse::kOwned
                                                  : CacheUse::kCopies;
  ASSIGN_OR_RETURN(options.layout, LayOutCache(tables, TrainBatch(job), use, budget_bytes));
  options.window_steps = static_cast<int>(job.cache().window_steps());
  options.prefetch_steps = static_cast<int>(PrefetchSteps(job.cache()));
  return options;
}

// A device whose memory is the host's has what the host has. (Others say so themselves:
// CheckMemory.)
absl::Status CheckHostMemory(const CacheLayout& layout, const Device& device) {
  if (!device.is_host_memory()) return absl::OkStatus();
  const uint64_t host_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                              static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  if (layout.budget_bytes <= host_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cache.budget is ", layout.budget_bytes,
                                                 " bytes; this machine has ", host_bytes,
                                                 " bytes of memory"));
}

// What training and evaluation share; members are destroyed before those they point to.
struct Run {
  Run(const Job& job, const WorkerOptions& options, Dataset* dataset, WorkerDevice worker_device,
      Transport* transport, Scheduler* scheduler)
      : job(job),
        options(options),
        dataset(dataset),
        tables(ResolveTables(job)),
        blocks(tables.dense, ClusterMap(job.cluster().servers())),
        device_name(std::move(worker_device.name)),
        device_warning(std::move(worker_device.warning)),
        device(std::move(worker_device.device)),
        model(job, tables, device.get(), MaxBatch(job)),
        session(SessionWithExchange(), transport, scheduler) {
    if (job.has_evaluate() && options.rank == WorkerRank(0) && !options.eval_only) {
      evaluation_threads = std::make_unique<ThreadPool>(NumPlanningThreads(job));
    }
  }

  // A session that fails fails the exchange; and the other way, so that no wait of either lasts.
  PsSessionOptions SessionWithExchange() {
    PsSessionOptions of_session = SessionOptions(job, tables, options);
    of_session.on_failure = [this](const absl::Status& error) {
      if (Exchange* const joined = exchange_to_fail.load()) joined->Fail(error);
    };
    return of_session;
  }

  // Joins the other workers, if any; then makes what may need them. cached: null: no rows are kept.
  absl::Status JoinOthers(const CachedSourceOptions* cached) {
    if (HasExchange(job, options)) {
      ExchangeHooks hooks;
      // What fails the exchange itself is another worker, or the way to it.
      hooks.on_failure = [this](const absl::Status& error) { session.Fail(MarkServerLoss(error)); };
      hooks.on_waiting = [this] { session.ProbeAll(); };
      hooks.on_notice = [](const std::string& line) { LogLine(line); };
      ASSIGN_OR_RETURN(exchange,
                       options.make_exchange(ExchangeOptionsOf(job, options), std::move(hooks)));
      exchange_to_fail = exchange.get();
      slices = std::make_unique<DenseSlices>(tables.dense, ClusterMap(job.cluster().servers()),
                                             exchange.get());
    }
    dense = std::make_unique<DenseParameters>(&blocks, model.dense(), job.cluster().workers(),
                                              slices.get(), device.get(), &session);
    dense->Initialize(job.seed());
    if (cached == nullptr) {
      source = std::make_unique<RemoteSource>(UncachedOptions(job, tables), &session, device.get());
    } else if (cached->shares_rows) {
      source = std::make_unique<SharedSource>(*cached, exchange.get(), &session, device.get());
    } else {
      source = std::make_unique<CachedSource>(*cached, &session, device.get());
    }
    return absl::OkStatus();
  }

  // The error of training; one of the exchange itself marked as the loss of another worker.
  absl::Status MarkLoss(const absl::Status& error) const {
    const absl::Status of_session = session.status();
    return of_session.message() == error.message() ? of_session : error;
  }

  // Waits until no other worker needs this one, which has trained up to `last`.
  absl::Status LeaveOthers(Step last) {
    if (exchange == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(
        exchange->Leave([&](Exchange::Done done) { session.AwaitApplied(last, std::move(done)); }));
    return session.Drain();  // What was asked is needed no more, and is answered all the same.
  }

  WorkerProgress::Watched Watched() const {
    return {pipeline.get(), trainer.get(),  &session,     source->cache(),
            device_name,    device_warning, device.get(), model.is_asynchronous(),
            exchange.get()};
  }

  // Step contexts that are held at a time, and one more.
  int ContextsHeld() const { return source->fetch_ahead() + kContextsBeyondFetched; }

  absl::StatusOr<std::unique_ptr<StepPipeline>> OpenTraining() {
    ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader,
                     dataset->OpenReader(Split::kTrain, options.rank, job.cluster().workers(),
                                         options.start_step));
    StepPipelineOptions pipeline;
    pipeline.device = device.get();
    pipeline.threads = &planning_threads;
    pipeline.depth = ContextsHeld();
    if (source->cache() != nullptr) {
      const CachedSourceOptions& cached = source->cache()->options();
      pipeline.window_steps = cached.window_steps;
      pipeline.cache = MakeCacheStage(cached, exchange.get(), &planning_threads);
    }
    return std::make_unique<StepPipeline>(std::move(reader), MakePlanner(job, tables),
                                          std::move(pipeline));
  }
  absl::StatusOr<std::unique_ptr<StepPipeline>> OpenHeldOut() {
    ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader,
                     dataset->OpenReader(Split::kTest, WorkerRank(0), 1, Step(0)));
    StepPipelineOptions pipeline;
    pipeline.device = device.get();
    pipeline.threads = evaluation_threads == nullptr ? &planning_threads : evaluation_threads.get();
    pipeline.depth = kEvaluationContexts;
    return std::make_unique<StepPipeline>(std::move(reader), MakePlanner(job, tables),
                                          std::move(pipeline));
  }

  const Job& job;
  const WorkerOptions& options;
  Dataset* const dataset;
  const JobTables tables;
  const DenseBlocks blocks;
  const std::string device_name, device_warning;
  const std::unique_ptr<Device> device;
  ModelStep model;
  PsSession session;
  std::unique_ptr<Exchange> exchange;                // Null: there is none.
  std::atomic<Exchange*> exchange_to_fail{nullptr};  // The same, for threads that it starts.
  std::unique_ptr<DenseSlices> slices;               // Null: their home is another.
  std::unique_ptr<DenseParameters> dense;
  std::unique_ptr<EmbeddingSource> source;
  ThreadPool planning_threads{NumPlanningThreads(job)};
  // Plan the held-out batches where this worker evaluates while training's pipeline plans ahead;
  // null: it evaluates, if at all, when that pipeline has ended, and planning_threads do.
  std::unique_ptr<ThreadPool> evaluation_threads;
  // Where the worker trains.
  std::unique_ptr<StepPipeline> pipeline;
  std::unique_ptr<Trainer> trainer;
};

// There was memory for everything that is made at the start.
absl::Status CheckMemory(Run* run) {
  const absl::Status status = run->device->Synchronize();
  if (status.ok()) return absl::OkStatus();
  int64_t cache_bytes = 0;
  if (run->source->cache() != nullptr) {
    for (const CacheGroupLayout& group : run->source->cache()->options().layout.groups) {
      cache_bytes += (int64_t{group.capacity} + group.staging_rows) * group.row_bytes();
    }
  }
  return absl::Status(
      status.code(),
      absl::StrCat(run->device_name, ": ", status.message(), "; of its memory, ", cache_bytes,
                   " bytes are for the cache's rows (cache.budget), the rest for the parameters "
                   "and for the activations of ",
                   MaxBatch(run->job), " samples (train.batch_size, train.eval_batch_size)"));
}

// Scores the held-out rows with the model after place.step.
absl::Status EvaluationPart(Run* run, WorkerProgress* progress, const EvaluationPlace& place,
                            WorkerResult* result) {
  const Stopwatch watch;
  const int64_t held_out_rows = run->dataset->rows(Split::kTest);
  progress->Enter("evaluating");
  ASSIGN_OR_RETURN(const std::unique_ptr<StepPipeline> held_out, run->OpenHeldOut());
  EvaluationParts parts;
  parts.held_out = held_out.get();
  parts.source = run->source.get();
  // A worker that has trained them has them.
  if (run->options.eval_only || run->dense->home() == DenseParameters::Home::kServers) {
    parts.dense = run->dense.get();
  }
  parts.model = &run->model;
  parts.session = &run->session;
  ASSIGN_OR_RETURN(result->evaluation,
                   ScoreHeldOut(parts, place.step + 1, [progress, held_out_rows](int64_t samples) {
                     progress->OnScored(samples, held_out_rows);
                   }));
  result->evaluated_step = place.step;
  result->eval_s += absl::ToDoubleSeconds(watch.Elapsed());
  const BatchReader::Progress read = held_out->progress();
  result->held_out_bad_lines = read.bad_lines;
  if (result->first_bad_line.empty()) result->first_bad_line = read.first_bad_line;
  progress->OnEvaluation(result->evaluation, place, watch.Elapsed());
  return absl::OkStatus();
}

std::string HowRowsAreHeldOut(const Job& job) {
  const Data::Split& split = job.data().split();
  if (split.column().empty()) return "(data.test_share, data.test_path)";
  return absl::StrCat("(data.split: none has a ", split.column(), " of ", split.test_from(),
                      " or more)");
}

// While the job trains: rank 0 scores, and all wait for what follows. False: training ends.
absl::StatusOr<bool> EvaluateAndDecide(Run* run, WorkerProgress* progress,
                                       const EvaluationPlace& place, WorkerResult* result) {
  if (run->options.rank == WorkerRank(0)) {
    RETURN_IF_ERROR(EvaluationPart(run, progress, place, result));
    if (result->evaluation.samples == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the job has `evaluate`, and no row of its data is held out ",
                       HowRowsAreHeldOut(run->job)));
    }
    // One that nothing depends on may have none.
    if (place.is_scheduled && run->job.evaluate().metric() == Evaluate::AUC &&
        std::isnan(result->evaluation.auc)) {
      return absl::FailedPreconditionError(
          "evaluate.metric is AUC, which is undefined here: the held-out rows have one class only; "
          "hold out other rows, or write `metric: LOGLOSS`");
    }
    progress->Enter("waiting for the decision");
  } else {
    progress->Enter("waiting for the evaluation");
  }
  EvaluationDecisions* const decisions = run->options.decisions;
  return decisions == nullptr || decisions->AwaitGoingOn(place.step);
}

absl::Status TrainPart(Run* run, WorkerProgress* progress, WorkerResult* result) {
  const WorkerOptions& options = run->options;
  if ((options.start_step > Step(0) || run->job.has_init()) &&
      run->dense->home() != DenseParameters::Home::kServers) {
    RETURN_IF_ERROR(run->dense->Load(options.start_step, /*with_state=*/true));
  }
  ASSIGN_OR_RETURN(run->pipeline, run->OpenTraining());
  Trainer::Parts parts;
  parts.pipeline = run->pipeline.get();
  parts.source = run->source.get();
  parts.dense = run->dense.get();
  parts.model = &run->model;
  parts.session = &run->session;
  parts.named_checkpoints = options.named_checkpoints;
  absl::Duration evaluating;
  if (run->job.has_evaluate()) {
    parts.evaluate = [&](const EvaluationPlace& place) {
      const Stopwatch watch;
      absl::StatusOr<bool> goes_on = EvaluateAndDecide(run, progress, place, result);
      progress->Enter("training");
      evaluating += watch.Elapsed();
      return goes_on;
    };
  }
  run->trainer = std::make_unique<Trainer>(
      run->job, parts, [progress](const TrainerReport& report) { progress->OnReport(report); });
  progress->Watch(run->Watched());
  progress->Enter("training");
  const Stopwatch watch;
  if (const absl::Status status = run->trainer->Run(); !status.ok()) return run->MarkLoss(status);
  RETURN_IF_ERROR(run->LeaveOthers(Step(run->trainer->steps()) - 1));
  result->train_s = absl::ToDoubleSeconds(watch.Elapsed() - evaluating);
  result->steps = run->trainer->steps();
  result->samples = run->trainer->samples();
  result->new_samples = run->trainer->new_samples();
  result->bad_lines = run->pipeline->progress().bad_lines;
  const std::string first_bad_line = run->pipeline->progress().first_bad_line;
  if (!first_bad_line.empty()) result->first_bad_line = first_bad_line;
  result->padding_ids = run->pipeline->progress().padding_ids;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerResult> RunWorker(const Job& job, const WorkerOptions& options,
                                       Transport* transport, Scheduler* scheduler,
                                       WorkerProgress* progress) {
  ASSIGN_OR_RETURN(WorkerDevice device, options.make_device(job));
  if (!device.warning.empty()) LogLine(absl::StrCat("WARNING: ", device.warning));
  // The controller asks every worker for its warning, and tells the console; opening the data may
  // take long.
  WorkerProgress::Watched device_alone;
  device_alone.device = device.name;
  device_alone.device_warning = device.warning;
  progress->Watch(device_alone);
  CachedSourceOptions cached_options;
  const bool caches = job.has_cache() && !options.eval_only;
  if (caches) {
    ASSIGN_OR_RETURN(cached_options, CachedOptions(job, ResolveTables(job), options));
    RETURN_IF_ERROR(CheckHostMemory(cached_options.layout, *device.device));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> dataset,
                   Dataset::Open(
                       job,
                       [progress](absl::string_view what, const ScanProgress& scan) {
                         progress->OnScan(what, scan);
                       },
                       options.data_index));
  Run run(job, options, dataset.get(), std::move(device), transport, scheduler);
  RETURN_IF_ERROR(run.JoinOthers(caches ? &cached_options : nullptr));
  RETURN_IF_ERROR(CheckMemory(&run));
  WorkerResult result;
  result.steps = options.start_step.value();
  progress->Watch(run.Watched());
  const absl::Cleanup stop_watching = [progress] { progress->Watch({}); };
  if (!options.eval_only) RETURN_IF_ERROR(TrainPart(&run, progress, &result));
  if (options.named_checkpoints != nullptr) options.named_checkpoints->EndTraining();
  const Step last = Step(result.steps) - 1;
  if (options.rank == WorkerRank(0) && (options.eval_only || result.evaluated_step != last)) {
    EvaluationPlace place;
    place.step = last;
    if (run.trainer != nullptr) place.pass = run.trainer->pass();
    if (last >= Step(0)) place.learning_rate = LearningRateAt(job.train().learning_rate(), last);
    RETURN_IF_ERROR(EvaluationPart(&run, progress, place, &result));
  }
  progress->Enter("ending");
  result.bad_lines += result.held_out_bad_lines;
  result.stats = progress->Stats();
  return result;
}

}  // namespace thermocline
