// Who wants a checkpoint, and has still to get an answer.
#ifndef THERMOCLINE_DEPLOY_JOB_CHECKPOINT_WISHES_H_
#define THERMOCLINE_DEPLOY_JOB_CHECKPOINT_WISHES_H_

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "deploy/job/checkpoint_options.h"

namespace thermocline {

// Not thread-safe.
class CheckpointWishes {
 public:
  // One with the steps so far.
  void Add(const std::string& id) { wishes_.push_back({id, std::nullopt, false}); }
  // One of just this step; its id is "".
  void AddExact(Step step) { wishes_.push_back({"", step, true}); }

  bool empty() const { return wishes_.empty(); }
  // The step of an exact one, if there is any.
  std::optional<Step> exact() const {
    for (const Wish& wish : wishes_) {
      if (wish.is_exact) return wish.at_least;
    }
    return std::nullopt;
  }
  std::vector<std::string> Unanswered() const {
    std::vector<std::string> ids;
    for (const Wish& wish : wishes_) {
      if (!wish.is_exact) ids.push_back(wish.id);
    }
    return ids;
  }

  // The steps so far are those up to `furthest`, for wishes that come now.
  void OnStatus(Step furthest) {
    for (Wish& wish : wishes_) {
      if (!wish.at_least) wish.at_least = furthest;
    }
  }
  // Answers those that the step is late enough for; `exact_too`: also one of just this step.
  void Answer(Step step, const absl::StatusOr<std::string>& result, bool exact_too) {
    const auto waits = [&](const Wish& wish) {
      if (wish.is_exact) return !exact_too || *wish.at_least != step;
      return !wish.at_least || *wish.at_least > step;
    };
    const auto middle = std::stable_partition(wishes_.begin(), wishes_.end(), waits);
    for (auto wish = middle; wish != wishes_.end(); ++wish) answers_.push_back({wish->id, result});
    wishes_.erase(middle, wishes_.end());
  }
  std::vector<CheckpointAnswer> TakeAnswers() { return std::exchange(answers_, {}); }

 private:
  struct Wish {
    std::string id;
    std::optional<Step> at_least;  // Set by the first status that comes after it.
    bool is_exact = false;         // No later one will do.
  };

  std::vector<Wish> wishes_;
  std::vector<CheckpointAnswer> answers_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_WISHES_H_
