// Pulls from a table of which a tenth fits its memory budget, against the database alone:
//
//   table    EmbeddingTable::GatherWeights, 16 floats a row, Adagrad, rows beyond the budget in
//            RocksDB; rows that are read back stay in memory while there is room
//   updates  the same, each batch followed by its ApplyGradients
//   memory   GatherWeights of a table without a budget
//   RocksDB  MultiGet of all rows of the same keys, sorted, from one with the same options
//
// A key that is not in memory costs what it costs in RocksDB, so the table can't be faster than the
// share of such keys allows: `bound` is RocksDB's time over share * RocksDB's + (1 - share) *
// memory's. It is printed beside the ratio.
//
// Keys are skewed: the k-th most used is drawn with probability proportional to k^-skew. Times of
// the clock, since the database reads and compacts in threads of its own. The contestants run in
// turn, repetition by repetition; ratios are taken within a repetition.
//
//   spill_benchmark [--rows=N] [--batch=N] [--batches=N] [--repetitions=N] [--skew=X]
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "common/base/check.h"
#include "common/base/process.h"
#include "server/storage/rocksdb_row_store.h"
#include "server/tables/embedding_table.h"

ABSL_FLAG(uint32_t, rows, 2000000, "Rows in the table.");
ABSL_FLAG(uint32_t, batch, 4096, "Distinct keys in one call.");
ABSL_FLAG(uint32_t, batches, 20, "Calls in one measurement.");
ABSL_FLAG(uint32_t, repetitions, 7, "Measurements of each contestant.");
ABSL_FLAG(uint32_t, warm_up, 3, "Measurements before the first one that counts.");
ABSL_FLAG(double, skew, 1.05, "Exponent of the keys' frequencies.");
ABSL_FLAG(std::string, directory, "", "For the databases; default: one below TMPDIR.");

