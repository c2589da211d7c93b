// Captured graphs of operations that come again with the same operands: each is given to the device
// with one launch. A graph may outlive its operands: it is replayed only with operands at the same
// addresses.
//
// Not thread-safe.
#ifndef THERMOCLINE_KERNELS_GRAPH_CACHE_H_
#define THERMOCLINE_KERNELS_GRAPH_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/functional/function_ref.h"
#include "common/base/check.h"
#include "kernels/device.h"

namespace thermocline {

// Key: a type with <, which has everything that the operations of a graph and their operands depend
// on.
template <typename Key>
class GraphCache {
 public:
  // `device` outlives it. It holds at most `capacity` graphs. When it is full, new work runs
  // uncaptured until a graph has been idle long enough to be evicted.
  GraphCache(Device* device, size_t capacity) : device_(device), capacity_(capacity) {
    CHECK_GE(capacity, 1u);
  }

  // Runs the operations that `work` calls, as Device::Capture requires it. The first call for a key
  // runs `work`, the second captures it, and from then on its graph is replayed. (Work that comes
  // only once is not worth a capture, and libraries initialize themselves in the first call, which
  // a capture may not survive.) Work that can't be captured runs each time; Device::fallbacks
  // counts it. Where the device's memory is the host's, a graph saves nothing: work just runs.
  void Run(const Key& key, absl::FunctionRef<void()> work) {
    if (device_->is_host_memory()) return work();
    ++runs_;
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
      work();
      if (entries_.size() < capacity_ || EvictIdle()) entries_[key].last_run = runs_;
      return;
    }
    Entry& entry = found->second;
    entry.last_run = runs_;
    if (entry.graph == nullptr && !entry.cannot_be_captured) {
      entry.graph = device_->Capture([work] { work(); });
      entry.cannot_be_captured = entry.graph == nullptr;
    }
    if (entry.cannot_be_captured) return work();
    device_->Replay(entry.graph.get());
  }

 private:
  struct Entry {
    std::unique_ptr<CapturedWork> graph;  // Null until it is captured.
    bool cannot_be_captured = false;
    uint64_t last_run = 0;
  };

  // Evicts the graph that has been idle longest, if that is long enough: if graphs that are still
  // in use replaced each other, every run would capture.
  bool EvictIdle() {
    const auto oldest = std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.second.last_run < b.second.last_run; });
    if (runs_ - oldest->second.last_run < kIdleRounds * capacity_) return false;
    entries_.erase(oldest);
    return true;
  }

  // A graph is idle after so many runs of other work for each graph that the cache can hold.
  static constexpr uint64_t kIdleRounds = 8;

  Device* const device_;
  const size_t capacity_;
  uint64_t runs_ = 0;
  std::map<Key, Entry> entries_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_GRAPH_CACHE_H_
