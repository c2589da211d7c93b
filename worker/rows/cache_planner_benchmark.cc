// Nanoseconds a unique key to admit and to plan batches with the shape of Criteo's Kaggle log: 26
// tables, one lookup each, Zipf-distributed keys; what is popular changes slowly. Deduplication,
// which goes before, is not in it (batch_plan_benchmark.cc).
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/base/thread_pool.h"
#include "worker/rows/cache_planner.h"

namespace thermocline {
namespace {

constexpr uint64_t kRows[] = {1460,  583,  10131227, 2202608, 305, 24,     12517,   633,   3,
                              93145, 5683, 8351593,  3194,    27,  14992,  5461306, 10,    5652,
                              2173,  4,    7046547,  18,      15,  286181, 105,     142572};
constexpr int kTables = 26;
constexpr int kWindowSteps = 8;

// A key with P(rank) ~ 1 / rank, by inverting the continuous distribution.
Key DrawKey(uint64_t rows, std::mt19937_64* random) {
  const double u = std::uniform_real_distribution<double>()(*random);
  return static_cast<Key>(std::exp(u * std::log(rows + 1.0))) - 1;
}

std::vector<TableId> Tables() {
  std::vector<TableId> tables;
  for (uint32_t t = 0; t < kTables; ++t) tables.push_back(TableId(t));
  return tables;
}

// `num_plans` batches; of the keys of a table, those of every 16th rank are others from batch to
// batch.
std::vector<BatchPlan> MakePlans(int size, int num_plans, const ClusterMap& cluster) {
  std::mt19937_64 random(1);
  std::vector<int32_t> feature_tables;
  for (int t = 0; t < kTables; ++t) feature_tables.push_back(t);
  BatchPlanner planner(Tables(), feature_tables, cluster);
  std::vector<BatchPlan> plans(num_plans);
  Batch batch;
  batch.size = size;
  batch.features.resize(kTables);
  for (int b = 0; b < num_plans; ++b) {
    for (int t = 0; t < kTables; ++t) {
      FeatureLookups& feature = batch.features[t];
      feature.keys.clear();
      feature.offsets = {0};
      for (int i = 0; i < size; ++i) {
        const Key rank = DrawKey(kRows[t], &random);
        feature.keys.push_back(rank % 16 == 15 ? rank + (static_cast<Key>(b) << 32) : rank);
        feature.offsets.push_back(i + 1);
      }
    }
    planner.Plan(batch, &plans[b]);
  }
  return plans;
}

void BM_AdmitAndPlan(benchmark::State& state) {
  const ClusterMap cluster(static_cast<uint32_t>(state.range(1)));
  const int num_batches = 64;
  const std::vector<BatchPlan> batches =
      MakePlans(static_cast<int>(state.range(0)), num_batches, cluster);
  CachePlannerOptions options;
  options.groups.resize(1);
  for (int t = 0; t < kTables; ++t) options.groups[0].tables.push_back(t);
  options.groups[0].capacity = static_cast<int32_t>(state.range(2));
  options.window_steps = kWindowSteps;
  ThreadPool threads(static_cast<int>(state.range(3)));
  CachePlanner planner(options, cluster, Tables(), &threads);
  std::vector<CachePlan> plans(kWindowSteps + 1);
  int64_t admitted = 0;
  const auto admit = [&] {
    CHECK(planner
              .Admit(Step(admitted), SharesOf(batches[admitted % num_batches]),
                     &plans[admitted % plans.size()])
              .ok());
    ++admitted;
  };
  while (admitted < kWindowSteps) admit();
  int64_t step = 0;
  CacheCounts total;
  const auto plan = [&] {
    admit();
    CachePlan* const cache = &plans[step % plans.size()];
    planner.Plan(Step(step), SharesOf(batches[step % num_batches]), cache);
    total.hits += cache->counts.hits;
    total.loaded += cache->counts.loaded;
    total.bypassed += cache->counts.bypassed;
    total.evicted += cache->counts.evicted;
    ++step;
  };
  while (step < num_batches) plan();  // The cache is full.
  total = CacheCounts();
  for (auto _ : state) plan();
  const double keys = static_cast<double>(total.hits + total.loaded + total.bypassed);
  state.counters["ns_per_key"] =
      benchmark::Counter(keys * 1e-9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["keys_per_step"] = keys / static_cast<double>(state.iterations());
  state.counters["hit"] = total.hits / keys;
  state.counters["loaded"] = total.loaded / keys;
  state.counters["evicted"] = total.evicted / keys;
}

void Register(bool tiny) {
  benchmark::internal::Benchmark* const cases =
      benchmark::RegisterBenchmark("BM_AdmitAndPlan", BM_AdmitAndPlan);
  cases->ArgNames({"batch", "servers", "capacity", "threads"})->UseRealTime();
  if (tiny) {
    cases->Args({16, 2, 64, 2})->Iterations(10);
    return;
  }
  for (int64_t capacity : {0, 50'000, 1'000'000}) {
    cases->Args({2048, 1, capacity, 1});
    cases->Args({2048, 4, capacity, 1});
  }
  for (int64_t threads : {1, 2}) {
    cases->Args({2048, 1, 50'000, threads});
    cases->Args({16384, 4, 1'000'000, threads});
  }
}

}  // namespace
}  // namespace thermocline

// --tiny: one small case, so that a test runs all of it.
int main(int argc, char** argv) {
  const bool tiny = argc > 1 && std::strcmp(argv[1], "--tiny") == 0;
  if (tiny) --argc;
  thermocline::Register(tiny);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
