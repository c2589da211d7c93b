#include "deploy/report/worker_totals.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

const char* NameOf(WorkerWait::Kind kind) {
  switch (kind) {
    case WorkerWait::KEYS:
      return "keys";
    case WorkerWait::PLANS:
      return "plans";
    case WorkerWait::SERVER_ROWS:
    case WorkerWait::ROWS:
      return "rows";
    case WorkerWait::GRADIENTS:
      return "gradients";
    case WorkerWait::DENSE_GRADIENTS:
      return "dense gradients";
    case WorkerWait::DENSE_WEIGHTS:
      return "dense weights";
    case WorkerWait::SERVER_ACKNOWLEDGEMENT:
      return "acknowledgement of the push";
    default:
      return "answer";
  }
}

template <typename T>
void SubtractByRank(const std::vector<T>& before, std::vector<T>* of_ranks) {
  const size_t ranks = std::min(before.size(), of_ranks->size());
  for (size_t rank = 0; rank < ranks; ++rank) (*of_ranks)[rank] -= before[rank];
}

void SetOfRank(size_t rank, uint64_t value, std::vector<uint64_t>* of_ranks) {
  of_ranks->resize(std::max(of_ranks->size(), rank + 1));
  (*of_ranks)[rank] = value;
}

}  // namespace

WorkerTotals WorkerTotals::Since(const WorkerTotals& before) const {
  WorkerTotals since = *this;
  since.step -= before.step;
  since.seconds -= before.seconds;
  since.bytes_pulled -= before.bytes_pulled;
  since.bytes_pushed -= before.bytes_pushed;
  SubtractByRank(before.bytes_to_device, &since.bytes_to_device);
  SubtractByRank(before.bytes_from_device, &since.bytes_from_device);
  since.hits -= before.hits;
  since.keys -= before.keys;
  since.bytes_exchanged -= before.bytes_exchanged;
  SubtractByRank(before.wait_for_rank_s, &since.wait_for_rank_s);
  for (const auto& [phase, wait_s] : before.wait_in_phase_s) since.wait_in_phase_s[phase] -= wait_s;
  return since;
}

std::optional<double> WorkerTotals::hit_rate() const {
  if (!has_cache || keys == 0) return std::nullopt;
  return static_cast<double>(hits) / static_cast<double>(keys);
}

WorkerTotals SumOf(const std::vector<WorkerReport>& workers) {
  WorkerTotals sum;
  for (const WorkerReport& worker : workers) {
    if (!worker.stats.ok()) continue;
    const WorkerStats& stats = *worker.stats;
    ++sum.workers;
    sum.step = std::max<int64_t>(sum.step, stats.step());
    sum.seconds = std::max(sum.seconds, stats.uptime_s());
    sum.bytes_pulled += stats.bytes_pulled();
    sum.bytes_pushed += stats.bytes_pushed();
    SetOfRank(stats.worker_rank(), stats.bytes_to_device(), &sum.bytes_to_device);
    SetOfRank(stats.worker_rank(), stats.bytes_from_device(), &sum.bytes_from_device);
    if (stats.has_cache()) {
      const CacheStats& cache = stats.cache();
      sum.has_cache = true;
      sum.hits += cache.hits();
      sum.keys += cache.hits() + cache.loaded() + cache.bypassed();
    }
    if (!stats.has_exchange()) continue;
    sum.has_exchange = true;
    for (const auto& phase : stats.exchange().phases()) {
      sum.bytes_exchanged += phase.bytes_sent();
      sum.wait_in_phase_s[phase.name()] += phase.wait_s();
    }
    const auto& waits = stats.exchange().wait_for_rank_s();
    sum.wait_for_rank_s.resize(
        std::max<size_t>(sum.wait_for_rank_s.size(), static_cast<size_t>(waits.size())));
    for (int rank = 0; rank < waits.size(); ++rank) sum.wait_for_rank_s[rank] += waits[rank];
  }
  return sum;
}

std::optional<SlowestWorker> SlowestOf(const WorkerTotals& totals) {
  const std::vector<double>& waits = totals.wait_for_rank_s;
  const auto slowest = std::max_element(waits.begin(), waits.end());
  if (slowest == waits.end() || *slowest <= 0 || totals.workers < 2) return std::nullopt;
  const double others_s = (totals.workers - 1) * totals.seconds;
  return SlowestWorker{static_cast<uint32_t>(slowest - waits.begin()),
                       others_s > 0 ? std::min(1.0, *slowest / others_s) : 0};
}

std::string Describe(const WorkerTotals& totals) {
  std::string text;
  if (const auto rate = totals.hit_rate()) {
    absl::StrAppend(&text, absl::StrFormat("cache hits %.1f%%, ", 100 * *rate));
  }
  if (totals.has_exchange) {
    absl::StrAppend(&text, FormatBytes(totals.bytes_exchanged), " exchanged, ");
  }
  absl::StrAppend(&text, FormatBytes(totals.bytes_pulled), " from servers, ",
                  FormatBytes(totals.bytes_pushed), " to them");
  if (const auto slowest = SlowestOf(totals)) {
    absl::StrAppend(&text, absl::StrFormat("; the others waited %.0f%% of the time for worker %d, "
                                           "the slowest",
                                           100 * slowest->share, slowest->rank));
  }
  return text;
}

std::string WhatOf(const WorkerWait& wait) {
  return absl::StrCat(NameOf(wait.kind()), " of step ", wait.step());
}

std::string Describe(uint32_t rank, const WorkerWait& wait) {
  const std::string whose = wait.has_server() ? absl::StrCat("server ", wait.server())
                                              : absl::StrCat("worker ", wait.worker());
  return absl::StrCat("worker ", rank, " has waited ", std::llround(wait.seconds()), "s for the ",
                      WhatOf(wait), " of ", whose,
                      wait.last_error().empty() ? "" : absl::StrCat(" (", wait.last_error(), ")"));
}

}  // namespace thermocline
