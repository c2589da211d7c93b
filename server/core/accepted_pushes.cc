#include "server/core/accepted_pushes.h"

#include <utility>

#include "common/check.h"

namespace thermocline {

AcceptedPushes::AcceptedPushes(uint32_t num_workers, Step base)
    : next_step_(base + 1), queues_(num_workers), accepted_through_(num_workers, base) {}

void AcceptedPushes::Add(AssembledPush push) {
  const uint32_t rank = push.rank.value();
  CHECK_LT(rank, queues_.size());
  CHECK_EQ(push.first_step, accepted_through_[rank] + 1);
  const bool covered = Covers(rank);
  accepted_through_[rank] = push.last_step;
  if (!covered && Covers(rank)) ++num_covering_;
  queues_[rank].push_back(std::move(push));
}

bool AcceptedPushes::Span(Step step) const {
  for (const std::deque<AssembledPush>& queue : queues_) {
    for (const AssembledPush& push : queue) {
      if (push.first_step <= step && step < push.last_step) return true;
    }
  }
  return false;
}

uint64_t AcceptedPushes::bytes_of_next() const {
  uint64_t bytes = 0;
  for (const std::deque<AssembledPush>& queue : queues_) {
    if (!queue.empty() && queue.front().first_step == next_step_) bytes += queue.front().bytes;
  }
  return bytes;
}

std::vector<AssembledPush> AcceptedPushes::TakeNext() {
  CHECK(NextIsComplete());
  std::vector<AssembledPush> pushes;
  for (std::deque<AssembledPush>& queue : queues_) {
    if (queue.empty() || queue.front().first_step != next_step_) continue;
    pushes.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  next_step_ = next_step_ + 1;
  num_covering_ = 0;
  for (uint32_t rank = 0; rank < queues_.size(); ++rank) num_covering_ += Covers(rank) ? 1 : 0;
  return pushes;
}

}  // namespace thermocline
