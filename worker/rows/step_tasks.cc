#include "worker/rows/step_tasks.h"

#include <iterator>

#include "common/base/status_macros.h"

namespace thermocline {

absl::Status StepTasks::RunNext() {
  const Entry next = std::move(tasks_.front());
  tasks_.pop_front();
  is_running_ = true;
  absl::Status status = next.task();
  is_running_ = false;
  tasks_.insert(tasks_.begin(), std::make_move_iterator(added_.begin()),
                std::make_move_iterator(added_.end()));
  added_.clear();
  return status;
}

bool IsOver(const StepWait& wait, Exchange* exchange) {
  if (wait.event != nullptr) return wait.event->IsOver();
  return !wait.blocks.has_value() || exchange->BeginWait(*wait.blocks);
}

absl::Status RunAll(StepTasks* tasks, Exchange* exchange) {
  while (!tasks->empty()) {
    const StepWait wait = tasks->wait();
    if (wait.event != nullptr) wait.event->Wait();
    if (wait.device != nullptr) RETURN_IF_ERROR(wait.device->Wait());
    if (wait.blocks.has_value()) RETURN_IF_ERROR(exchange->Await(*wait.blocks));
    RETURN_IF_ERROR(tasks->RunNext());
  }
  return absl::OkStatus();
}

}  // namespace thermocline
