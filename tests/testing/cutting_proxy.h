// A TCP relay in front of a server that breaks connections in the middle of messages.
#ifndef THERMOCLINE_TESTS_TESTING_CUTTING_PROXY_H_
#define THERMOCLINE_TESTS_TESTING_CUTTING_PROXY_H_

#include <atomic>
#include <cstddef>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

// Thread-safe.
class CuttingProxy {
 public:
  // Relays to `target` (127.0.0.1:port). The i-th connection is broken once it has carried cuts[i]
  // bytes to the server, at once if that is 0. Connections beyond the last of `cuts` are not
  // broken.
  CuttingProxy(const std::string& target, std::vector<size_t> cuts);
  // Breaks the remaining connections.
  ~CuttingProxy();
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  // From now on the proxy relays nothing and closes nothing, as if the target's host had vanished.
  void GoSilent() { is_silent_ = true; }

  const std::string& address() const { return address_; }
  size_t connections_cut() const;

 private:
  void Accept();
  void Relay(int client, size_t budget_bytes);
  // Ends when one side does, the budget is spent, or the proxy is closing.
  bool RelayBytes(int client, int server, size_t budget_bytes);
  bool Register(int fd);
  void Close(int fd);

  const int target_port_;
  const std::vector<size_t> cuts_;
  int listener_ = -1;
  std::string address_;

  std::atomic<bool> is_silent_{false};
  mutable absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  size_t connections_cut_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int> open_ ABSL_GUARDED_BY(mutex_);  // The sockets of connections.
  std::vector<std::thread> relays_;             // Only acceptor_ uses it until that is joined.
  std::thread acceptor_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_CUTTING_PROXY_H_
