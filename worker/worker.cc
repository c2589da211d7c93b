#include "worker/worker.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/cluster_map.h"
#include "common/job/job_tables.h"
#include "common/status_macros.h"
#include "common/stopwatch.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/data/dataset.h"
#include "worker/model_step.h"
#include "worker/sparse/dense_blocks.h"
#include "worker/sparse/ps_session.h"
#include "worker/sparse/remote_source.h"

namespace thermocline {
namespace {

// Step works beyond those fetched: one computed, one planned next, pushes not yet acknowledged, and
// one being planned.
constexpr int kStepWorksBeyondFetched = 5;

CpuIsaLimit IsaLimit(const Cluster& cluster) {
  return cluster.cpu_isa() == AVX2     ? CpuIsaLimit::kAvx2
         : cluster.cpu_isa() == AVX512 ? CpuIsaLimit::kAvx512
                                       : CpuIsaLimit::kAuto;
}

std::unique_ptr<Device> MakeDevice(const Cluster& cluster) {
  CpuDeviceOptions options;
  options.num_threads = static_cast<int>(cluster.worker_threads());
  options.isa = IsaLimit(cluster);
  return MakeCpuDevice(options);
}

// Samples in the largest batch that this worker computes.
int MaxBatch(const Job& job) {
  const int64_t workers = job.cluster().workers();
  const int64_t train = (int64_t{job.train().batch_size()} + workers - 1) / workers;
  return static_cast<int>(std::max<int64_t>(train, job.train().eval_batch_size()));
}

PsSessionOptions SessionOptions(const Job& job, const JobTables& tables,
                                const WorkerOptions& options) {
  PsSessionOptions session;
  session.job_id = options.job_id;
  session.epoch = options.epoch;
  session.rank = options.rank;
  session.num_servers = job.cluster().servers();
  session.staleness_steps = job.train().staleness_steps();
  session.tables = tables.AllLayouts();
  session.start_step = options.start_step;
  session.max_part_bytes =
      std::min<size_t>(session.max_part_bytes, job.cluster().max_message_bytes());
  session.give_up_us = int64_t{job.cluster().rpc_timeout_s()} * 1'000'000;
  session.jitter_seed = options.rank.value();
  return session;
}

BatchPlanner MakePlanner(const Job& job, const JobTables& tables) {
  std::vector<TableId> ids;
  for (const TableLayout& table : tables.sparse) ids.push_back(table.id);
  std::vector<int32_t> feature_tables;
  for (const FeatureSpec& feature : tables.features) feature_tables.push_back(feature.table_index);
  return BatchPlanner(std::move(ids), std::move(feature_tables),
                      ClusterMap(job.cluster().servers()));
}

// What training and evaluation share; members are destroyed before those they point to.
struct Run {
  Run(const Job& job, const WorkerOptions& options, Dataset* dataset, Transport* transport,
      Scheduler* scheduler)
      : job(job),
        options(options),
        dataset(dataset),
        tables(ResolveTables(job)),
        blocks(tables.dense, ClusterMap(job.cluster().servers())),
        device(MakeDevice(job.cluster())),
        model(job, tables, blocks, device.get(), MaxBatch(job)),
        session(SessionOptions(job, tables, options), transport, scheduler),
        source(SourceOptions(), &blocks, &session) {}

  std::vector<int> TableDims() const {
    std::vector<int> dims;
    for (const TableLayout& table : tables.sparse) dims.push_back(table.dim);
    return dims;
  }
  RemoteSourceOptions SourceOptions() const {
    RemoteSourceOptions options;
    options.num_servers = job.cluster().servers();
    options.num_workers = job.cluster().workers();
    options.staleness_steps = job.train().staleness_steps();
    options.table_dims = TableDims();
    return options;
  }
  absl::StatusOr<std::unique_ptr<StepPipeline>> OpenPipeline(Split split, WorkerRank rank,
                                                             uint32_t num_workers,
                                                             Step start_step) {
    ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader,
                     dataset->OpenReader(split, rank, num_workers, start_step));
    return std::make_unique<StepPipeline>(std::move(reader), MakePlanner(job, tables), TableDims(),
                                          source.fetch_ahead() + kStepWorksBeyondFetched);
  }

