#include "worker/fae/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

constexpr int kCold = 0;
constexpr int kHot = 1;

int64_t Trained(const ScheduleState& state, int kind) {
  return static_cast<int64_t>(kind == kHot ? state.hot_batches() : state.cold_batches());
}

int64_t Left(const PackCounts& counts, const ScheduleState& state, int kind) {
  return counts.batches[kind] - Trained(state, kind);
}

// Steps of the whole job.
int64_t AllSteps(const Job& job, const PackCounts& counts) {
  const int64_t steps = int64_t{job.train().passes()} * (counts.batches[0] + counts.batches[1]);
  if (job.train().max_steps() == 0) return steps;
  return std::min(steps, static_cast<int64_t>(job.train().max_steps()));
}

void TakeLoss(const Fae::Schedule& policy, double logloss, ScheduleState* state) {
  const bool has_before = state->has_logloss();
  const double before = state->logloss();
  state->set_logloss(logloss);
  if (!has_before) return;
  state->set_falls(logloss < before ? state->falls() + 1 : 0);
  if (logloss > before) {
    state->set_rate(std::max(policy.min_rate(), state->rate() / 2));
  } else if (state->falls() >= policy.falls_to_double()) {
    state->set_rate(std::min(policy.max_rate(), state->rate() * 2));
    state->set_falls(0);
  }
}

}  // namespace

ScheduleState FirstSchedule(const Job& job, const PackCounts& counts) {
  ScheduleState state;
  state.set_is_hot(counts.batches[kHot] > 0);
  state.set_rate(job.fae().schedule().rate());
  return state;
}

PackStretch StretchOf(const Job& job, const PackCounts& counts, const ScheduleState& state) {
  const int kind = state.is_hot() ? kHot : kCold;
  const int64_t all_steps = AllSteps(job, counts);
  PackStretch stretch;
  stretch.is_hot = state.is_hot();
  stretch.first_batch = Trained(state, kind);
  stretch.first_step = Step(state.first_step());
  stretch.pass = state.pass();
  stretch.begins_pass = state.hot_batches() + state.cold_batches() == 0;
  const double of_rate = std::ceil(state.rate() / 100 * static_cast<double>(counts.batches[kind]));
  const int64_t left = Left(counts, state, kind);
  stretch.num_batches = Left(counts, state, 1 - kind) == 0
                            ? left
                            : std::min(left, std::max<int64_t>(1, static_cast<int64_t>(of_rate)));
  stretch.num_batches = std::clamp<int64_t>(all_steps - state.first_step(), 0, stretch.num_batches);
  const double steps = static_cast<double>(std::max<int64_t>(1, all_steps));
  stretch.progress_before = static_cast<double>(state.first_step()) / steps;
  stretch.progress_through = static_cast<double>(state.first_step() + stretch.num_batches) / steps;
  return stretch;
}

ScheduleState NextSchedule(const Job& job, const PackCounts& counts, const ScheduleState& state,
                           std::optional<double> logloss) {
  const int64_t trained = StretchOf(job, counts, state).num_batches;
  ScheduleState next = state;
  next.set_first_step(state.first_step() + trained);
  if (state.is_hot()) {
    next.set_hot_batches(state.hot_batches() + trained);
  } else {
    next.set_cold_batches(state.cold_batches() + trained);
  }
  if (Left(counts, next, kHot) == 0 && Left(counts, next, kCold) == 0) {
    next.set_pass(state.pass() + 1);
    next.set_hot_batches(0);
    next.set_cold_batches(0);
    next.set_is_hot(counts.batches[kHot] > 0);
  } else if (Left(counts, next, state.is_hot() ? kCold : kHot) > 0) {
    next.set_is_hot(!state.is_hot());
  }
  if (logloss.has_value()) TakeLoss(job.fae().schedule(), *logloss, &next);
  return next;
}

bool ScoresAfter(const Job& job, const PackCounts& counts, const ScheduleState& state) {
  if (job.fae().schedule().fixed()) return false;
  const ScheduleState next = NextSchedule(job, counts, state, std::nullopt);
  return next.is_hot() != state.is_hot() && StretchOf(job, counts, next).num_batches > 0;
}

absl::StatusOr<ScheduleState> ScheduleAt(const Job& job, const PackCounts& counts,
                                         ScheduleState state, Step step) {
  if (Trained(state, kCold) < 0 || Trained(state, kHot) < 0 || state.first_step() < 0 ||
      !std::isfinite(state.rate())) {
    return absl::DataLossError(absl::StrCat("the checkpoint's place in the pack is none: step ",
                                            state.first_step(), ", ", state.hot_batches(),
                                            " hot and ", state.cold_batches(),
                                            " cold batches, rate ", state.rate()));
  }
  if (Left(counts, state, kCold) < 0 || Left(counts, state, kHot) < 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the checkpoint was made with another pack (calibration.directory): ", state.hot_batches(),
        " hot and ", state.cold_batches(),
        " cold batches of a pass were trained, and this one has ", counts.batches[kHot], " and ",
        counts.batches[kCold]));
  }
  while (true) {
    const PackStretch stretch = StretchOf(job, counts, state);
    const Step end = stretch.first_step + stretch.num_batches;
    const ScheduleState next = NextSchedule(job, counts, state, std::nullopt);
    const bool is_last = StretchOf(job, counts, next).num_batches == 0;
    if (step >= end && !is_last && !ScoresAfter(job, counts, state)) {
      state = next;
      continue;
    }
    if (stretch.first_step <= step && step <= end) return state;
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", step.value(), " is not within the batches that are trained from step ",
        stretch.first_step.value(), " to step ", (end - 1).value(),
        ": the checkpoint was made with another pack (calibration.directory), or with another "
        "fae.schedule"));
  }
}

PackStretch FromStep(const PackStretch& stretch, Step step) {
  const int64_t trained = step.value() - stretch.first_step.value();
  CHECK_GE(trained, 0);
  CHECK_LE(trained, stretch.num_batches);
  PackStretch rest = stretch;
  if (trained == 0) return rest;
  rest.first_batch += trained;
  rest.num_batches -= trained;
  rest.first_step = step;
  rest.begins_pass = false;
  rest.progress_before += (stretch.progress_through - stretch.progress_before) *
                          static_cast<double>(trained) / static_cast<double>(stretch.num_batches);
  return rest;
}

BatchReader::Skipped SkippedBefore(const Job& job, const PackCounts& counts,
                                   const ScheduleState& state, const PackStretch& rest,
                                   WorkerRank rank, uint32_t num_workers) {
  BatchReader::Skipped skipped;
  const auto add = [&](int64_t times, int64_t batch_rows) {
    const int64_t slice = SliceBegin(batch_rows, int64_t{rank.value()} + 1, num_workers) -
                          SliceBegin(batch_rows, rank.value(), num_workers);
    skipped.samples += times * slice;
    skipped.global_samples += times * batch_rows;
  };
  // So many times the first `batches` of a pass's batches of a kind.
  const auto add_batches = [&](int64_t times, int kind, int64_t batches) {
    const int64_t batch_size = job.train().batch_size();
    const int64_t rows = std::min(batches * batch_size, counts.rows[kind]);
    skipped.steps += times * batches;
    add(times * (rows / batch_size), batch_size);
    add(times, rows % batch_size);
  };
  for (const int kind : {kCold, kHot}) {
    add_batches(state.pass(), kind, counts.batches[kind]);
    const bool is_own = rest.is_hot == (kind == kHot);
    add_batches(1, kind, is_own ? rest.first_batch : Trained(state, kind));
  }
  return skipped;
}

}  // namespace thermocline
