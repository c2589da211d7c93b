#include "worker/exchange/wait_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

constexpr size_t kFirstOfTraining = IndexOf(Phase::kRows);

template <typename... Parts>
absl::Status Violation(const ExchangeOptions& options, const Parts&... parts) {
  return absl::InternalError(
      absl::StrCat("the order of waits: rank ", options.rank.value(), " waits for ", parts...));
}

}  // namespace

WaitOrder::WaitOrder(const ExchangeOptions& options)
    : options_(options), pushed_(options.start_step - 1) {
  posted_.fill(pushed_);
  released_.fill(pushed_);
}

void WaitOrder::NotePosted(BlockId id) {
  Step& posted = posted_[IndexOf(id.phase)];
  CHECK(id.step == posted + 1);
  posted = id.step;
}

void WaitOrder::NoteReleased(BlockId id) {
  Step& released = released_[IndexOf(id.phase)];
  CHECK(id.step == released + 1);
  released = id.step;
}

void WaitOrder::NotePushed(Step step) {
  CHECK(step == pushed_ + 1);
  pushed_ = step;
}

bool WaitOrder::Owes(BlockId id) const {
  return options_.phases.Has(id.phase) && posted_[IndexOf(id.phase)] < id.step;
}

absl::Status WaitOrder::CheckWait(BlockId id) const {
  const size_t p = IndexOf(id.phase);
  if (id.step > released_[p] + options_.credit_steps[p]) {
    return Violation(options_, Describe(id), " and has no room for more: that of step ",
                     (released_[p] + 1).value(), " is not released");
  }
  for (size_t other = 0; other < kNumPhases; ++other) {
    BlockId owed = {id.step, static_cast<Phase>(other)};
    if (other > p) owed.step = id.step - 1;
    // Planning waits for keys before the plans of the steps that need them.
    if (id.phase == Phase::kKeys) owed.step = id.step - (other > p ? options_.window_steps + 1 : 0);
    if (p < kFirstOfTraining && other >= kFirstOfTraining) break;
    if (Owes(owed)) return Violation(options_, Describe(id), " and owes ", Describe(owed));
  }
  return absl::OkStatus();
}

absl::Status WaitOrder::CheckOwesNothing() const {
  const Step begun = *std::max_element(posted_.begin() + kFirstOfTraining, posted_.end());
  for (size_t phase = kFirstOfTraining; phase < kNumPhases; ++phase) {
    const BlockId id = {begun, static_cast<Phase>(phase)};
    if (Owes(id)) return Violation(options_, "the next batch or its rows and owes ", Describe(id));
  }
  if (pushed_ >= begun) return absl::OkStatus();
  return Violation(options_, "the next batch or its rows and owes the push of step ",
                   begun.value());
}

}  // namespace thermocline
