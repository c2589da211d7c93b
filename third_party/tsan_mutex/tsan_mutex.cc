// Abseil's mutex, condition variable, notification and blocking counter over pthreads.
//
// The system's Abseil is not instrumented, so the thread sanitizer sees neither its locks nor the
// order that they give, and would report every guarded access as a race. Linked into a program,
// these definitions take the place of the library's, also for gRPC. The sanitizer understands
// pthreads.
//
// Only for --config=tsan: correct, not fast. Readers exclude each other.
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <list>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

// A thread that waits until a condition holds.
struct Waiter {
  const Condition* condition;
  pthread_cond_t holds = PTHREAD_COND_INITIALIZER;

  ~Waiter() { pthread_cond_destroy(&holds); }
};
struct NativeMutex {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  std::list<Waiter*> waiters;  // Guarded by mutex.

  ~NativeMutex() { pthread_mutex_destroy(&mutex); }
};
struct NativeCondVar {
  pthread_cond_t signaled = PTHREAD_COND_INITIALIZER;
  ~NativeCondVar() { pthread_cond_destroy(&signaled); }
};

// Both of Abseil's classes are one word that is 0 at first: it holds the pointer to the native one.
template <typename Native>
std::atomic<Native*>* WordOf(const void* object) {
  return reinterpret_cast<std::atomic<Native*>*>(const_cast<void*>(object));
}
template <typename Native>
Native* NativeOf(const void* object) {
  std::atomic<Native*>* word = WordOf<Native>(object);
  Native* native = word->load(std::memory_order_acquire);
  if (native != nullptr) return native;
  Native* made = new Native;
  if (word->compare_exchange_strong(native, made, std::memory_order_acq_rel)) return made;
  delete made;
  return native;
}
static_assert(sizeof(Mutex) == sizeof(void*) && sizeof(CondVar) == sizeof(void*), "one word");

NativeMutex* NativeOf(const Mutex* mutex) { return NativeOf<NativeMutex>(mutex); }
NativeCondVar* NativeOf(const CondVar* condition) { return NativeOf<NativeCondVar>(condition); }

// A thread that releases a mutex calls this, since conditions that other threads await may hold
// now. Those whose conditions do not hold sleep on.
void WakeWaiters(NativeMutex* native) {
  for (Waiter* waiter : native->waiters) {
    if (waiter->condition->Eval()) pthread_cond_signal(&waiter->holds);
  }
}

// Waits on `condition`, until `deadline` at the latest. Returns true if the deadline has passed.
// REQUIRES: the mutex is held.
bool WaitOn(pthread_cond_t* condition, NativeMutex* native, Time deadline) {
  if (deadline == InfiniteFuture()) {
    pthread_cond_wait(condition, &native->mutex);
    return false;
  }
  // By the monotonic clock, as in monotonic_waits.cc.
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const timespec until = ToTimespec(DurationFromTimespec(now) + (deadline - Now()));
  return pthread_cond_clockwait(condition, &native->mutex, CLOCK_MONOTONIC, &until) != 0;
}

// Returns whether the condition holds. REQUIRES: the mutex is held.
bool AwaitUntil(NativeMutex* native, const Condition& condition, Time deadline) {
  if (condition.Eval()) return true;
  WakeWaiters(native);
  Waiter self = {&condition};
  const auto place = native->waiters.insert(native->waiters.end(), &self);
  bool holds = false, late = false;
  while (!holds && !late) {
    late = WaitOn(&self.holds, native, deadline);
    holds = condition.Eval();
  }
  native->waiters.erase(place);
  return holds;
}

Time After(Duration timeout) {
  return timeout == InfiniteDuration() ? InfiniteFuture() : Now() + timeout;
}

}  // namespace

Mutex::~Mutex() { delete WordOf<NativeMutex>(this)->load(std::memory_order_acquire); }
void Mutex::Lock() { pthread_mutex_lock(&NativeOf(this)->mutex); }
bool Mutex::TryLock() { return pthread_mutex_trylock(&NativeOf(this)->mutex) == 0; }
void Mutex::Unlock() {
  NativeMutex* native = NativeOf(this);
  WakeWaiters(native);
  pthread_mutex_unlock(&native->mutex);
}
void Mutex::ReaderLock() { Lock(); }
bool Mutex::ReaderTryLock() { return TryLock(); }
void Mutex::ReaderUnlock() { Unlock(); }
void Mutex::AssertHeld() const {}
void Mutex::AssertReaderHeld() const {}
void Mutex::AssertNotHeld() const {}
void Mutex::EnableDebugLog(const char*) {}
void Mutex::EnableInvariantDebugging(void (*)(void*), void*) {}
void Mutex::ForgetDeadlockInfo() {}

void Mutex::Await(const Condition& condition) {
  AwaitUntil(NativeOf(this), condition, InfiniteFuture());
}
bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  return AwaitUntil(NativeOf(this), condition, deadline);
}
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitUntil(NativeOf(this), condition, After(timeout));
}
bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  Lock();
  return AwaitUntil(NativeOf(this), condition, deadline);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, After(timeout));
}
void Mutex::LockWhen(const Condition& condition) {
  LockWhenWithDeadline(condition, InfiniteFuture());
}
void Mutex::ReaderLockWhen(const Condition& condition) { LockWhen(condition); }
bool Mutex::ReaderLockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithTimeout(condition, timeout);
}
bool Mutex::ReaderLockWhenWithDeadline(const Condition& condition, Time deadline) {
  return LockWhenWithDeadline(condition, deadline);
}

CondVar::~CondVar() { delete WordOf<NativeCondVar>(this)->load(std::memory_order_acquire); }
void CondVar::EnableDebugLog(const char*) {}
void CondVar::Wait(Mutex* mutex) { WaitWithDeadline(mutex, InfiniteFuture()); }
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, After(timeout));
}
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  WakeWaiters(NativeOf(mutex));
  return WaitOn(&NativeOf(this)->signaled, NativeOf(mutex), deadline);
}
void CondVar::Signal() { pthread_cond_signal(&NativeOf(this)->signaled); }
void CondVar::SignalAll() { pthread_cond_broadcast(&NativeOf(this)->signaled); }

Notification::~Notification() {
  MutexLock lock(&mutex_);  // Notify() must be out of it before it goes.
}
void Notification::Notify() {
  MutexLock lock(&mutex_);
  notified_yet_.store(true, std::memory_order_release);
}
void Notification::WaitForNotification() const {
  WaitForNotificationWithDeadline(InfiniteFuture());
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  return WaitForNotificationWithDeadline(After(timeout));
}
bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  const bool notified =
      mutex_.LockWhenWithDeadline(Condition(&HasBeenNotifiedInternal, &notified_yet_), deadline);
  mutex_.Unlock();
  return notified;
}

BlockingCounter::BlockingCounter(int initial_count)
    : count_(initial_count), num_waiting_(0), done_(initial_count == 0) {}
bool BlockingCounter::DecrementCount() {
  MutexLock lock(&lock_);
  done_ = count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  return done_;
}
void BlockingCounter::Wait() {
  MutexLock lock(&lock_);
  lock_.Await(Condition(&done_));
}

ABSL_NAMESPACE_END
}  // namespace absl
