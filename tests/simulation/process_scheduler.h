// The timers and tasks of one process of the simulation: they end with it.
#ifndef THERMOCLINE_TESTS_SIMULATION_PROCESS_SCHEDULER_H_
#define THERMOCLINE_TESTS_SIMULATION_PROCESS_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "common/base/scheduler.h"
#include "common/base/task_queue.h"
#include "tests/simulation/sim_random.h"

namespace thermocline {

class ProcessScheduler : public Scheduler, public TaskRunner {
 public:
  // Tasks run on `scheduler`, which is borrowed, up to `max_delay_us` late, and not at all once
  // `*ended`.
  ProcessScheduler(Scheduler* scheduler, std::shared_ptr<const bool> ended, int64_t max_delay_us,
                   uint64_t seed)
      : scheduler_(scheduler),
        ended_(std::move(ended)),
        max_delay_us_(max_delay_us),
        random_(seed) {}

  int64_t NowMicros() const override { return scheduler_->NowMicros(); }
  void RunAfter(int64_t delay_us, std::function<void()> task) override {
    const int64_t late_us = max_delay_us_ == 0 ? 0 : random_.Between(0, max_delay_us_);
    scheduler_->RunAfter(delay_us + late_us, [ended = ended_, task = std::move(task)] {
      if (!*ended) task();
    });
  }
  void Run(std::function<void()> task) override { RunAfter(0, std::move(task)); }

 private:
  Scheduler* const scheduler_;
  const std::shared_ptr<const bool> ended_;
  const int64_t max_delay_us_;
  SimRandom random_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_PROCESS_SCHEDULER_H_
