#include "server/core/held_pulls.h"

#include <utility>

#include "common/check.h"

namespace thermocline {

void HeldPulls::Hold(HeldPull pull) {
  CHECK(!full());
  CHECK(pulls_.empty() || pulls_.back().held_since_us <= pull.held_since_us);
  pulls_.push_back(std::move(pull));
}

std::vector<HeldPull> HeldPulls::TakeReady(absl::FunctionRef<bool(const HeldPull&)> is_ready) {
  std::vector<HeldPull> ready;
  std::deque<HeldPull> waiting;
  for (HeldPull& pull : pulls_) {
    if (is_ready(pull)) {
      ready.push_back(std::move(pull));
    } else {
      waiting.push_back(std::move(pull));
    }
  }
  pulls_ = std::move(waiting);
  return ready;
}

std::vector<HeldPull> HeldPulls::TakeExpired(int64_t now_us) {
  std::vector<HeldPull> expired;
  while (!pulls_.empty() && next_expiry_us() <= now_us) {
    expired.push_back(std::move(pulls_.front()));
    pulls_.pop_front();
  }
  return expired;
}

std::vector<HeldPull> HeldPulls::TakeAll() {
  return TakeReady([](const HeldPull&) { return true; });
}

}  // namespace thermocline
