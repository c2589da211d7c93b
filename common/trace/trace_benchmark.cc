// Nanoseconds a span takes: when nothing is traced; of a step that is not traced; of one that is.
#include "benchmark/benchmark.h"
#include "common/base/trace.h"

namespace thermocline {
namespace {

void BM_SpanOff(benchmark::State& state) {
  StopTracing();
  for (auto _ : state) {
    const TraceSpan span("span", Step(5));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_SpanOff);

void BM_SpanOfAnotherStep(benchmark::State& state) {
  StartTracing(Step(7), Step(8));
  for (auto _ : state) {
    const TraceSpan span("span", Step(5));
    benchmark::ClobberMemory();
  }
  StopTracing();
}
BENCHMARK(BM_SpanOfAnotherStep);

void BM_SpanRecorded(benchmark::State& state) {
  size_t spans = kMaxTraceEvents;
  for (auto _ : state) {
    if (spans == kMaxTraceEvents) {
      state.PauseTiming();
      StartTracing(Step(5), Step(5));
      spans = 0;
      state.ResumeTiming();
    }
    ++spans;
    const TraceSpan span("span", Step(5));
    benchmark::ClobberMemory();
  }
  StopTracing();
}
BENCHMARK(BM_SpanRecorded);

}  // namespace
}  // namespace thermocline

BENCHMARK_MAIN();
