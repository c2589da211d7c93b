#include "server/core/accepted_pushes.h"

#include <utility>

#include "common/base/check.h"

namespace thermocline {

AcceptedPushes::AcceptedPushes(uint32_t num_workers, Step base)
    : next_step_(base + 1), queues_(num_workers) {}

void AcceptedPushes::Add(AssembledPush push) {
  CHECK_LT(push.rank.value(), queues_.size());
  std::deque<AssembledPush>& queue = queues_[push.rank.value()];
  CHECK_EQ(push.step, next_step_ + static_cast<int64_t>(queue.size()));
  num_waiting_ += queue.empty() ? 1 : 0;
  queue.push_back(std::move(push));
}

uint64_t AcceptedPushes::bytes_of_next() const {
  uint64_t bytes = 0;
  for (const std::deque<AssembledPush>& queue : queues_) {
    if (!queue.empty()) bytes += queue.front().bytes;
  }
  return bytes;
}

std::vector<AssembledPush> AcceptedPushes::TakeNext() {
  CHECK(NextIsComplete());
  std::vector<AssembledPush> pushes;
  pushes.reserve(queues_.size());
  for (std::deque<AssembledPush>& queue : queues_) {
    pushes.push_back(std::move(queue.front()));
    queue.pop_front();
    num_waiting_ -= queue.empty() ? 1 : 0;
  }
  next_step_ = next_step_ + 1;
  return pushes;
}

}  // namespace thermocline
