#include "deploy/trace/clock_offsets.h"

namespace thermocline {

int64_t ClockOffsets::ErrorAt(const Best& best, int64_t at_ns) {
  const double drift_ns = kMaxClockDrift * static_cast<double>(std::llabs(at_ns - best.at_ns));
  return best.offset.error_ns + static_cast<int64_t>(drift_ns);
}

void ClockOffsets::Add(const std::string& process, const ClockPoll& poll) {
  Best polled;
  polled.at_ns = poll.asked_ns + (poll.answered_ns - poll.asked_ns) / 2;
  polled.offset = {poll.clock_ns - polled.at_ns, (poll.answered_ns - poll.asked_ns + 1) / 2};
  const auto [found, is_first] = best_.emplace(process, polled);
  if (is_first) return;
  const int64_t error_ns = ErrorAt(found->second, polled.at_ns);
  const int64_t between_ns = polled.offset.offset_ns - found->second.offset.offset_ns;
  const bool is_other_clock = std::llabs(between_ns) > error_ns + polled.offset.error_ns;
  if (is_other_clock || polled.offset.error_ns <= error_ns) found->second = polled;
}

bool ClockOffsets::Find(const std::string& process, int64_t at_ns, ClockOffset* offset) const {
  const auto found = best_.find(process);
  if (found == best_.end()) return false;
  *offset = {found->second.offset.offset_ns, ErrorAt(found->second, at_ns)};
  return true;
}

}  // namespace thermocline
