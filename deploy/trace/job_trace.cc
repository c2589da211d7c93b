#include "deploy/trace/job_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace thermocline {
namespace {

// Adds the answer of a process, if it has answered.
template <typename Report>
void AddPoll(const std::string& process, const Report& report, ClockOffsets* clocks) {
  if (report.stats->clock_ns() == 0) return;
  const int64_t answered_ns = report.asked_ns + absl::ToInt64Nanoseconds(report.took);
  clocks->Add(process, {report.asked_ns, answered_ns, report.stats->clock_ns()});
}

}  // namespace

JobTrace::JobTrace(TraceMergeOptions options, TaskRunner* tasks)
    : options_(std::move(options)), tasks_(tasks) {}

void JobTrace::BeginGeneration(uint64_t generation, Step first) {
  const Step last(static_cast<int64_t>(options_.steps.last_step()));
  if (std::exchange(has_begun_, true) && first > last) return;
  absl::MutexLock lock(&mutex_);
  generation_ = generation;
  is_merged_ = false;
}

void JobTrace::OnStatus(const std::vector<ServerReport>& servers,
                        const std::vector<WorkerReport>& workers) {
  for (const ServerReport& server : servers) {
    if (!server.stats.ok()) continue;
    AddPoll(absl::StrCat("server ", server.stats->server_index()), server, &clocks_);
  }
  size_t beyond = 0;  // Workers that have trained the last step.
  for (const WorkerReport& worker : workers) {
    if (!worker.stats.ok()) continue;
    AddPoll(absl::StrCat("worker ", worker.stats->worker_rank()), worker, &clocks_);
    beyond += worker.stats->step() > static_cast<int64_t>(options_.steps.last_step()) ? 1 : 0;
  }
  if (beyond < options_.workers) return;
  uint64_t generation;
  {
    absl::MutexLock lock(&mutex_);
    if (is_merged_ || is_looking_) return;
    is_looking_ = true;
    generation = generation_;
  }
  tasks_->Run([this, generation, clocks = clocks_] { MergeIfAllAreThere(generation, clocks); });
}

void JobTrace::MergeIfAllAreThere(uint64_t generation, const ClockOffsets& clocks) {
  TraceMergeOptions options = options_;
  options.first_generation = generation;
  const bool all = HasAllTraces(options);
  std::string line;
  if (all) line = DescribeTrace(options, MergeTraces(options, clocks));
  absl::MutexLock lock(&mutex_);
  is_looking_ = false;
  if (!all || generation != generation_) return;
  is_merged_ = true;
  line_ = std::move(line);
}

std::string JobTrace::TakeLine() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(line_, "");
}

std::string JobTrace::End() {
  if (!has_begun_) return "";
  {
    absl::MutexLock lock(&mutex_);
    if (is_merged_) return std::exchange(line_, "");
  }
  return DescribeTrace(options_, MergeTraces(options_, clocks_));
}

}  // namespace thermocline
