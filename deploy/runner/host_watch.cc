#include "deploy/runner/host_watch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(10);
constexpr int kWindows = 3;
constexpr double kFactor = 2;
constexpr double kShareOfStep = 0.2;
constexpr double kLateAnswerS = 0.1;  // A busy host's are in time within a few hundredths.
// Looks come every second; a process that ends or is busy for a moment misses fewer.
constexpr int kSilentLooks = 5;

// What a worker does beside the training thread, and what it waits for others in.
bool IsOwnWork(const std::string& stage) {
  return !absl::StrContains(stage, "(ahead)") && stage != "wait for rows" &&
         !absl::StartsWith(stage, "push ");
}

double Rounded(double seconds) { return std::round(seconds * 1e5) / 1e5; }

}  // namespace

std::string Describe(const SlowHost& slow) {
  const char* const role = slow.role == ProcessRole::kServer ? "servers" : "workers";
  if (!slow.is_slow)
    return absl::StrCat("host ", slow.host, ": its ", role, " are not slow any more");
  const char* const what = slow.what == SlowHost::What::kWork ? " s of their own for a step"
                                                              : " s to answer the controller";
  return absl::StrCat("host ", slow.host, " is slow: its ", role, " take ", Rounded(slow.own_s),
                      what, ", those of other hosts ", Rounded(slow.others_s), " s; a step takes ",
                      Rounded(slow.step_s), " s");
}

void HostWatch::BeginGeneration() {
  running_.clear();
  begin_.clear();
  answers_.clear();
  hosts_.clear();
  at_.clear();
  unanswered_.clear();
}

void HostWatch::OnStart(const ProcessId& id, const std::string& host) {
  running_[{id.role, id.index}] = {id, host};
}

void HostWatch::OnEnd(const ProcessId& id) {
  const auto found = running_.find({id.role, id.index});
  if (found != running_.end() && found->second.id == id) running_.erase(found);
}

const std::string& HostWatch::HostOf(ProcessRole role, size_t index) const {
  static const std::string& none = *new std::string;
  const auto found = running_.find({role, index});
  return found == running_.end() ? none : found->second.host;
}

void HostWatch::TakeAnswer(const std::string& address, const absl::Status& answer,
                           absl::Duration took, Findings* findings) {
  if (const auto found = at_.find(address); found != at_.end()) {
    if (running_.count(found->second) == 0) return;  // It has ended.
    // It has answered before and does not listen any more: its end is about to be seen.
    if (absl::StrContains(answer.message(), "Connection refused")) return;
    Answers& answers = answers_[found->second];
    answers.total_s += absl::ToDoubleSeconds(took);
    ++answers.count;
  }
  if (answer.ok() || address.empty()) {
    unanswered_.erase(address);
  } else if (++unanswered_[address] == kSilentLooks) {
    findings->silent.push_back(absl::StrCat("the controller gets no answer from ", WhoIsAt(address),
                                            ": ", answer.message()));
  }
}

std::string HostWatch::WhoIsAt(const std::string& address) const {
  const auto found = at_.find(address);
  if (found == at_.end()) return "a worker";
  const auto& [role, index] = found->second;
  const std::string& host = HostOf(role, index);
  return absl::StrCat(ProcessName(role, index), host.empty() ? "" : " on host ", host);
}

