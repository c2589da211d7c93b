// Counts of the service's calls: how many are under way, which is limited, and how many ended how.
//
// Thread-safe.
#ifndef THERMOCLINE_SERVER_RPC_CALL_COUNTS_H_
#define THERMOCLINE_SERVER_RPC_CALL_COUNTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/base/timing.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// Limits how many requests of one kind, and how many bytes of them, are worked on at a time. More
// are refused at once, so that a server's memory has a bound however many clients call.
class Admission {
 public:
  Admission(uint64_t max_requests, uint64_t max_bytes)
      : max_requests_(max_requests), max_bytes_(max_bytes) {}

  // Takes a place. False where there is none, and then the refusal is counted. Each success needs
  // one Leave.
  bool TryEnter() {
    if (in_flight_.fetch_add(1, std::memory_order_relaxed) < max_requests_) return true;
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  void Leave() { in_flight_.fetch_sub(1, std::memory_order_relaxed); }

  // The same for bytes that a request holds.
  bool TryReserve(uint64_t bytes) {
    if (bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= max_bytes_) return true;
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  void Release(uint64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  uint64_t max_requests() const { return max_requests_; }
  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  const uint64_t max_requests_;
  const uint64_t max_bytes_;
  std::atomic<uint64_t> in_flight_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> refused_{0};
};

inline int64_t MonotonicMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How many calls of one method there were, how many failed, and how long they took.
class MethodStats {
 public:
  explicit MethodStats(const char* method) : method_(method) {}

  void Begin() { in_flight_.fetch_add(1, std::memory_order_relaxed); }
  // `handling_us` does not include the time that a pull was held.
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

#endif  // THERMOCLINE_SERVER_RPC_CALL_COUNTS_H_
