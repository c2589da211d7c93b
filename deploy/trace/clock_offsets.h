// How far the clocks of a job's processes are from the controller's, from the polls of their stats.
#ifndef THERMOCLINE_DEPLOY_TRACE_CLOCK_OFFSETS_H_
#define THERMOCLINE_DEPLOY_TRACE_CLOCK_OFFSETS_H_

#include <cstdint>
#include <map>
#include <string>

namespace thermocline {

// A clock of another process minus the controller's, both monotonic: within error_ns of offset_ns.
struct ClockOffset {
  int64_t offset_ns = 0;
  int64_t error_ns = 0;
};

// One answer of a process.
struct ClockPoll {
  int64_t asked_ns = 0;  // The controller's clock before and after the call.
  int64_t answered_ns = 0;
  int64_t clock_ns = 0;  // The process's clock meanwhile.
};

// Two clocks that nothing disciplines drift apart by at most this share, 100 us a second.
inline constexpr double kMaxClockDrift = 1e-4;

// Keeps the poll of each process that says most: one with a short round trip, and of late. Not
// thread-safe.
class ClockOffsets {
 public:
  // A poll that contradicts those before is of another host's clock, and replaces them.
  void Add(const std::string& process, const ClockPoll& poll);
  // The offset at `at_ns` of the controller's clock. Returns false if the process has not answered.
  bool Find(const std::string& process, int64_t at_ns, ClockOffset* offset) const;

 private:
  struct Best {
    ClockOffset offset;
    int64_t at_ns = 0;  // The controller's clock at the poll.
  };

  static int64_t ErrorAt(const Best& best, int64_t at_ns);

  std::map<std::string, Best> best_;  // By process.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_TRACE_CLOCK_OFFSETS_H_
