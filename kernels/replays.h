// Work that comes again and again with the same operands, given to the device as one. What was
// captured may outlive its operands: it is done again only with operands at the same addresses.
//
// Not thread-safe.
#ifndef THERMOCLINE_KERNELS_REPLAYS_H_
#define THERMOCLINE_KERNELS_REPLAYS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/check.h"
#include "kernels/device.h"

namespace thermocline {

// `Key`: ordered by <; says all that the operations and operands of a piece of work depend on.
template <typename Key>
class Replays {
 public:
  // `device` outlives it. At most `max_kept` pieces of work are kept; further ones are just done,
  // until one that is kept has not come for long.
  Replays(Device* device, size_t max_kept) : device_(device), max_kept_(max_kept) {
    CHECK_GE(max_kept, 1u);
  }

  // Does `work`, as Device::Capture requires it: calls it the first two times, later replays what
  // it called. What comes but once isn't worth a capture, and libraries make themselves ready in
  // the first call, which a capture might not survive. What can't be captured is called each time
  // (Device::fallbacks counts it). Where the device's memory is the host's there is nothing to
  // save.
  void Run(const Key& key, absl::FunctionRef<void()> work) {
    if (device_->is_host_memory()) return work();
    ++uses_;
    const auto found = kept_.find(key);
    if (found == kept_.end()) {
      work();
      if (kept_.size() < max_kept_ || DropUnused()) kept_[key].last_use = uses_;
      return;
    }
    Kept& kept = found->second;
    kept.last_use = uses_;
    if (kept.work == nullptr && !kept.cannot_be_captured) {
      kept.work = device_->Capture([work] { work(); });
      kept.cannot_be_captured = kept.work == nullptr;
    }
    if (kept.cannot_be_captured) return work();
    device_->Replay(kept.work.get());
  }

 private:
  struct Kept {
    std::unique_ptr<CapturedWork> work;  // null: met once, or it
    bool cannot_be_captured = false;     // and is done each time
    uint64_t last_use = 0;
  };

  // Drops the piece that hasn't come for longest, if that is long. (To drop one that comes again
  // soon, for another that does, would be to capture all the time, or never.)
  bool DropUnused() {
    const auto oldest = std::min_element(
        kept_.begin(), kept_.end(),
        [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
    if (uses_ - oldest->second.last_use < kRoundsUnused * max_kept_) return false;
    kept_.erase(oldest);
    return true;
  }

  static constexpr uint64_t kRoundsUnused = 8;

  Device* const device_;
  const size_t max_kept_;
  uint64_t uses_ = 0;
  std::map<Key, Kept> kept_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_REPLAYS_H_
