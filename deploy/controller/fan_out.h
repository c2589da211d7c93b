// The same call of several processes at once.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_FAN_OUT_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_FAN_OUT_H_

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace thermocline {

// Runs call(i) for each i in [0, count) at once, each on a thread of its own, and returns when all
// have returned. `call` is thread-safe and returns in bounded time.
inline void CallAll(size_t count, const std::function<void(size_t index)>& call) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&call, i] { call(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_FAN_OUT_H_
