// How many requests of one kind, and how many bytes of them, are worked on at a time. More are
// refused at once: a server's memory has a bound however many clients call.
//
// Thread-safe.
#ifndef THERMOCLINE_SERVER_RPC_ADMISSION_H_
#define THERMOCLINE_SERVER_RPC_ADMISSION_H_

#include <atomic>
#include <cstdint>

namespace thermocline {

class Admission {
 public:
  Admission(uint64_t max_requests, uint64_t max_bytes)
      : max_requests_(max_requests), max_bytes_(max_bytes) {}

  // Takes a place; false, and counted, where there is none. Each success needs one Leave.
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

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_RPC_ADMISSION_H_
