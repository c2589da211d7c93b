#include "worker/train/worker.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/timing.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"
#include "worker/data/dataset.h"
#include "worker/session/retry_policy.h"
#include "worker/train/label_watch.h"
#include "worker/train/run_options.h"
#include "worker/train/worker_run.h"

namespace thermocline {
namespace {

// Scores held-out rows with the model after place.step: the first `rows` of them, which are kept
// for the next time; 0: all.
absl::StatusOr<EvaluationResult> ScoreRows(WorkerRun* run, WorkerProgress* progress,
                                           const EvaluationPlace& place, int64_t rows,
                                           WorkerResult* result) {
  int64_t held_out_rows = run->dataset->rows(Split::kTest);
  if (rows > 0 && (held_out_rows < 0 || rows < held_out_rows)) held_out_rows = rows;
  RETURN_IF_ERROR(run->OpenHeldOut(rows));
  EvaluationParts parts;
  parts.held_out = run->held_out.get();
  parts.source = run->source.get();
  if (run->dense->home() == DenseParameters::Home::kServers) parts.dense = run->dense.get();
  parts.model = run->model.get();
  parts.session = &run->session;
  parts.job = &run->job;
  parts.max_samples = rows;
  parts.warn = [progress](const std::string& text) { progress->Warn(text); };
  ASSIGN_OR_RETURN(const EvaluationResult scored,
                   ScoreHeldOut(parts, place.step + 1, [&](int64_t samples) {
                     progress->OnSamples(samples, held_out_rows);
                   }));
  const BatchReader::Progress read =
      rows > 0 ? run->scored_rows->of_reader() : run->held_out->progress();
  result->held_out_bad_lines = std::max(result->held_out_bad_lines, read.bad_lines);
  if (result->first_bad_line.empty()) result->first_bad_line = read.first_bad_line;
  return scored;
}

// Scores all held-out rows. scoring: for the order of the data, at the same step; null: none.
absl::Status EvaluationPart(WorkerRun* run, WorkerProgress* progress, const EvaluationPlace& place,
                            const OrderScoring* scoring, WorkerResult* result) {
  const Stopwatch watch;
  progress->Enter("evaluating");
  ASSIGN_OR_RETURN(result->evaluation, ScoreRows(run, progress, place, /*rows=*/0, result));
  RETURN_IF_ERROR(run->model_process->CompleteEvaluation(&result->evaluation));
  result->evaluated_step = place.step;
  result->eval_s += absl::ToDoubleSeconds(watch.Elapsed());
  progress->OnEvaluation(result->evaluation, place, scoring, watch.Elapsed());
  return absl::OkStatus();
}

std::string HowRowsAreHeldOut(const Job& job) {
  const Data::Split& split = job.data().split();
  if (split.column().empty()) return "(data.test_share, data.test_path)";
  return absl::StrCat("(data.split: none has a ", split.column(), " of ", split.test_from(),
                      " or more)");
}

absl::Status NothingHeldOut(const Job& job, const char* why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the job has ", why, ", and no row of its data is held out ", HowRowsAreHeldOut(job)));
}

absl::Status EvaluateHere(WorkerRun* run, WorkerProgress* progress, const EvaluationPlace& place,
                          const OrderScoring* scoring, WorkerResult* result) {
  RETURN_IF_ERROR(EvaluationPart(run, progress, place, scoring, result));
  if (result->evaluation.samples == 0) return NothingHeldOut(run->job, "`evaluate`");
  // One that nothing depends on may have none.
  if (place.is_scheduled && run->job.data().label().may_be_missing() &&
      std::isnan(result->evaluation.logloss)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job has `evaluate`, and no held-out row has the label '",
        LearnedLabels(run->job)[DecidingTask(run->job)],
        "', which decides; hold out other rows, or let another decide (evaluate.task)"));
  }
  if (place.is_scheduled && run->job.evaluate().metric() == Evaluate::AUC &&
      run->job.evaluate().own_metric().empty() && std::isnan(result->evaluation.auc)) {
    return absl::FailedPreconditionError(
        "evaluate.metric is AUC, which is undefined here: the held-out rows have one class only; "
        "hold out other rows, or write `metric: LOGLOSS`");
  }
  return absl::OkStatus();
}

