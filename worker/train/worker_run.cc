#include "worker/train/worker_run.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/job/model_memory.h"
#include "common/job/resolved_job.h"
#include "worker/rows/row_planner.h"
#include "worker/session/retry_policy.h"
#include "worker/train/run_options.h"
#include "worker/train/script_state.h"
#include "worker/train/script_step.h"

namespace thermocline {
namespace {

// The contexts of an evaluation: one computed, one fetched, one being planned.
constexpr int kEvaluationContexts = 4;
// Step contexts beyond those fetched: one computed, one pipelined, one planned next, pushes not yet
// acknowledged, and one being planned.
constexpr int kContextsBeyondFetched = 6;
// Others acknowledge a block within 0.1 s; one that has left by then does so no more.
constexpr absl::Duration kLeavePatience = absl::Seconds(5);

}  // namespace

WorkerRun::WorkerRun(const Job& job, const WorkerOptions& options, Dataset* dataset,
                     WorkerDevice worker_device, ScriptRun* script, Transport* transport,
                     Scheduler* scheduler)
    : job(job),
      options(options),
      dataset(dataset),
      script(script),
      model_process(script != nullptr ? script : &own_process),
      tables(ResolveTables(job)),
      device_name(std::move(worker_device.name)),
      device_warning(std::move(worker_device.warning)),
      device(std::move(worker_device.device)),
      session(SessionWithExchange(), transport, scheduler),
      planning_threads(NumPlanningThreads(job)) {
  if (script != nullptr) {
    model = std::make_unique<ScriptStep>(tables, device.get(), script);
  } else {
    blocks = std::make_unique<DenseBlocks>(tables.dense, ClusterMap(NumServers(job.cluster())));
    auto on_device =
        std::make_unique<DeviceModelStep>(job, tables, device.get(), BatchRoomOf(job, options));
    arenas = on_device->dense();
    model = std::move(on_device);
  }
  const bool scores = job.has_evaluate() || job.has_fae();
  if (scores && options.rank == WorkerRank(0) && !options.eval_only) {
    evaluation_threads = std::make_unique<ThreadPool>(NumPlanningThreads(job));
  }
}

WorkerRun::~WorkerRun() { session.Drain().IgnoreError(); }

// A session that fails fails the exchange; and the other way, so that no wait of either lasts.
PsSessionOptions WorkerRun::SessionWithExchange() {
  PsSessionOptions of_session = SessionOptions(job, tables, options);
  of_session.on_failure = [this](const absl::Status& error) {
    if (Exchange* const joined = exchange_to_fail.load()) joined->Fail(error);
  };
  return of_session;
}

absl::Status WorkerRun::JoinOthers(const RowSourceOptions* cached) {
  if (HasExchange(job, options)) {
    ExchangeHooks hooks;
    // What fails the exchange itself is another worker, or the way to it; or a rank that breaks the
    // rules, which it would do again.
    hooks.on_failure = [this](const absl::Status& error) {
      session.Fail(absl::IsInternal(error) ? error : MarkServerLoss(error));
    };
    hooks.on_waiting = [this] { session.ProbeAll(); };
    hooks.on_notice = [](const std::string& line) { LogLine(line); };
    ASSIGN_OR_RETURN(exchange,
                     options.make_exchange(ExchangeOptionsOf(job, options), std::move(hooks)));
    exchange_to_fail = exchange.get();
    std::string data;
    if (hot_and_cold != nullptr) data = absl::StrCat("pack ", hot_and_cold->pack().digest());
    slices = std::make_unique<DenseSlices>(tables.dense, ClusterMap(NumServers(job.cluster())),
                                           exchange.get(), std::move(data));
  }
  dense = MakeDense();
  RowSourceOptions rows = cached != nullptr ? *cached : UncachedOptions(job, tables);
  if (hot_and_cold != nullptr) {
    rows.held = HeldSet::kHot;
    rows.fixed_rows = hot_rows.get();
    rows.layout = rows.fixed_rows->layout();
  }
  rows.start_step = options.start_step;
  rows.piece_bytes = options.write_back_piece_bytes.value_or(rows.piece_bytes);
  // Where no row is held, none goes between workers.
  Exchange* const of_rows = rows.held == HeldSet::kNone ? nullptr : exchange.get();
  source = std::make_unique<RowSource>(rows, of_rows, &session, device.get());
  return absl::OkStatus();
}

std::unique_ptr<DenseParameters> WorkerRun::MakeDense() {
  if (script != nullptr) {
    return std::make_unique<ScriptState>(*tables.script_state, NumServers(job.cluster()), script,
                                         &session);
  }
  auto tensors = std::make_unique<DenseTensors>(blocks.get(), arenas, job.cluster().workers(),
                                                slices.get(), device.get(), &session);
  tensors->Initialize(job.seed());
  return tensors;
}

absl::Status WorkerRun::MarkLoss(const absl::Status& error) const {
  const absl::Status of_session = session.status();
  return of_session.message() == error.message() ? of_session : error;
}

absl::Status WorkerRun::LeaveOthers(Step last) {
  if (exchange == nullptr) return absl::OkStatus();
  // Where nothing was trained, the servers had applied `last` before: that says nothing of the
  // block with which this rank's data end, and for which others wait.
  if (last < options.start_step) exchange->Flush(kLeavePatience);
  RETURN_IF_ERROR(
      exchange->Leave([&](Exchange::Done done) { session.AwaitApplied(last, std::move(done)); }));
  return session.Drain();  // What was asked is needed no more, and is answered all the same.
}

WorkerProgress::Watched WorkerRun::Watched() const {
  // Hot and cold batches have a pipeline each, so that neither tells all.
  const StepPipeline* const only_pipeline = hot_and_cold == nullptr ? pipeline.get() : nullptr;
  return {only_pipeline,   &pipeline_times,          trainer.get(), &session,
          source->slabs(), hot_and_cold != nullptr,  device_name,   device_warning,
          device.get(),    model->is_asynchronous(), exchange.get()};
}

BatchPlanner WorkerRun::PlannerOfModel() const {
  return MakePlanner(tables, NumServers(job.cluster()), model->vector_places());
}

absl::Status WorkerRun::OpenOrder() {
  if (!job.has_fae()) {
    order = std::make_unique<PassByPass>(dataset, job.train().passes(), options.rank,
                                         job.cluster().workers(), options.start_step);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<HotAndCold> opened,
                   HotAndCold::Open(job, options.rank, options.start_step, options.data_place));
  hot_and_cold = opened.get();
  order = std::move(opened);
  ASSIGN_OR_RETURN(hot_rows, MakeHotRows(job, tables, hot_and_cold->pack()));
  return CheckHostMemory(hot_rows->layout(), "fae.budget", *device);
}

void WorkerRun::ShowBatches(WorkerProgress* progress) const {
  if (hot_and_cold != nullptr) progress->OnBatches(hot_and_cold->Stats());
}

std::unique_ptr<StepPipeline> WorkerRun::MakeTraining(std::unique_ptr<BatchReader> reader,
                                                      bool is_hot) {
  StepPipelineOptions pipeline;
  pipeline.device = device.get();
  pipeline.threads = &planning_threads;
  pipeline.depth = source->fetch_ahead() + kContextsBeyondFetched;
  pipeline.times = &pipeline_times;
  // The cold steps of a job with hot rows pull all their rows.
  if (source->slabs() != nullptr && (is_hot || hot_and_cold == nullptr)) {
    const RowSourceOptions& rows = source->slabs()->options();
    pipeline.window_steps = rows.window_steps;
    pipeline.planner = MakeRowPlanner(rows, exchange.get(), &planning_threads);
    pipeline.exchange = exchange.get();
  }
  return std::make_unique<StepPipeline>(std::move(reader), PlannerOfModel(), std::move(pipeline));
}

absl::StatusOr<StepPipeline*> WorkerRun::OpenPipeline() {
  const bool is_hot = order->reads_hot_rows();
  std::unique_ptr<StepPipeline>& of_kind = is_hot ? hot_pipeline : pipeline;
  ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader, order->OpenReader());
  if (of_kind == nullptr) {
    of_kind = MakeTraining(std::move(reader), is_hot);
  } else {
    of_kind->Restart(std::move(reader));
  }
  return of_kind.get();
}

