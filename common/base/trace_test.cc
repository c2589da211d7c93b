#include "common/base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::string> NamesOf(const TraceThread& thread) {
  std::vector<std::string> names;
  for (const TraceEvent& event : thread.events) names.push_back(event.name);
  return names;
}

// All events, of all threads.
std::vector<TraceEvent> EventsOf(const RecordedTrace& recorded) {
  std::vector<TraceEvent> events;
  for (const TraceThread& thread : recorded.threads) {
    events.insert(events.end(), thread.events.begin(), thread.events.end());
  }
  return events;
}

TEST(TraceTest, RecordsNothingUnlessItIsOn) {
  StopTracing();
  { const TraceSpan span("before", Step(3)); }
  TraceInterval("before", Step(3), TraceBegin());
  EXPECT_EQ(TraceBegin(), 0);
  StartTracing(Step(0), Step(10));
  EXPECT_TRUE(IsTracing());
  EXPECT_THAT(StopTracing().threads, IsEmpty());
  EXPECT_FALSE(IsTracing());
}

TEST(TraceTest, SpansOfAThreadNestAndSayWhatTheyAreOf) {
  StartTracing(Step(5), Step(6));
  const int64_t before_ns = MonotonicNanos();
  {
    const TraceSpan outer("outer", Step(5));
    const TraceSpan inner("inner", Step(5), {"server", 3});
  }
  const int64_t after_ns = MonotonicNanos();
  const RecordedTrace recorded = StopTracing();
  ASSERT_EQ(recorded.threads.size(), 1u);
  ASSERT_THAT(NamesOf(recorded.threads[0]), ElementsAre("inner", "outer"));
  const TraceEvent& inner = recorded.threads[0].events[0];
  const TraceEvent& outer = recorded.threads[0].events[1];
  EXPECT_EQ(inner.step, Step(5));
  EXPECT_STREQ(inner.argument.name, "server");
  EXPECT_EQ(inner.argument.value, 3);
  EXPECT_FALSE(inner.overlaps);
  EXPECT_LE(before_ns, outer.begin_ns);
  EXPECT_LE(outer.begin_ns, inner.begin_ns);
  EXPECT_LE(inner.begin_ns, inner.end_ns);
  EXPECT_LE(inner.end_ns, outer.end_ns);
  EXPECT_LE(outer.end_ns, after_ns);
  EXPECT_EQ(recorded.dropped, 0u);
}

TEST(TraceTest, OnlyTheStepsAskedForAreRecorded) {
  StartTracing(Step(2), Step(3));
  for (int64_t step = 0; step < 6; ++step) {
    const TraceSpan span("step", Step(step));
    TraceInterval("call", Step(step), TraceBegin());
  }
  std::vector<int64_t> steps;
  for (const TraceEvent& event : EventsOf(StopTracing())) steps.push_back(event.step.value());
  EXPECT_THAT(steps, ElementsAre(2, 2, 3, 3));
}

TEST(TraceTest, EventsOfNoStepAreRecordedFromTheFirstStepToTheEndOfTheLast) {
  StartTracing(Step(2), Step(3));
  { const TraceSpan span("too early"); }
  { const TraceSpan span("first", Step(2)); }
  { const TraceSpan span("within"); }
  EndTraceOf(Step(2));
  { const TraceSpan span("still within"); }
  EndTraceOf(Step(3));
  AwaitTraceEnd();
  { const TraceSpan span("too late"); }
  { const TraceSpan span("last", Step(3)); }  // A span of an asked step may end late.
  const RecordedTrace recorded = StopTracing();
  ASSERT_EQ(recorded.threads.size(), 1u);
  EXPECT_THAT(NamesOf(recorded.threads[0]), ElementsAre("first", "within", "still within", "last"));
}

TEST(TraceTest, ATraceFromStep0OnHasWhatComesBeforeIt) {
  StartTracing(Step(0), Step(1));
  { const TraceSpan span("open files"); }
  EXPECT_EQ(EventsOf(StopTracing()).size(), 1u);
}

TEST(TraceTest, AStepMayBeKnownOnlyAtTheEnd) {
  StartTracing(Step(2), Step(2));
  for (int64_t step = 1; step < 4; ++step) {
    TraceSpan span("read");
    span.set_step(Step(step));
  }
  const std::vector<TraceEvent> events = EventsOf(StopTracing());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].step, Step(2));
}

TEST(TraceTest, AnIntervalEndsOnAnotherThread) {
  StartTracing(Step(0), Step(0));
  const int64_t begin_ns = TraceBegin();
  std::thread([begin_ns] {
    NameTraceThread("answers");
    TraceInterval("pull from", Step(0), begin_ns, {"server", 1});
  }).join();
  const RecordedTrace recorded = StopTracing();
  ASSERT_EQ(recorded.threads.size(), 1u);
  EXPECT_EQ(recorded.threads[0].name, "answers");
  EXPECT_TRUE(recorded.threads[0].events[0].overlaps);
  EXPECT_EQ(recorded.threads[0].events[0].begin_ns, begin_ns);
}

TEST(TraceTest, EachThreadHasItsEventsAlsoOnceItHasEnded) {
  StartTracing(Step(0), Step(0));
  std::vector<std::thread> threads;
  for (const char* name : {"a", "b", "c"}) {
    threads.emplace_back([name] {
      NameTraceThread(name);
      for (int i = 0; i < 1000; ++i) const TraceSpan span(name, Step(0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const RecordedTrace recorded = StopTracing();
  std::vector<std::string> names;
  for (const TraceThread& thread : recorded.threads) {
    names.push_back(thread.name);
    EXPECT_EQ(thread.events.size(), 1000u);
    for (const TraceEvent& event : thread.events) EXPECT_EQ(event.name, thread.name);
  }
  EXPECT_THAT(names, UnorderedElementsAre("a", "b", "c"));
}

TEST(TraceTest, EventsBeyondTheLimitAreCounted) {
  StartTracing(Step(0), Step(0));
  for (size_t i = 0; i < kMaxTraceEvents + 7; ++i) const TraceSpan span("many", Step(0));
  const RecordedTrace recorded = StopTracing();
  EXPECT_EQ(EventsOf(recorded).size(), kMaxTraceEvents);
  EXPECT_EQ(recorded.dropped, 7u);
}

TEST(TraceTest, MayStopWhileThreadsRecord) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&stop] {
      while (!stop.load()) {
        const TraceSpan span("busy", Step(0));
        TraceInterval("call", Step(0), TraceBegin());
      }
    });
  }
  for (int rounds_with_events = 0; rounds_with_events < 50;) {
    StartTracing(Step(0), Step(0));
    std::this_thread::yield();
    const std::vector<TraceEvent> events = EventsOf(StopTracing());
    rounds_with_events += events.empty() ? 0 : 1;
    for (const TraceEvent& event : events) EXPECT_LE(event.begin_ns, event.end_ns);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(StopTracing().threads, IsEmpty());
}

}  // namespace
}  // namespace thermocline
