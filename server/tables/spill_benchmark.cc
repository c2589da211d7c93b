// Pulls from a table of which a tenth fits its memory budget, against the database alone:
//
//   table    EmbeddingTable::GatherWeights, 16 floats a row, Adagrad, rows beyond the budget in
//            RocksDB; rows that are read back stay in memory while there is room
//   updates  the same, each batch followed by its ApplyGradients
//   RocksDB  MultiGet of all rows of the same keys, sorted, from one with the same options
//
// Keys are skewed: the k-th most used is drawn with probability proportional to k^-skew. Times of
// the clock, since the database reads and compacts in threads of its own. The contestants run in
// turn, repetition by repetition; ratios are taken within a repetition.
//
//   spill_benchmark [--rows=N] [--batch=N] [--batches=N] [--repetitions=N] [--skew=X]
#include <unistd.h>

#include <algorithm>
#include <chrono>
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
#include "common/check.h"
#include "common/net/mutex_tuning.h"
#include "server/storage/rocksdb_row_store.h"
#include "server/tables/embedding_table.h"

ABSL_FLAG(uint32_t, rows, 2000000, "Rows in the table.");
ABSL_FLAG(uint32_t, batch, 4096, "Distinct keys in one call.");
ABSL_FLAG(uint32_t, batches, 20, "Calls in one measurement.");
ABSL_FLAG(uint32_t, repetitions, 7, "Measurements of each contestant.");
ABSL_FLAG(double, skew, 1.05, "Exponent of the keys' frequencies.");
ABSL_FLAG(std::string, directory, "", "For the databases; default: one below TMPDIR.");

namespace thermocline {
namespace {

constexpr int kDim = 16;
using Batches = std::vector<std::vector<Key>>;

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
void Fill(uint32_t rows, EmbeddingTable* table, RowStore* bare) {
  constexpr uint32_t kBatch = 4096;
  std::vector<Key> keys;
  for (uint32_t first = 0; first < rows; first += kBatch) {
    keys.resize(std::min(kBatch, rows - first));
    for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = KeyOfRank(first + i);
    Apply(keys, table, 0);
    const std::vector<uint8_t> stored(keys.size() * StoredRowBytes(table->layout()), 1);
    CHECK(bare->Write(keys, stored).ok());
  }
}

double RunTable(const Batches& batches, bool updates, EmbeddingTable* table) {
  std::vector<uint8_t> weights(batches[0].size() * kDim * sizeof(float));
  const double start = SecondsNow();
  for (const std::vector<Key>& keys : batches) {
    CHECK(table->GatherWeights(keys, weights.data()).ok());
    if (updates) Apply(keys, table, 1);
  }
  return SecondsNow() - start;
}

double RunBare(const Batches& batches, size_t row_bytes, RowStore* bare) {
  const size_t n = batches[0].size();
  std::vector<uint8_t> rows(n * row_bytes);
  const auto found = std::make_unique<bool[]>(n);
  const double start = SecondsNow();
  for (const std::vector<Key>& keys : batches) {
    CHECK(bare->MultiGet(keys, absl::MakeSpan(rows), absl::MakeSpan(found.get(), n)).ok());
    CHECK(found[0] && found[n - 1]);
  }
  return SecondsNow() - start;
}

void Report(const char* what, const char* unit, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf("%-28s median %8.3f  (%.3f .. %.3f) %s\n", what, values[values.size() / 2],
              values.front(), values.back(), unit);
}

void Measure(EmbeddingTable* table, RowStore* bare) {
  SkewedKeys skewed(absl::GetFlag(FLAGS_rows), absl::GetFlag(FLAGS_skew));
  const auto draw = [&] {
    Batches batches;
    for (uint32_t i = 0; i < absl::GetFlag(FLAGS_batches); ++i) {
      batches.push_back(skewed.Batch(absl::GetFlag(FLAGS_batch)));
    }
    return batches;
  };
  for (int i = 0; i < 3; ++i) RunTable(draw(), /*updates=*/true, table);  // Warms it up.
  RunBare(draw(), StoredRowBytes(table->layout()), bare);
  const uint64_t read_back = table->spill_stats()->rows_read_back;
  std::vector<double> pulls, updates, bare_pulls, ratio;
  double keys_pulled = 0;
  for (uint32_t i = 0; i < absl::GetFlag(FLAGS_repetitions); ++i) {
    // Fresh keys for each: none finds what another has just read.
    Batches batches = draw();
    const double keys = 1e-6 * static_cast<double>(batches.size() * batches[0].size());
    const double table_s = RunTable(batches, /*updates=*/false, table);
    batches = draw();
    const double updates_s = RunTable(batches, /*updates=*/true, table);
    batches = draw();
    const double bare_s = RunBare(batches, StoredRowBytes(table->layout()), bare);
    pulls.push_back(keys / table_s);
    updates.push_back(keys / updates_s);
    bare_pulls.push_back(keys / bare_s);
    ratio.push_back(bare_s / table_s);
    keys_pulled += 2e6 * keys;
  }
  Report("table", "M rows/s", pulls);
  Report("table, with updates", "M rows/s", updates);
  Report("RocksDB MultiGet", "M rows/s", bare_pulls);
  Report("table / RocksDB", "x   (goal: 3 or more)", ratio);
  const EmbeddingTable::SpillStats stats = *table->spill_stats();
  std::printf("read back: %.1f%% of the keys; in memory: %.1f%% of the rows, %.1f MB\n",
              100 * static_cast<double>(stats.rows_read_back - read_back) / keys_pulled,
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
    const std::unique_ptr<RowStore> bare = *bare_stores.Open(layout);
    std::printf("rows %u, dim %d, Adagrad, budget %.1f MB, batch %u, skew %.2f\n", rows, kDim,
                1e-6 * static_cast<double>(layout.memory_budget_bytes), absl::GetFlag(FLAGS_batch),
                absl::GetFlag(FLAGS_skew));
    const double start = SecondsNow();
    Fill(rows, &table, bare.get());
    std::printf("filled both in %.1f s\n", SecondsNow() - start);
    Measure(&table, bare.get());
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