// Scores the held-out rows that the order of the data asks for at `at`.
absl::StatusOr<OrderScoring> ScoreForOrder(WorkerRun* run, WorkerProgress* progress,
                                           const EvaluationPlace& place,
                                           const BatchOrder::Break& at, bool evaluates,
                                           WorkerResult* result) {
  const Stopwatch watch;
  progress->Enter("scoring for the schedule");
  ASSIGN_OR_RETURN(const EvaluationResult scored,
                   ScoreRows(run, progress, place, at.scored_rows, result));
  if (scored.samples == 0) return NothingHeldOut(run->job, at.scored_for);
  RETURN_IF_ERROR(CheckLoss(run->job, scored, at.scored_for));
  const OrderScoring scoring = {run->order->PlaceBehind(scored.loss), watch.Elapsed()};
  if (!evaluates) progress->OnScoring(scored, place, scoring);
  return scoring;
}

absl::Status GoBehindBreak(WorkerRun* run, WorkerProgress* progress, const std::string& place) {
  RETURN_IF_ERROR(run->order->GoTo(place));
  run->ShowBatches(progress);
  return absl::OkStatus();
}

// Where training stops for a moment: rank 0 scores what is due, and all wait for what follows.
// False: training ends.
absl::StatusOr<bool> EvaluateAndDecide(WorkerRun* run, WorkerProgress* progress,
                                       const EvaluationPlace& place, WorkerResult* result) {
  const BatchOrder::Break at = run->order->next_break();
  const bool evaluates = run->job.has_evaluate() && (place.is_scheduled || !place.is_break);
  const bool scores = place.is_break && at.is_scored;
  if (place.is_break && !scores) {
    RETURN_IF_ERROR(GoBehindBreak(run, progress, run->order->PlaceBehind(std::nullopt)));
  }
  if (!evaluates && !scores) return true;
  OrderScoring scoring;
  if (run->options.rank == WorkerRank(0)) {
    if (scores) {
      ASSIGN_OR_RETURN(scoring, ScoreForOrder(run, progress, place, at, evaluates, result));
    }
    if (evaluates) {
      RETURN_IF_ERROR(EvaluateHere(run, progress, place, scores ? &scoring : nullptr, result));
    }
    progress->Enter("waiting for the decision");
  } else {
    progress->Enter("waiting for the evaluation");
  }
  LauncherDecision decision;
  if (run->options.decisions != nullptr) {
    decision = run->options.decisions->Await(place.step);
    scoring.data_place = decision.data_place;
  }
  if (scores && decision.goes_on) {
    RETURN_IF_ERROR(GoBehindBreak(run, progress, scoring.data_place));
  }
  return decision.goes_on;
}

// Reads the dense parameters with which the run begins, unless every step and evaluation does.
absl::Status LoadDense(WorkerRun* run) {
  const bool begins_anew = run->options.start_step == Step(0) && !run->job.has_init();
  if (begins_anew || run->dense->home() == DenseParameters::Home::kServers) {
    return absl::OkStatus();
  }
  StepTasks tasks;
  run->dense->Load(run->options.start_step, /*with_state=*/!run->options.eval_only, &tasks);
  return RunAll(&tasks, run->exchange.get());
}

