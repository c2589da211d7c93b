#include "server/core/held_pulls.h"

#include <iterator>

#include "common/base/check.h"

namespace thermocline {

PullTicket HeldPulls::Hold(HeldPull pull) {
  CHECK(!full());
  const PullTicket ticket = ++last_ticket_;
  expiries_.emplace(pull.expires_us, ticket);
  pulls_.emplace_hint(pulls_.end(), ticket, std::move(pull));
  return ticket;
}

HeldPulls::Pulls::iterator HeldPulls::MoveOut(Pulls::iterator pull, std::vector<HeldPull>* out) {
  expiries_.erase({pull->second.expires_us, pull->first});
  out->push_back(std::move(pull->second));
  return pulls_.erase(pull);
}

std::vector<HeldPull> HeldPulls::TakeReady(absl::FunctionRef<bool(const HeldPull&)> is_ready) {
  std::vector<HeldPull> ready;
  for (auto pull = pulls_.begin(); pull != pulls_.end();) {
    pull = is_ready(pull->second) ? MoveOut(pull, &ready) : std::next(pull);
  }
  return ready;
}

std::vector<HeldPull> HeldPulls::TakeExpired(int64_t now_us) {
  if (pulls_.empty() || next_expiry_us() > now_us) return {};
  return TakeReady([now_us](const HeldPull& pull) { return pull.expires_us <= now_us; });
}

std::vector<HeldPull> HeldPulls::TakeAll() {
  return TakeReady([](const HeldPull&) { return true; });
}

std::optional<HeldPull> HeldPulls::Take(PullTicket ticket) {
  const auto pull = pulls_.find(ticket);
  if (pull == pulls_.end()) return std::nullopt;
  std::vector<HeldPull> taken;
  MoveOut(pull, &taken);
  return std::move(taken.front());
}

}  // namespace thermocline