  const Job& job;
  const WorkerOptions& options;
  Dataset* const dataset;
  const JobTables tables;
  const DenseBlocks blocks;
  const std::unique_ptr<Device> device;
  ModelStep model;
  PsSession session;
  RemoteSource source;
  // Where the worker trains.
  std::unique_ptr<StepPipeline> pipeline;
  std::unique_ptr<Trainer> trainer;
};

absl::Status TrainPart(Run* run, WorkerProgress* progress, WorkerResult* result) {
  const WorkerOptions& options = run->options;
  if (options.start_step > Step(0) && run->source.owns_dense()) {
    RETURN_IF_ERROR(run->source.LoadDense(options.start_step, run->model.arenas()));
  }
  ASSIGN_OR_RETURN(run->pipeline,
                   run->OpenPipeline(Split::kTrain, options.rank, run->job.cluster().workers(),
                                     options.start_step));
  const Trainer::Parts parts = {&run->model, run->pipeline.get(), &run->source, options.named_cuts};
  run->trainer = std::make_unique<Trainer>(
      run->job, parts, [progress](const TrainerReport& report) { progress->OnReport(report); });
  progress->Watch(run->pipeline.get(), run->trainer.get(), &run->session);
  const Stopwatch watch;
  RETURN_IF_ERROR(run->trainer->Run());
  result->train_s = absl::ToDoubleSeconds(watch.Elapsed());
  result->steps = run->trainer->steps();
  result->samples = run->trainer->samples();
  result->new_samples = run->trainer->new_samples();
  result->bad_lines = run->pipeline->progress().bad_lines;
  result->first_bad_line = run->pipeline->progress().first_bad_line;
  return absl::OkStatus();
}

absl::Status EvaluationPart(Run* run, WorkerProgress* progress, WorkerResult* result) {
  const bool with_dense = run->options.eval_only || !run->source.owns_dense();
  const Stopwatch watch;
  ASSIGN_OR_RETURN(const std::unique_ptr<StepPipeline> held_out,
                   run->OpenPipeline(Split::kTest, WorkerRank(0), 1, Step(0)));
  ASSIGN_OR_RETURN(result->evaluation, Evaluate(held_out.get(), &run->source, &run->model,
                                                Step(result->steps), with_dense));
  result->eval_s = absl::ToDoubleSeconds(watch.Elapsed());
  result->bad_lines += held_out->progress().bad_lines;
  if (result->first_bad_line.empty()) {
    result->first_bad_line = held_out->progress().first_bad_line;
  }
  progress->OnEvaluation(result->evaluation);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerResult> RunWorker(const Job& job, const WorkerOptions& options,
                                       Transport* transport, Scheduler* scheduler,
                                       WorkerProgress* progress) {
  if (!CpuSupports(IsaLimit(job.cluster()))) {
    return absl::FailedPreconditionError(
        "cluster.cpu_isa is AVX512, which this machine does not have; leave it out, or say AVX2");
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> dataset, Dataset::Open(job));
  Run run(job, options, dataset.get(), transport, scheduler);
  WorkerResult result;
  result.steps = options.start_step.value();
  progress->Watch(nullptr, nullptr, &run.session);
  const absl::Cleanup stop_watching = [progress] { progress->Watch(nullptr, nullptr, nullptr); };
  if (!options.eval_only) RETURN_IF_ERROR(TrainPart(&run, progress, &result));
  if (options.named_cuts != nullptr) options.named_cuts->EndTraining();
  if (options.rank == WorkerRank(0)) RETURN_IF_ERROR(EvaluationPart(&run, progress, &result));
  result.stats = progress->Stats();
  return result;
}

std::string WorkerResultToJson(const WorkerResult& result) {
  nlohmann::json json = {{"steps", result.steps},
                         {"samples", result.samples},
                         {"new_samples", result.new_samples},
                         {"bad_lines", result.bad_lines},
                         {"train_s", result.train_s},
                         {"eval_s", result.eval_s},
                         {"samples_per_s", result.new_samples / std::max(result.train_s, 1e-9)},
                         {"bytes_pulled", result.stats.bytes_pulled()},
                         {"bytes_pushed", result.stats.bytes_pushed()},
                         {"rpc_retries", result.stats.rpc_retries()},
                         {"max_staleness", result.stats.max_staleness()},
                         {"mean_staleness", result.stats.mean_staleness()},
                         {"resident_bytes", result.stats.resident_bytes()}};
  if (result.bad_lines > 0) json["first_bad_line"] = result.first_bad_line;
  if (result.evaluation.samples > 0) {
    json["eval_samples"] = result.evaluation.samples;
    json["auc"] = result.evaluation.auc;
    json["logloss"] = result.evaluation.logloss;
  }
  for (const StageStats& stage : result.stats.stages()) {
    json["stages"][stage.stage()] = {
        {"count", stage.count()}, {"total_s", stage.total_s()}, {"mean_us", stage.mean_us()}};
  }
  return json.dump(2) + "\n";
}

}  // namespace thermocline
