#include "deploy/job/evaluation_coordinator.h"

#include <algorithm>

#include "common/base/check.h"

namespace thermocline {

std::optional<Step> EvaluationCoordinator::Begin() {
  if (stage_ != Stage::kIdle || reports_.empty()) return std::nullopt;
  event_ = {};
  event_.report = reports_.front();
  reports_.pop_front();
  event_.verdict = board_.Take(event_.report);
  stage_ = Stage::kDecided;
  if (!event_.verdict.is_best || !keeps_best_) return std::nullopt;
  stage_ = Stage::kMakingCheckpoint;
  return event_.report.step;
}

void EvaluationCoordinator::OnCheckpoint(const absl::StatusOr<std::string>& name) {
  CHECK(stage_ == Stage::kMakingCheckpoint);
  board_.SetBestCheckpoint(name);
  event_.checkpoint_error = name.status();
  stage_ = Stage::kDecided;
}

std::optional<EvaluationEvent> EvaluationCoordinator::TakeDecided(
    const std::vector<uint32_t>& running_ranks) {
  if (stage_ != Stage::kDecided) return std::nullopt;
  stage_ = Stage::kDeciding;
  event_.state = board_.latest();
  unanswered_ = {running_ranks.begin(), running_ranks.end()};
  return event_;
}

std::vector<uint32_t> EvaluationCoordinator::Unanswered(
    const std::vector<uint32_t>& running_ranks) {
  std::vector<uint32_t> ranks;
  for (const uint32_t rank : running_ranks) {
    if (unanswered_.count(rank) > 0) ranks.push_back(rank);
  }
  if (ranks.empty() && stage_ == Stage::kDeciding) stage_ = Stage::kIdle;
  return ranks;
}

void EvaluationCoordinator::OnAnswered(uint32_t rank) { unanswered_.erase(rank); }

}  // namespace thermocline
