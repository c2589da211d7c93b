// Nanoseconds a lookup to plan one batch with the shape of Criteo's Kaggle log: 26 tables, one
// lookup each, Zipf-distributed keys.
#include <cmath>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "worker/plan/batch_plan.h"

namespace thermocline {
namespace {

constexpr uint64_t kRows[] = {1460,  583,  10131227, 2202608, 305, 24,     12517,   633,   3,
                              93145, 5683, 8351593,  3194,    27,  14992,  5461306, 10,    5652,
                              2173,  4,    7046547,  18,      15,  286181, 105,     142572};

// A key with P(rank) ~ 1 / rank, by inverting the continuous distribution.
Key DrawKey(uint64_t rows, std::mt19937_64* random) {
  const double u = std::uniform_real_distribution<double>()(*random);
  return static_cast<Key>(std::exp(u * std::log(rows + 1.0))) - 1;
}

std::vector<Batch> MakeBatches(int size, int count) {
  std::mt19937_64 random(1);
  std::vector<Batch> batches(count);
  for (Batch& batch : batches) {
    batch.size = size;
    for (uint64_t rows : kRows) {
      FeatureLookups& feature = batch.features.emplace_back();
      feature.offsets.push_back(0);
      for (int i = 0; i < size; ++i) {
        feature.keys.push_back(DrawKey(rows, &random));
        feature.offsets.push_back(i + 1);
      }
    }
  }
  return batches;
}

void BM_Plan(benchmark::State& state) {
  const int size = static_cast<int>(state.range(0));
  const uint32_t servers = static_cast<uint32_t>(state.range(1));
  const std::vector<Batch> batches = MakeBatches(size, 16);
  std::vector<TableId> tables;
  std::vector<int32_t> feature_tables;
  for (int t = 0; t < 26; ++t) {
    tables.push_back(TableId(static_cast<uint32_t>(t)));
    feature_tables.push_back(t);
  }
  BatchPlanner planner(tables, feature_tables, ClusterMap(servers));
  std::vector<BatchPlan> plans(4);  // As many as are in flight.
  size_t step = 0;
  int64_t unique = 0;
  for (auto _ : state) {
    BatchPlan& plan = plans[step % plans.size()];
    planner.Plan(batches[step % batches.size()], &plan);
    ++step;
    for (const TablePlan& table : plan.tables) unique += table.num_unique();
  }
  const double lookups = static_cast<double>(state.iterations()) * size * 26;
  state.counters["ns_per_lookup"] =
      benchmark::Counter(lookups * 1e-9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["unique_share"] = unique / lookups;
}
BENCHMARK(BM_Plan)
    ->ArgNames({"batch", "servers"})
    ->Args({256, 1})
    ->Args({2048, 1})
    ->Args({2048, 4})
    ->Args({16384, 4});

}  // namespace
}  // namespace thermocline
