#include "common/base/threads.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/process.h"
#include "common/base/process_limits.h"
#include "common/base/thread_pool.h"

namespace thermocline {
namespace {

// gRPC makes half as many threads for callbacks as there are processors, 2 at least and 16 at most,
// and some for timers, DNS and its executor. A few are our own.
constexpr int kFewThreads = 12;
constexpr int kMostThreads = 32;

std::optional<std::thread> TryMake(std::function<void()> body, std::string* why) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    *why = absl::StrCat("can't make a thread: ", error.code().message(),
                        "; see the limits of processes (ulimit -u, pids.max of the cgroup) and of "
                        "memory (ulimit -v)");
    return std::nullopt;
  }
}

}  // namespace

std::optional<std::thread> TryMakeThread(std::function<void()> body) {
  std::string why;
  return TryMake(std::move(body), &why);
}

std::thread MakeThread(std::function<void()> body) {
  std::string why;
  std::optional<std::thread> thread = TryMake(std::move(body), &why);
  if (thread.has_value()) return *std::move(thread);
  LogLine(absl::StrCat("failed: ", absl::UnavailableError(why).ToString()));
  std::_Exit(kExitTrouble);
}

absl::Status CheckThreads() {
  const int wanted = std::min(kFewThreads + HardwareThreads(), kMostThreads);
  absl::Notification done;
  std::vector<std::thread> threads;
  std::string why;
  while (static_cast<int>(threads.size()) < wanted && why.empty()) {
    std::optional<std::thread> thread = TryMake([&done] { done.WaitForNotification(); }, &why);
    if (thread.has_value()) threads.push_back(*std::move(thread));
  }
  done.Notify();
  for (std::thread& thread : threads) thread.join();
  if (why.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("a process needs ", wanted, " threads; after ", threads.size(), " it ", why));
}

}  // namespace thermocline