absl::Status WorkerRun::OpenHeldOut(int64_t rows) {
  std::unique_ptr<BatchReader> reader;
  if (rows == 0 || !scored_rows.has_value()) {
    ASSIGN_OR_RETURN(reader, dataset->OpenReader(Split::kTest, WorkerRank(0), 1, Step(0)));
  }
  if (rows > 0) {
    if (!scored_rows.has_value()) {
      ASSIGN_OR_RETURN(scored_rows, KeptRows::Read(reader.get(), rows));
    }
    reader = scored_rows->OpenReader();
  }
  if (held_out != nullptr) {
    held_out->Restart(std::move(reader));
    return absl::OkStatus();
  }
  StepPipelineOptions pipeline;
  pipeline.device = device.get();
  pipeline.threads = evaluation_threads == nullptr ? &planning_threads : evaluation_threads.get();
  pipeline.depth = kEvaluationContexts;
  held_out =
      std::make_unique<StepPipeline>(std::move(reader), PlannerOfModel(), std::move(pipeline));
  return absl::OkStatus();
}

absl::Status WorkerRun::CheckMemory() {
  const absl::Status status = device->Synchronize();
  if (status.ok()) return absl::OkStatus();
  int64_t row_bytes = 0;
  if (source->slabs() != nullptr) {
    for (const CacheGroupLayout& group : source->slabs()->options().layout.groups) {
      row_bytes += (int64_t{group.capacity} + group.staging_rows) * group.row_bytes();
    }
  }
  const ModelSpec spec = DescribeModel(job);
  const ComputeOn where = device->is_host_memory() ? ComputeOn::kCpu : ComputeOn::kGpu;
  const BatchRoom room = BatchRoomOf(job, options);
  return absl::Status(
      status.code(),
      absl::StrCat(device_name, ": ", status.message(), "; of its memory, ", row_bytes,
                   hot_and_cold != nullptr ? " bytes are for the hot rows (fae.budget)"
                                           : " bytes are for the cache's rows (cache.budget)",
                   ", ", DenseParameterBytes(tables.dense, where),
                   " for the dense parameters, and ", spec.ActivationBytes(room, where),
                   " for the activations of ", room.computed, " samples and the gradients of ",
                   room.trained, " (train.eval_batch_size, train.batch_size)"));
}

}  // namespace thermocline
