// Records what the threads of this process do in some steps of training, for `train --trace`: spans
// with a name and a step, by thread. common/trace writes them to a file.
//
// While nothing is traced, a span costs one relaxed load of an atomic and allocates nothing.
#ifndef THERMOCLINE_COMMON_BASE_TRACE_H_
#define THERMOCLINE_COMMON_BASE_TRACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/timing.h"

namespace thermocline {

// A process keeps at most this many events (15 MB); it counts those beyond.
inline constexpr size_t kMaxTraceEvents = size_t{1} << 18;

// A number that belongs to an event, such as {"server", 3}. Names are string literals.
struct TraceArgument {
  const char* name = nullptr;  // Null: there is none.
  int64_t value = 0;
};

struct TraceEvent {
  const char* name = nullptr;  // A string literal.
  TraceArgument argument;
  int64_t begin_ns = 0;  // MonotonicNanos()
  int64_t end_ns = 0;
  Step step = kNoStep;  // kNoStep: it belongs to no step.
  // Whether it is an interval that may overlap others of its thread, such as a call under way.
  bool overlaps = false;
};

struct TraceThread {
  std::string name;
  std::vector<TraceEvent> events;  // In the order of their ends.
};

struct RecordedTrace {
  std::vector<TraceThread> threads;  // In the order of their first events.
  uint64_t dropped = 0;              // Events beyond kMaxTraceEvents.
};

// Begins to record, in this process: events of steps from `first` to `last`; and those of no step
// from the first of these on (from now on where `first` is step 0). What was recorded before is
// forgotten. Thread-safe, like all of these functions.
void StartTracing(Step first, Step last);
// All that belongs to the steps up to `step` is done. From the last traced one on, events of no
// step are recorded no longer.
void EndTraceOf(Step step);
// Waits until EndTraceOf has ended the last traced step.
void AwaitTraceEnd();
// Ends recording, and returns what was recorded. Events under way are lost.
RecordedTrace StopTracing();

// Names the calling thread in traces. `name`: a string literal.
void NameTraceThread(const char* name);

namespace trace_internal {
extern std::atomic<bool> is_on;
}  // namespace trace_internal

inline bool IsTracing() { return trace_internal::is_on.load(std::memory_order_relaxed); }

// What the calling thread does from the construction to the destruction of this object. Spans of a
// thread nest.
class TraceSpan {
 public:
  // `name`: a string literal.
  explicit TraceSpan(const char* name, Step step = kNoStep, TraceArgument argument = {})
      : name_(IsTracing() ? name : nullptr) {
    if (name_ != nullptr) Begin(step, argument);
  }
  ~TraceSpan() {
    if (name_ != nullptr) End();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  // For a step that is known only at the end.
  void set_step(Step step) { step_ = step; }

 private:
  void Begin(Step step, TraceArgument argument);
  void End();

  const char* name_;  // Null: it is not recorded.
  bool is_in_window_;
  Step step_;
  TraceArgument argument_;
  int64_t begin_ns_;
};

// The begin of an interval that may end on another thread; 0 where nothing is traced.
inline int64_t TraceBegin() { return IsTracing() ? MonotonicNanos() : 0; }
// Records an interval of a step from `begin_ns` until now, which may overlap others; none where it
// is 0.
void TraceInterval(const char* name, Step step, int64_t begin_ns, TraceArgument argument = {});

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_TRACE_H_