namespace thermocline {
namespace {

constexpr int kDim = 16;
using Batches = std::vector<std::vector<Key>>;

double SecondsOf(clockid_t clock) {
  timespec time;
  CHECK(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
double SecondsNow() { return SecondsOf(CLOCK_MONOTONIC); }

// What a run took: time of the clock, of this thread's processor, and of all threads'.
struct Took {
  double clock_s, thread_s, process_s;
};
class Timer {
 public:
  Took Elapsed() const {
    return {SecondsNow() - clock_s_, SecondsOf(CLOCK_THREAD_CPUTIME_ID) - thread_s_,
            SecondsOf(CLOCK_PROCESS_CPUTIME_ID) - process_s_};
  }

 private:
  const double clock_s_ = SecondsNow();
  const double thread_s_ = SecondsOf(CLOCK_THREAD_CPUTIME_ID);
  const double process_s_ = SecondsOf(CLOCK_PROCESS_CPUTIME_ID);
};

Key KeyOfRank(uint64_t rank) { return Mix64(rank); }

// Draws ranks by the inverse of their continuous distribution.
class SkewedKeys {
 public:
  SkewedKeys(uint32_t rows, double skew) : rows_(rows), power_(1 - skew) {}

  std::vector<Key> Batch(uint32_t size) {
    absl::flat_hash_set<uint64_t> ranks;
    while (ranks.size() < std::min(size, rows_)) ranks.insert(Rank());
    std::vector<Key> keys;
    for (const uint64_t rank : ranks) keys.push_back(KeyOfRank(rank));
    return keys;
  }

 private:
  uint64_t Rank() {
    const double u = std::uniform_real_distribution<double>(0, 1)(random_);
    const double n = rows_ + 1.0;
    const double rank = std::abs(power_) < 1e-9
                            ? std::pow(n, u)
                            : std::pow(1 + u * (std::pow(n, power_) - 1), 1 / power_);
    return std::min<uint64_t>(static_cast<uint64_t>(rank) - 1, rows_ - 1);
  }

  const uint32_t rows_;
  const double power_;
  std::mt19937_64 random_{1};
};

void Apply(const std::vector<Key>& keys, EmbeddingTable* table, int64_t step) {
  const std::vector<float> gradients(keys.size() * kDim, 0.01f);
  CHECK(table
            ->ApplyGradients(keys, std::vector<uint32_t>(keys.size(), 1), gradients,
                             ScalarsForStep(table->layout().optimizer, 0.01f, Step(step)),
                             Step(step))
            .ok());
}

// All rows, in the order of keys that have nothing to do with their use.
void Fill(uint32_t rows, EmbeddingTable* table, EmbeddingTable* memory, RowStore* bare) {
  constexpr uint32_t kBatch = 4096;
  std::vector<Key> keys;
  for (uint32_t first = 0; first < rows; first += kBatch) {
    keys.resize(std::min(kBatch, rows - first));
    for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = KeyOfRank(first + i);
    Apply(keys, table, 0);
    Apply(keys, memory, 0);
    const std::vector<uint8_t> stored(keys.size() * StoredRowBytes(table->layout()), 1);
    CHECK(bare->Write(keys, stored).ok());
  }
}

Took RunTable(const Batches& batches, bool updates, EmbeddingTable* table) {
  std::vector<uint8_t> weights(batches[0].size() * kDim * sizeof(float));
  const Timer timer;
  for (const std::vector<Key>& keys : batches) {
    CHECK(table->GatherWeights(keys, weights.data()).ok());
    if (updates) Apply(keys, table, 1);
  }
  return timer.Elapsed();
}

Took RunBare(const Batches& batches, size_t row_bytes, RowStore* bare) {
  const size_t n = batches[0].size();
  std::vector<uint8_t> rows(n * row_bytes);
  const auto found = std::make_unique<bool[]>(n);
  const Timer timer;
  for (const std::vector<Key>& keys : batches) {
    CHECK(bare->MultiGet(keys, absl::MakeSpan(rows), absl::MakeSpan(found.get(), n)).ok());
    CHECK(found[0] && found[n - 1]);
  }
  return timer.Elapsed();
}

void Report(const char* what, const char* unit, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf("%-28s median %8.3f  (%.3f .. %.3f) %s\n", what, values[values.size() / 2],
              values.front(), values.back(), unit);
}

// Measurements of one contestant, by repetition.
struct Pulls {
  std::vector<double> million_rows_s, thread_ns, process_ns;

  void Add(const Took& took, double keys) {
    million_rows_s.push_back(1e-6 * keys / took.clock_s);
    thread_ns.push_back(1e9 * took.thread_s / keys);
    process_ns.push_back(1e9 * took.process_s / keys);
  }
  void Print(const char* what) const {
    Report(what, "M rows/s", million_rows_s);
    Report("  processor, this thread", "ns a row", thread_ns);
    Report("  processor, all threads", "ns a row", process_ns);
  }
};

void Measure(EmbeddingTable* table, EmbeddingTable* memory, RowStore* bare) {
  SkewedKeys skewed(absl::GetFlag(FLAGS_rows), absl::GetFlag(FLAGS_skew));
  const auto draw = [&] {
    Batches batches;
    for (uint32_t i = 0; i < absl::GetFlag(FLAGS_batches); ++i) {
      batches.push_back(skewed.Batch(absl::GetFlag(FLAGS_batch)));
    }
    return batches;
  };
  for (uint32_t i = 0; i < absl::GetFlag(FLAGS_warm_up); ++i) {
    RunTable(draw(), /*updates=*/true, table);
  }
  RunBare(draw(), StoredRowBytes(table->layout()), bare);
  const auto read_back = [table] { return table->spill_stats()->rows_read_back; };
  Pulls pulls, updates, in_memory, bare_pulls;
  std::vector<double> ratio, bound, thread_ratio, thread_bound, missed;
  const auto bound_of = [](double misses, double bare_s, double memory_s) {
    return bare_s / (misses * bare_s + (1 - misses) * memory_s);
  };
  for (uint32_t i = 0; i < absl::GetFlag(FLAGS_repetitions); ++i) {
    // Fresh keys for each: none finds what another has just read.
    Batches batches = draw();
    const double keys = static_cast<double>(batches.size() * batches[0].size());
    const uint64_t read_before = read_back();
    const Took table_took = RunTable(batches, /*updates=*/false, table);
    const double misses = static_cast<double>(read_back() - read_before) / keys;
    pulls.Add(table_took, keys);
    updates.Add(RunTable(draw(), /*updates=*/true, table), keys);
    const Took memory_took = RunTable(draw(), /*updates=*/false, memory);
    in_memory.Add(memory_took, keys);
    const Took bare_took = RunBare(draw(), StoredRowBytes(table->layout()), bare);
    bare_pulls.Add(bare_took, keys);
    ratio.push_back(bare_took.clock_s / table_took.clock_s);
    bound.push_back(bound_of(misses, bare_took.clock_s, memory_took.clock_s));
    thread_ratio.push_back(bare_took.thread_s / table_took.thread_s);
    thread_bound.push_back(bound_of(misses, bare_took.thread_s, memory_took.thread_s));
    missed.push_back(100 * misses);
  }
  pulls.Print("table");
  updates.Print("table, with updates");
  in_memory.Print("table in memory");
  bare_pulls.Print("RocksDB MultiGet");
  Report("table / RocksDB", "x   (goal: 3 or more)", ratio);
  Report("  its bound", "x", bound);
  Report("  by this thread's processor", "x", thread_ratio);
  Report("  its bound", "x", thread_bound);
  Report("keys not in memory", "% of those pulled", missed);
  const SpillStats stats = *table->spill_stats();
  std::printf("in memory: %.1f%% of the rows, %.1f MB\n",
              100 * static_cast<double>(stats.rows_in_memory) / table->num_rows(),
              1e-6 * static_cast<double>(table->memory_bytes()));
}

int Main() {
  const uint32_t rows = absl::GetFlag(FLAGS_rows);
  if (rows < 2 || absl::GetFlag(FLAGS_batch) == 0 || absl::GetFlag(FLAGS_batches) == 0 ||
      absl::GetFlag(FLAGS_repetitions) == 0) {
    std::fprintf(stderr, "rows, batch, batches and repetitions must be positive\n");
    return 2;
  }
  std::string directory = absl::GetFlag(FLAGS_directory);
  if (directory.empty()) {
    directory =
        std::filesystem::temp_directory_path() / ("spill_benchmark." + std::to_string(getpid()));
  }
  TableLayout layout;
  layout.id = TableId(1);
  layout.name = "benchmark";
  layout.dim = kDim;
  layout.init_scale = 0.01f;
  layout.memory_budget_bytes = uint64_t{rows} * sizeof(float) * layout.row_floats() / 10;
  {
    RocksDbRowStoreOpener table_stores(directory + "/table");
    RocksDbRowStoreOpener bare_stores(directory + "/bare");
    TableSpill spill;
    spill.store = *table_stores.Open(layout);
    spill.on_broken = [](const absl::Status&) { std::abort(); };
    EmbeddingTable table(layout, 0, std::move(spill));
    EmbeddingTable memory(layout, 0);
    const std::unique_ptr<RowStore> bare = *bare_stores.Open(layout);
    std::printf("rows %u, dim %d, Adagrad, budget %.1f MB, batch %u, skew %.2f\n", rows, kDim,
                1e-6 * static_cast<double>(layout.memory_budget_bytes), absl::GetFlag(FLAGS_batch),
                absl::GetFlag(FLAGS_skew));
    const double start = SecondsNow();
    Fill(rows, &table, &memory, bare.get());
    std::printf("filled in %.1f s\n", SecondsNow() - start);
    Measure(&table, &memory, bare.get());
  }
  std::filesystem::remove_all(directory);
  return 0;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  thermocline::TurnOffMutexChecks();  // As the programs do.
  return thermocline::Main();
}
