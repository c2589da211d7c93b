// The checkpoint of just the step of an evaluation, behind which the workers wait.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "deploy/controller/checkpoint_keeper.h"

namespace thermocline {

void CheckpointKeeper::RequestOf(Step cut, OnCheckpoint done) {
  absl::MutexLock lock(&mutex_);
  wishes_.push_back({std::move(done), cut, /*is_exact=*/true});
}

void CheckpointKeeper::Keep(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  kept_ = name;
}

// The newest checkpoint, of `cut`, learns of its evaluation where that came only after its commit.
// Its name.
absl::StatusOr<std::string> CheckpointKeeper::NoteEvaluations(Step cut) {
  std::string name = newest();
  if (!options_.evaluations_through) return name;
  EvaluationState evaluations = options_.evaluations_through(cut);
  evaluations.set_best_checkpoint(name);
  ASSIGN_OR_RETURN(CheckpointManifest manifest, store_.Load(name));
  // Bytes, since an AUC may be no number.
  if (manifest.evaluations().SerializeAsString() == evaluations.SerializeAsString()) return name;
  *manifest.mutable_evaluations() = std::move(evaluations);
  RETURN_IF_ERROR(store_.Commit(manifest));
  return name;
}

// Whether somebody wants a cut of just the step that the servers are at, or come to.
bool CheckpointKeeper::NameExactly() {
  Step cut;
  bool is_there, is_reached;
  {
    absl::MutexLock lock(&mutex_);
    const auto wish = std::find_if(wishes_.begin(), wishes_.end(),
                                   [](const Wish& each) { return each.is_exact; });
    if (wish == wishes_.end()) return false;
    cut = *wish->at_least;
    is_there = newest_step_ == cut;
    is_reached = board_.CommonStep() == cut;
  }
  // The workers wait for this one: they don't get to a cut that was named beyond it.
  std::vector<Step> beyond;
  std::copy_if(named_.begin(), named_.end(), std::back_inserter(beyond),
               [cut](Step named) { return named > cut; });
  for (const Step later : beyond) {
    CallOff(later, "the checkpoint of an evaluation's step comes before it");
  }
  if (is_there) {
    Answer(cut, NoteEvaluations(cut), /*exact_too=*/true);
  } else if (is_reached && rounds_ >= next_try_ && OpenCuts().empty() &&
             !messages_.IsPending(cut)) {
    next_try_ = rounds_ + kRoundsBetweenTries;
    settled_.erase(cut);
    named_.insert(cut);
    const absl::Status named = NameToAll(cut);
    if (!named.ok() && !IsUnanswered(named)) CallOff(cut, std::string(named.message()));
  }
  return true;
}

}  // namespace thermocline
