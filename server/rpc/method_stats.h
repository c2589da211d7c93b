// Calls of one RPC method: how many, how many failed, how long they took. Thread-safe.
#ifndef THERMOCLINE_SERVER_RPC_METHOD_STATS_H_
#define THERMOCLINE_SERVER_RPC_METHOD_STATS_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/base/timing.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

inline int64_t MonotonicMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class MethodStats {
 public:
  explicit MethodStats(const char* method) : method_(method) {}

  void Begin() { in_flight_.fetch_add(1, std::memory_order_relaxed); }
  // `handling_us`: without the time a pull was held.
  void End(bool ok, int64_t handling_us) {
    if (!ok) errors_.fetch_add(1, std::memory_order_relaxed);
    latency_.Record(handling_us);
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
  }

  void CopyTo(RpcStats* stats) const {
    const LatencySnapshot latency = latency_.Snapshot();
    stats->set_method(method_);
    stats->set_count(latency.count);
    stats->set_errors(errors_.load(std::memory_order_relaxed));
    stats->set_in_flight(in_flight_.load(std::memory_order_relaxed));
    latency.CopyTo(stats->mutable_latency());
  }

 private:
  const char* const method_;
  std::atomic<uint64_t> errors_{0};
  std::atomic<uint64_t> in_flight_{0};
  LatencyHistogram latency_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_RPC_METHOD_STATS_H_
