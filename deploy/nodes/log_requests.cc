#include "deploy/nodes/log_requests.h"

#include <algorithm>
#include <utility>

#include "common/process/child_process.h"
#include "deploy/processes/local_processes.h"

namespace thermocline {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(200);  // Between looks at a log.
constexpr absl::Duration kPatience = absl::Seconds(5);

}  // namespace

void LogRequests::Take(absl::Duration now,
                       const google::protobuf::RepeatedPtrField<LogRequest>& asked) {
  std::set<uint64_t> ids;
  for (const LogRequest& request : asked) {
    ids.insert(request.id());
    if (taken_.count(request.id()) == 0) Add(now, request);
  }
  taken_ = std::move(ids);
  const auto is_dropped = [this](const Waiting& each) {
    return taken_.count(each.request.id()) == 0;
  };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_dropped), waiting_.end());
}

void LogRequests::Add(absl::Duration now, const LogRequest& request) {
  // If the process ran on another host before, this is a new process.
  const bool goes_on = request.host() == host_;
  waiting_.push_back({request, goes_on ? now + kPatience : now});
  if (!goes_on) waiting_.back().request.clear_host();
}

LogLines LogRequests::Begin(const LogRequest& request) const {
  LogLines lines;
  lines.set_id(request.id());
  lines.set_host(host_);
  lines.set_path(ProcessFile(directory_, request.process(), "log"));
  return lines;
}

std::vector<LogLines> LogRequests::Answer(absl::Duration now, bool is_over) {
  std::vector<LogLines> answers;
  std::vector<Waiting> waiting;
  for (Waiting& each : std::exchange(waiting_, {})) {
    const LogRequest& request = each.request;
    LogLines answer = Begin(request);
    uint64_t end = request.offset();
    std::vector<std::string> lines =
        request.host().empty() ? LogTail(answer.path(), static_cast<int>(request.max_lines()),
                                         /*begin=*/0, &end)
                               : NewLogLines(answer.path(), &end);
    if (lines.empty() && !is_over && now < each.until) {
      waiting.push_back(std::move(each));
      continue;
    }
    for (std::string& line : lines) answer.add_lines(std::move(line));
    answer.set_offset(end);
    answers.push_back(std::move(answer));
  }
  waiting_ = std::move(waiting);
  return answers;
}

absl::Duration LogRequests::UntilNextLook() const {
  return waiting_.empty() ? absl::InfiniteDuration() : kPeriod;
}

}  // namespace thermocline
