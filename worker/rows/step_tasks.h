// What is left to do for a step, in order, and what each part of it waits for. Row source, dense
// parameters and planners add tasks and never wait themselves. The caller that drives a step
// decides how to wait: a worker's thread blocks (RunAll), the simulation comes back later (IsOver).
#ifndef THERMOCLINE_WORKER_ROWS_STEP_TASKS_H_
#define THERMOCLINE_WORKER_ROWS_STEP_TASKS_H_

#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "worker/exchange/exchange.h"

namespace thermocline {

// Something that another thread brings about. Thread-safe.
class StepEvent {
 public:
  virtual ~StepEvent() = default;
  virtual bool IsOver() const = 0;  // Never waits.
  virtual void Wait() const = 0;
};

// What must have happened before a task can run: at most one of these; none: nothing.
struct StepWait {
  const StepEvent* event = nullptr;
  DeviceEvent* device = nullptr;  // The device has finished what was queued before it.
  std::optional<BlockId> blocks;  // All ranks' blocks are here; the task receives them.

  static StepWait For(const StepEvent* event) { return {event, nullptr, std::nullopt}; }
  static StepWait For(DeviceEvent* device) { return {nullptr, device, std::nullopt}; }
  static StepWait For(BlockId blocks) { return {nullptr, nullptr, blocks}; }
};

// A queue of tasks. Not thread-safe.
class StepTasks {
 public:
  using Task = std::function<absl::Status()>;

  // Adds a task behind all others; while a task runs, behind those that it has added, and before
  // the rest.
  void After(StepWait wait, Task task) {
    (is_running_ ? added_ : tasks_).push_back({wait, std::move(task)});
  }
  void Then(Task task) { After({}, std::move(task)); }

  bool empty() const { return tasks_.empty(); }
  // What the first task waits for. REQUIRES: there is one.
  const StepWait& wait() const { return tasks_.front().wait; }
  // Runs the first task. After an error the rest is not to be run. REQUIRES: its wait is over.
  absl::Status RunNext();

 private:
  struct Entry {
    StepWait wait;
    Task task;
  };
  std::deque<Entry> tasks_;
  std::deque<Entry> added_;  // By the task that runs.
  bool is_running_ = false;
};

// Whether the wait is over, for a driver that can't wait. Its device is one that has finished an
// operation when the call returns. exchange: null where no task waits for blocks.
bool IsOver(const StepWait& wait, Exchange* exchange);

// Waits for each task in turn, and runs it. Errors: those of the tasks, the device, the exchange.
absl::Status RunAll(StepTasks* tasks, Exchange* exchange);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_STEP_TASKS_H_