absl::Status TrainPart(WorkerRun* run, WorkerProgress* progress, WorkerResult* result) {
  const WorkerOptions& options = run->options;
  Trainer::Parts parts;
  run->ShowBatches(progress);
  parts.order = run->order.get();
  ASSIGN_OR_RETURN(parts.pipeline, run->OpenPipeline());
  parts.open_pipeline = [run] { return run->OpenPipeline(); };
  parts.source = run->source.get();
  parts.dense = run->dense.get();
  parts.model = run->model.get();
  parts.session = &run->session;
  parts.exchange = run->exchange.get();
  parts.named_checkpoints = options.named_checkpoints;
  LabelWatch labels(run->job, run->dataset, progress, options.named_checkpoints);
  if (run->job.data().label().may_be_missing()) parts.labels = &labels;
  absl::Duration evaluating;
  if (run->job.has_evaluate() || !run->order->next_break().ends_training) {
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
  if (parts.labels != nullptr) RETURN_IF_ERROR(labels.End());
  RETURN_IF_ERROR(run->LeaveOthers(Step(run->trainer->steps()) - 1));
  result->train_s = absl::ToDoubleSeconds(watch.Elapsed() - evaluating);
  result->steps = run->trainer->steps();
  result->samples = run->trainer->samples();
  result->new_samples = run->trainer->new_samples();
  result->skipped_steps = run->trainer->skipped_steps();
  // Packing has counted what is malformed; packs have none of it.
  if (run->hot_and_cold != nullptr) return absl::OkStatus();
  const BatchReader::Progress read = run->pipeline->progress();
  result->bad_lines = read.bad_lines;
  result->repeated_headers = read.repeated_headers;
  if (!read.first_bad_line.empty()) result->first_bad_line = read.first_bad_line;
  result->padding_ids = read.padding_ids;
  return absl::OkStatus();
}

absl::Status TrainAndScore(WorkerRun* run, WorkerProgress* progress, WorkerResult* result) {
  const WorkerOptions& options = run->options;
  RETURN_IF_ERROR(LoadDense(run));
  if (!options.eval_only) RETURN_IF_ERROR(TrainPart(run, progress, result));
  if (options.named_checkpoints != nullptr) options.named_checkpoints->EndTraining();
  EvaluationPlace place;
  place.step = Step(result->steps) - 1;
  if (run->trainer != nullptr) {
    place.pass = run->trainer->pass();
    place.learning_rate = run->trainer->learning_rate();  // A script may have set its own.
  } else if (place.step >= Step(0)) {
    place.learning_rate = LearningRateAt(run->job.train().learning_rate(), place.step);
  }
  bool is_due =
      options.rank == WorkerRank(0) && (options.eval_only || result->evaluated_step != place.step);
  RETURN_IF_ERROR(run->model_process->EndTraining());
  while (true) {
    ASSIGN_OR_RETURN(const bool scores, run->model_process->WantsScores(is_due));
    if (!scores) break;
    RETURN_IF_ERROR(EvaluationPart(run, progress, place, /*scoring=*/nullptr, result));
    is_due = false;
    if (result->evaluation.samples == 0 && !run->job.data().split().column().empty()) {
      progress->Warn(absl::StrCat("no row is held out ", HowRowsAreHeldOut(run->job)));
    }
  }
  progress->Enter("ending");
  return run->model_process->AwaitEnd();
}

ScriptHooks HooksOf(WorkerRun* run, WorkerProgress* progress) {
  ScriptHooks hooks;
  hooks.on_wait = [run] {
    run->session.ProbeAll();
    return run->session.status();
  };
  hooks.on_long_wait = [progress](absl::string_view what, absl::Duration elapsed, bool is_over) {
    progress->OnScriptWait(what, elapsed, is_over);
  };
  hooks.on_done = [run, progress] {
    if (run->trainer != nullptr) progress->OnTrained(Step(run->trainer->steps()) - 1);
  };
  hooks.on_warning = [progress](const std::string& text) { progress->Warn(text); };
  return hooks;
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
  std::unique_ptr<ScriptRun> script;  // Null: the worker computes the model.
  if (job.has_worker()) {
    ASSIGN_OR_RETURN(script, ScriptRun::Start(job, ResolveTables(job), options.start_step,
                                              {options.trace_directory, options.generation}));
  }
  RowSourceOptions cached_options;
  StaticRows static_rows;  // None where the cache's policy is another.
  const bool caches = job.has_cache() && !options.eval_only;
  if (caches) {
    ASSIGN_OR_RETURN(cached_options, CachedOptions(job, ResolveTables(job), options));
    RETURN_IF_ERROR(CheckHostMemory(cached_options.layout, "cache.budget", *device.device));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> dataset,
                   Dataset::Open(
                       job,
                       [progress](absl::string_view what, const ScanProgress& scan) {
                         progress->OnScan(what, scan);
                       },
                       options.data_index));
  const bool begins = options.start_step == Step(0) && !options.eval_only;
  if (begins && options.rank == WorkerRank(0)) {
    for (const std::string& doubt : dataset->Doubts()) progress->Warn(doubt);
  }
  if (caches && job.cache().policy() == Cache::STATIC) {
    ASSIGN_OR_RETURN(static_rows, OpenStaticRows(job, ResolveTables(job), &cached_options));
  }
  WorkerRun run(job, options, dataset.get(), std::move(device), script.get(), transport, scheduler);
  if (script != nullptr) script->set_hooks(HooksOf(&run, progress));
  if (!options.eval_only) RETURN_IF_ERROR(run.OpenOrder());
  RETURN_IF_ERROR(run.JoinOthers(caches ? &cached_options : nullptr));
  RETURN_IF_ERROR(run.CheckMemory());
  WorkerResult result;
  result.steps = options.start_step.value();
  progress->Watch(run.Watched());
  const absl::Cleanup stop_watching = [progress] { progress->Watch({}); };
  const absl::Status status = TrainAndScore(&run, progress, &result);
  if (IsScriptFailure(status)) {
    progress->OnScriptFailure(Step(run.trainer == nullptr ? result.steps : run.trainer->steps()));
  }
  if (!status.ok()) {
    run.model_process->OnError(status);
    return status;
  }
  result.bad_lines += result.held_out_bad_lines;
  result.stats = progress->Stats();
  return result;
}

}  // namespace thermocline
