#include "deploy/job/stall_watch.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "deploy/report/worker_totals.h"

namespace thermocline {

ServerWork WorkOf(const ServerStats& stats) {
  uint64_t keys_pulled = 0;
  for (const TableStats& table : stats.tables()) keys_pulled += table.keys_pulled();
  return {stats.pushes_accepted(), keys_pulled, stats.loaded_rows(), stats.replayed_chunks()};
}

StallWatch::StallWatch(size_t num_servers)
    : seen_(num_servers),
      answers_(num_servers, {"", absl::UnknownError("not asked")}),
      refused_(num_servers),
      refused_lately_(num_servers) {}

void StallWatch::Look(const std::vector<ServerReport>& servers,
                      const std::vector<WorkerReport>& workers, absl::Duration now) {
  CHECK_EQ(servers.size(), seen_.size());
  answers_ = servers;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (!servers[i].stats.ok()) continue;
    reached_ = std::max(reached_, Step(servers[i].stats->complete_through()));
    // A restarted server counts from 0.
    const uint64_t refused = servers[i].stats->requests_refused();
    refused_lately_[i] = refused < refused_[i] ? refused : refused - refused_[i];
    refused_[i] = refused;
    const ServerWork work = WorkOf(*servers[i].stats);
    if (work == seen_[i]) continue;
    seen_[i] = work;
    last_advance_ = now;
  }
  phases_.clear();
  waits_.clear();
  for (const WorkerReport& worker : workers) {
    if (!worker.stats.ok()) continue;
    const WorkerPhase& phase = worker.stats->phase();
    phases_[worker.stats->worker_rank()] = phase;
    for (const WorkerWait& wait : worker.stats->waits()) {
      waits_.push_back({worker.stats->worker_rank(), wait});
    }
    uint64_t& seen = seen_of_workers_[worker.stats->worker_rank()];
    if (phase.advances() != seen) last_advance_ = now;
    seen = phase.advances();
  }
  std::sort(waits_.begin(), waits_.end(), [](const Wait& a, const Wait& b) {
    const auto place = [](const Wait& wait) {
      return std::make_tuple(wait.what.needed_step(), wait.what.kind(), wait.rank);
    };
    return place(a) < place(b);
  });
}

const StallWatch::Wait* StallWatch::FirstWait(std::optional<uint32_t> of) const {
  for (const Wait& wait : waits_) {
    if (!of.has_value() || (wait.what.has_worker() && wait.what.worker() == *of)) return &wait;
  }
  return nullptr;
}

std::string StallWatch::WaitFor(uint32_t rank) const {
  const Wait* const wait = FirstWait(rank);
  if (wait == nullptr) return "";
  return absl::StrCat("worker ", wait->rank, " waited for the ", WhatOf(wait->what));
}

bool StallWatch::CanGoOn(uint32_t server) const {
  return server < answers_.size() && ReasonToWaitFor(server).empty() &&
         answers_[server].stats->configured();
}

int64_t StallWatch::AcceptedThrough(uint32_t rank) const {
  int64_t through = std::numeric_limits<int64_t>::max();
  for (const ServerReport& answer : answers_) {
    if (!answer.stats.ok()) continue;
    const auto& accepted = answer.stats->accepted_through();
    const int index = static_cast<int>(rank);
    through = std::min<int64_t>(through, index < accepted.size() ? accepted[index] : -1);
  }
  return through;
}

std::vector<uint32_t> StallWatch::Behind(absl::Span<const uint32_t> ranks) const {
  if (const Wait* const first = FirstWait()) {
    const WorkerWait& wait = first->what;
    if (wait.has_server() && !CanGoOn(wait.server())) return {};
    if (wait.has_worker() && std::count(ranks.begin(), ranks.end(), wait.worker()) > 0) {
      return {wait.worker()};
    }
  }
  int64_t oldest = std::numeric_limits<int64_t>::max();
  for (const uint32_t rank : ranks) oldest = std::min(oldest, AcceptedThrough(rank));
  std::vector<uint32_t> behind;
  for (const uint32_t rank : ranks) {
    if (AcceptedThrough(rank) == oldest) behind.push_back(rank);
  }
  return behind;
}

std::string StallWatch::ReasonToWaitFor(size_t server) const {
  const absl::StatusOr<ServerStats>& stats = answers_[server].stats;
  if (!stats.ok()) return absl::StrCat("does not answer: ", stats.status().message());
  if (!stats->push_log_full().empty()) {
    return absl::StrCat("has no room for its push log: ", stats->push_log_full());
  }
  if (refused_lately_[server] == 0) return "";
  return absl::StrCat("has no room: ", refused_lately_[server],
                      " requests were refused since the look before");
}

std::vector<size_t> StallWatch::ServersWaitedFor() const {
  std::vector<size_t> servers;
  for (size_t i = 0; i < answers_.size(); ++i) {
    if (!ReasonToWaitFor(i).empty()) servers.push_back(i);
  }
  return servers;
}

std::string StallWatch::WhoIsWaitedFor(absl::Span<const uint32_t> ranks) const {
  std::vector<std::string> reasons;
  for (const size_t server : ServersWaitedFor()) {
    reasons.push_back(absl::StrCat("server ", server, " at ", answers_[server].address, " ",
                                   ReasonToWaitFor(server)));
  }
  const Wait* const first = FirstWait();
  if (first != nullptr && first->what.has_server()) {
    const uint32_t server = first->what.server();
    if (server < answers_.size() && ReasonToWaitFor(server).empty()) {
      reasons.push_back(absl::StrCat("server ", server, " at ", answers_[server].address,
                                     " is waited for: ", Describe(first->rank, first->what),
                                     CanGoOn(server) ? "" : "; it recovers"));
    }
  }
  const bool any_answer = std::any_of(answers_.begin(), answers_.end(),
                                      [](const ServerReport& answer) { return answer.stats.ok(); });
  if (!any_answer) return absl::StrJoin(reasons, "; ");
  for (const uint32_t rank : Behind(ranks)) {
    std::vector<std::string> why;
    if (first != nullptr && first->what.has_worker() && first->what.worker() == rank) {
      why.push_back(Describe(first->rank, first->what));
    }
    const int64_t through = AcceptedThrough(rank);
    why.push_back(through < 0 ? "it has pushed nothing"
                              : absl::StrCat("its last push is of step ", through));
    const auto phase = phases_.find(rank);
    if (phase != phases_.end()) why.push_back(absl::StrCat("it is ", phase->second.name()));
    reasons.push_back(absl::StrCat("worker ", rank, " is waited for: ", absl::StrJoin(why, "; ")));
  }
  return absl::StrJoin(reasons, "; ");
}

}  // namespace thermocline
