// Calls that take time, each on a thread of its own.
#ifndef THERMOCLINE_DEPLOY_RUNNER_BACKGROUND_CALLS_H_
#define THERMOCLINE_DEPLOY_RUNNER_BACKGROUND_CALLS_H_

#include <atomic>
#include <functional>
#include <list>
#include <thread>
#include <utility>

namespace thermocline {

// Not thread-safe. Its destructor waits for all calls.
class BackgroundCalls {
 public:
  ~BackgroundCalls() { WaitForAll(); }

  // `call` returns in bounded time.
  void Run(std::function<void()> call) {
    calls_.remove_if([](Call& each) {
      if (!each.has_returned) return false;
      each.thread.join();
      return true;
    });
    Call& added = calls_.emplace_back();
    added.thread = std::thread([call = std::move(call), &added] {
      call();
      added.has_returned = true;
    });
  }
  void WaitForAll() {
    for (Call& call : calls_) call.thread.join();
    calls_.clear();
  }

 private:
  struct Call {
    std::atomic<bool> has_returned{false};
    std::thread thread;
  };

  std::list<Call> calls_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_BACKGROUND_CALLS_H_
