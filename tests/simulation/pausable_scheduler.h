// The timers of a process or host of the simulation that may be paused: what becomes due meanwhile
// runs when it goes on.
#ifndef THERMOCLINE_TESTS_SIMULATION_PAUSABLE_SCHEDULER_H_
#define THERMOCLINE_TESTS_SIMULATION_PAUSABLE_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/scheduler.h"

namespace thermocline {

class PausableScheduler : public Scheduler {
 public:
  // `base` outlives it: the virtual time, or that of the host.
  explicit PausableScheduler(Scheduler* base) : base_(*base) {}

  int64_t NowMicros() const override {
    return (clock_stands_ ? paused_at_us_ : base_.NowMicros()) - behind_us_;
  }
  void RunAfter(int64_t delay_us, std::function<void()> task) override {
    base_.RunAfter(delay_us, [this, task = std::move(task)] {
      if (!is_paused()) return task();
      held_.push_back(task);
    });
  }

  // It goes on after as many calls of Resume. `stops_clock`: the time that it is paused does not
  // count, if nothing had paused it before.
  void Pause(bool stops_clock) {
    if (pauses_++ > 0) return;
    clock_stands_ = stops_clock;
    paused_at_us_ = base_.NowMicros();
  }
  void Resume() {
    if (pauses_ == 0 || --pauses_ > 0) return;
    if (std::exchange(clock_stands_, false)) behind_us_ += base_.NowMicros() - paused_at_us_;
    for (std::function<void()>& task : std::exchange(held_, {})) RunAfter(0, std::move(task));
  }
  bool is_paused() const { return pauses_ > 0; }

 private:
  Scheduler& base_;
  int pauses_ = 0;
  bool clock_stands_ = false;
  int64_t paused_at_us_ = 0, behind_us_ = 0;
  std::vector<std::function<void()>> held_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_PAUSABLE_SCHEDULER_H_
