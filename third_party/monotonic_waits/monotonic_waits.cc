// Abseil's waits with a deadline, by the monotonic clock.
//
// Abseil 20220623 lets the kernel wait until a time of the wall clock. When that clock is set back
// by an hour, all waits under way last an hour longer: those of our timers, and of gRPC's, which
// end calls at their deadlines and connect again. All of these waits go through one function, which
// Abseil lets programs define; linked into a program, this file replaces it.
//
// The system's Abseil waits and posts on one futex a thread. Posting is left as it is.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "absl/base/config.h"

#if defined(ABSL_LTS_RELEASE_VERSION) && ABSL_LTS_RELEASE_VERSION == 20220623
#include "absl/base/internal/thread_identity.h"
#include "absl/synchronization/internal/create_thread_identity.h"
#include "absl/synchronization/internal/kernel_timeout.h"
#include "absl/synchronization/internal/per_thread_sem.h"
#include "absl/synchronization/internal/waiter.h"

namespace {

using absl::synchronization_internal::KernelTimeout;

static_assert(ABSL_WAITER_MODE == ABSL_WAITER_MODE_FUTEX);
static_assert(sizeof(absl::synchronization_internal::Waiter) == sizeof(std::atomic<int32_t>));

constexpr int64_t kNanosPerSecond = 1'000'000'000;

int64_t Nanos(const timespec& time) { return time.tv_sec * kNanosPerSecond + time.tv_nsec; }

int64_t Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return Nanos(now);
}

// Converts a time of the wall clock to one of the monotonic clock.
timespec ToMonotonic(KernelTimeout timeout) {
  const int64_t left = Nanos(timeout.MakeAbsTimespec()) - Now(CLOCK_REALTIME);
  const int64_t until = Now(CLOCK_MONOTONIC) + std::max<int64_t>(left, 0);
  return {until / kNanosPerSecond, until % kNanosPerSecond};
}

bool TakeOne(std::atomic<int32_t>* posted) {
  int32_t posts = posted->load(std::memory_order_relaxed);
  while (posts != 0) {
    if (posted->compare_exchange_weak(posts, posts - 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

}  // namespace

// Returns false if the timeout has passed.
extern "C" bool ABSL_INTERNAL_C_SYMBOL(AbslInternalPerThreadSemWait)(KernelTimeout timeout) {
  auto* const identity = absl::synchronization_internal::GetOrCreateCurrentThreadIdentity();
  auto* const posted = reinterpret_cast<std::atomic<int32_t>*>(identity->waiter_state.data);
  timespec until{};
  if (timeout.has_timeout()) until = ToMonotonic(timeout);
  while (!TakeOne(posted)) {
    const int64_t error =
        syscall(SYS_futex, posted, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0,
                timeout.has_timeout() ? &until : nullptr, nullptr, FUTEX_BITSET_MATCH_ANY);
    if (error != 0 && errno == ETIMEDOUT) return false;
  }
  return true;
}
#endif  // Later versions wait by the monotonic clock.
