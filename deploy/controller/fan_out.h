// The same call of several processes at once, each on a thread of its own.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_FAN_OUT_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_FAN_OUT_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace thermocline {

// Who has to watch other things meanwhile asks AllReturned(); else its destructor waits.
//
// Thread-safe, but for the destructor.
class FanOut {
 public:
  // Begins call(i) for each i in [0, count). `call` is thread-safe and returns in bounded time, as
  // the destructor waits for it.
  FanOut(size_t count, std::function<void(size_t index)> call)
      : call_(std::move(call)), pending_(count) {
    for (size_t i = 0; i < count; ++i) {
      threads_.emplace_back([this, i] {
        call_(i);
        pending_.fetch_sub(1, std::memory_order_release);
      });
    }
  }
  ~FanOut() {
    for (std::thread& thread : threads_) thread.join();
  }
  FanOut(const FanOut&) = delete;
  FanOut& operator=(const FanOut&) = delete;

  // Whether every call has returned; what they wrote may be read then.
  bool AllReturned() const { return pending_.load(std::memory_order_acquire) == 0; }

 private:
  const std::function<void(size_t index)> call_;
  std::atomic<size_t> pending_;
  std::vector<std::thread> threads_;
};

// Runs call(i) for each i in [0, count) at once, and returns when all have returned.
inline void CallAll(size_t count, std::function<void(size_t index)> call) {
  const FanOut calls(count, std::move(call));
}

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_FAN_OUT_H_
