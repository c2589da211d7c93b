#include "common/base/trace.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {
namespace {

// The events of one thread; of another one when that has ended.
struct ThreadEvents {
  absl::Mutex mutex;  // Only StopTracing contends for it.
  uint64_t recording ABSL_GUARDED_BY(mutex) = 0;
  std::vector<TraceEvent> events ABSL_GUARDED_BY(mutex);
};

// Whether events of no step are recorded.
enum class Window { kNotYet, kOpen, kOver };

struct Recorder {
  std::atomic<int64_t> first{0}, last{0};
  std::atomic<Window> window{Window::kNotYet};
  std::atomic<uint64_t> recording{0};  // Changes with every start and stop.
  std::atomic<size_t> num_events{0};
  absl::Mutex mutex;
  bool is_over ABSL_GUARDED_BY(mutex) = false;
  std::vector<std::pair<std::string, std::shared_ptr<ThreadEvents>>> threads ABSL_GUARDED_BY(mutex);
};

// It is never destroyed, since threads may record until the process has ended.
Recorder& TheRecorder() {
  static Recorder* const recorder = new Recorder;
  return *recorder;
}

thread_local const char* thread_name = nullptr;
thread_local std::shared_ptr<ThreadEvents> thread_events;
thread_local uint64_t thread_recording = 0;

// The calling thread's events of this recording.
ThreadEvents* EventsOfThread(Recorder* recorder, uint64_t recording) {
  if (thread_recording == recording) return thread_events.get();
  auto events = std::make_shared<ThreadEvents>();
  {
    absl::MutexLock lock(&events->mutex);
    events->recording = recording;
  }
  absl::MutexLock lock(&recorder->mutex);
  if (recorder->recording.load(std::memory_order_relaxed) != recording) return nullptr;
  const size_t number = recorder->threads.size() + 1;
  recorder->threads.emplace_back(
      thread_name != nullptr ? thread_name : absl::StrCat("thread ", number), events);
  thread_events = std::move(events);
  thread_recording = recording;
  return thread_events.get();
}

bool IsOpen(const Recorder& recorder) {
  return recorder.window.load(std::memory_order_relaxed) == Window::kOpen;
}

// Whether an event of `step` is recorded; the first one opens the window for those of no step.
bool IsRecorded(Recorder* recorder, Step step) {
  if (step.value() < recorder->first.load(std::memory_order_relaxed) ||
      step.value() > recorder->last.load(std::memory_order_relaxed)) {
    return false;
  }
  Window before = Window::kNotYet;
  if (recorder->window.load(std::memory_order_relaxed) == before) {
    recorder->window.compare_exchange_strong(before, Window::kOpen, std::memory_order_relaxed);
  }
  return true;
}

void Keep(Recorder* recorder, const TraceEvent& event) {
  // A recording that StopTracing has ended meanwhile takes nothing, nor does what comes behind it.
  const uint64_t recording = recorder->recording.load(std::memory_order_acquire);
  if (!IsTracing()) return;
  if (recorder->num_events.fetch_add(1, std::memory_order_relaxed) >= kMaxTraceEvents) return;
  ThreadEvents* const events = EventsOfThread(recorder, recording);
  if (events == nullptr) return;
  absl::MutexLock lock(&events->mutex);
  if (events->recording == recording) events->events.push_back(event);
}

}  // namespace

std::atomic<bool> trace_internal::is_on{false};

void StartTracing(Step first, Step last) {
  StopTracing();
  Recorder& recorder = TheRecorder();
  recorder.first.store(first.value(), std::memory_order_relaxed);
  recorder.last.store(last.value(), std::memory_order_relaxed);
  recorder.window.store(first <= Step(0) ? Window::kOpen : Window::kNotYet,
                        std::memory_order_relaxed);
  recorder.num_events.store(0, std::memory_order_relaxed);
  {
    absl::MutexLock lock(&recorder.mutex);
    recorder.is_over = false;
  }
  trace_internal::is_on.store(true, std::memory_order_release);
}

void EndTraceOf(Step step) {
  Recorder& recorder = TheRecorder();
  if (!IsTracing() || step.value() < recorder.last.load(std::memory_order_relaxed)) return;
  if (recorder.window.exchange(Window::kOver, std::memory_order_relaxed) == Window::kOver) return;
  absl::MutexLock lock(&recorder.mutex);
  recorder.is_over = true;
}

void AwaitTraceEnd() {
  Recorder& recorder = TheRecorder();
  absl::MutexLock lock(&recorder.mutex);
  recorder.mutex.Await(absl::Condition(&recorder.is_over));
}

RecordedTrace StopTracing() {
  trace_internal::is_on.store(false, std::memory_order_relaxed);
  Recorder& recorder = TheRecorder();
  RecordedTrace recorded;
  absl::MutexLock lock(&recorder.mutex);
  recorder.recording.fetch_add(1, std::memory_order_release);
  const size_t num_events = recorder.num_events.load(std::memory_order_relaxed);
  if (num_events > kMaxTraceEvents) recorded.dropped = num_events - kMaxTraceEvents;
  for (auto& [name, thread] : recorder.threads) {
    absl::MutexLock events(&thread->mutex);
    thread->recording = 0;
    if (!thread->events.empty()) recorded.threads.push_back({name, std::move(thread->events)});
  }
  recorder.threads.clear();
  return recorded;
}

void NameTraceThread(const char* name) { thread_name = name; }

void TraceInterval(const char* name, Step step, int64_t begin_ns, TraceArgument argument) {
  if (begin_ns == 0 || !IsTracing() || !IsRecorded(&TheRecorder(), step)) return;
  Keep(&TheRecorder(), {name, argument, begin_ns, MonotonicNanos(), step, /*overlaps=*/true});
}

void TraceSpan::Begin(Step step, TraceArgument argument) {
  step_ = step;
  argument_ = argument;
  if (step != kNoStep) IsRecorded(&TheRecorder(), step);
  is_in_window_ = IsOpen(TheRecorder());
  begin_ns_ = MonotonicNanos();
}

void TraceSpan::End() {
  if (!IsTracing()) return;
  const bool is_recorded = step_ == kNoStep ? is_in_window_ : IsRecorded(&TheRecorder(), step_);
  if (!is_recorded) return;
  Keep(&TheRecorder(), {name_, argument_, begin_ns_, MonotonicNanos(), step_, /*overlaps=*/false});
}

}  // namespace thermocline