HostWatch::Findings HostWatch::Look(absl::Duration now, const std::vector<ServerReport>& servers,
                                    const std::vector<WorkerReport>& workers) {
  Findings findings;
  std::map<Key, Totals> end;
  for (size_t i = 0; i < servers.size(); ++i) {
    at_[servers[i].address] = {ProcessRole::kServer, i};
    TakeAnswer(servers[i].address, servers[i].stats.status(), servers[i].took, &findings);
    if (!servers[i].stats.ok()) continue;
    Totals& totals = end[{ProcessRole::kServer, i}];
    totals.steps = servers[i].stats->complete_through();
    for (const StageStats& stage : servers[i].stats->stages()) totals.own_s += stage.total_s();
  }
  for (const WorkerReport& worker : workers) {
    const bool answers = worker.stats.ok();
    if (answers) at_[worker.address] = {ProcessRole::kWorker, worker.stats->worker_rank()};
    TakeAnswer(worker.address, worker.stats.status(), worker.took, &findings);
    if (!answers) continue;
    Totals& totals = end[{ProcessRole::kWorker, worker.stats->worker_rank()}];
    for (const StageStats& stage : worker.stats->stages()) {
      if (stage.stage() == "forward") totals.steps = static_cast<int64_t>(stage.count());
      if (IsOwnWork(stage.stage())) totals.own_s += stage.total_s();
    }
  }
  if (now - begin_at_ < kWindow) return findings;
  const double seconds = absl::ToDoubleSeconds(now - begin_at_);
  for (const ProcessRole role : {ProcessRole::kServer, ProcessRole::kWorker}) {
    TakeWindow(role, seconds, end, &findings.changes);
  }
  begin_at_ = now;
  begin_ = std::move(end);
  answers_.clear();
  return findings;
}

void HostWatch::TakeWindow(ProcessRole role, double seconds, const std::map<Key, Totals>& end,
                           std::vector<SlowHost>* changes) {
  std::map<std::string, std::vector<double>> work, answers;
  int64_t most_steps = 0;
  for (const auto& [key, totals] : end) {
    const auto before = begin_.find(key);
    if (key.first != role || before == begin_.end()) continue;
    const int64_t steps = totals.steps - before->second.steps;
    const double own_s = totals.own_s - before->second.own_s;
    if (steps <= 0 || own_s < 0) continue;  // It waits, or was started again.
    work[HostOf(role, key.second)].push_back(own_s / static_cast<double>(steps));
    most_steps = std::max(most_steps, steps);
  }
  if (most_steps == 0) return;
  for (const auto& [key, each] : answers_) {
    if (key.first == role) answers[HostOf(role, key.second)].push_back(each.total_s / each.count);
  }
  const double step_s = seconds / static_cast<double>(most_steps);
  Compare(role, What::kWork, work, step_s, changes);
  Compare(role, What::kAnswers, answers, step_s, changes);
}

void HostWatch::Compare(ProcessRole role, What what,
                        const std::map<std::string, std::vector<double>>& values, double step_s,
                        std::vector<SlowHost>* changes) {
  if (values.size() < 2) return;
  std::map<std::string, double> means;
  for (const auto& [host, of_host] : values) {
    double sum = 0;
    for (const double value : of_host) sum += value;
    means[host] = sum / static_cast<double>(of_host.size());
  }
  const double least_s = std::max(kShareOfStep * step_s, what == What::kWork ? 0 : kLateAnswerS);
  for (const auto& [host, mean] : means) {
    std::vector<double> others;
    for (const auto& [other, value] : means) {
      if (other != host) others.push_back(value);
    }
    std::nth_element(others.begin(), others.begin() + static_cast<ptrdiff_t>(others.size() / 2),
                     others.end());
    const double median = others[others.size() / 2];
    const bool is_slow = mean > kFactor * median && mean - median > least_s;
    State& state = hosts_[{role, what, host}];
    state.last = {host, role, what, is_slow, mean, median, step_s};
    state.contrary_windows = is_slow == state.is_slow ? 0 : state.contrary_windows + 1;
    if (state.contrary_windows < kWindows) continue;
    state.is_slow = is_slow;
    state.contrary_windows = 0;
    changes->push_back(state.last);
  }
}

std::vector<SlowHost> HostWatch::slow() const {
  std::vector<SlowHost> slow;
  for (const auto& [key, state] : hosts_) {
    if (state.is_slow) slow.push_back(state.last);
  }
  for (SlowHost& each : slow) each.is_slow = true;
  return slow;
}

}  // namespace thermocline
