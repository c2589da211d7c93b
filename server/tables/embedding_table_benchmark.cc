// Reading rows by key, without RPC, against what bounds it and what it replaces:
//
//   gather     rows of 64 aligned bytes by index, prefetched: no hashing, no locks; the upper bound
//   table      EmbeddingTable::GatherWeights, 16 floats a row, Adagrad
//   flat map   absl::flat_hash_map with its values inline, prefetched 64 keys ahead, then copied
//
// One thread. The three run in turn, repetition by repetition, so that a busy machine slows them
// alike; ratios are taken within a repetition. Also prints the speed of ApplyGradients, the memory
// a row takes, by the table's own count and by the process's resident size, and what a snapshot
// costs.
//
//   embedding_table_benchmark [--rows=N] [--batch=N] [--repetitions=N] [--lookups=N]
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "common/base/check.h"
#include "common/base/page_memory.h"
#include "common/base/process.h"
#include "server/tables/embedding_table.h"

ABSL_FLAG(uint32_t, rows, 8000000, "Rows in the table.");
ABSL_FLAG(uint32_t, batch, 4096, "Keys in one call.");
ABSL_FLAG(uint32_t, repetitions, 15, "Measurements of each contestant.");
ABSL_FLAG(uint32_t, lookups, 1 << 20, "Lookups in one measurement.");
ABSL_FLAG(bool, flat_map, true, "Measure the flat map too.");

namespace thermocline {
namespace {

constexpr int kDim = 16;
using Row = std::array<float, kDim>;
using FlatMap = absl::flat_hash_map<Key, Row>;

// CPU time of this thread: what others do with the cores in between doesn't count.
double SecondsNow() {
  timespec now;
  CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string ValueIn(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) != 0) continue;
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "unknown";
}

uint64_t ResidentBytes() { return std::stoull(ValueIn("/proc/self/status", "VmRSS")) * 1024; }

Key KeyOfRow(uint64_t i) { return Mix64(i); }

struct Workload {
  uint32_t batch;
  std::vector<uint32_t> rows;  // [lookups], random
  std::vector<Key> keys;       // [lookups], of these rows
  size_t num_batches() const { return rows.size() / batch; }
};

Workload MakeWorkload(uint32_t rows, uint32_t batch, uint32_t lookups) {
  Workload workload;
  workload.batch = batch;
  std::mt19937_64 random(1);
  for (uint32_t i = 0; i < std::max(lookups / batch, 1u) * batch; ++i) {
    workload.rows.push_back(static_cast<uint32_t>(random() % rows));
    workload.keys.push_back(KeyOfRow(workload.rows.back()));
  }
  return workload;
}

std::unique_ptr<EmbeddingTable> MakeTable(uint32_t rows) {
  TableLayout layout;
  layout.id = TableId(1);
  layout.name = "benchmark";
  layout.dim = kDim;
  layout.init_scale = 0.01f;
  auto table = std::make_unique<EmbeddingTable>(layout, 0);
  constexpr uint32_t kBatch = 4096;
  const std::vector<float> gradients(kBatch * kDim, 0.01f);
  const std::vector<uint32_t> counts(kBatch, 1);
  const UpdateScalars scalars = ScalarsForStep(layout.optimizer, 0.01f, Step(0));
  std::vector<Key> keys;
  for (uint32_t first = 0; first < rows; first += kBatch) {
    keys.resize(std::min(kBatch, rows - first));
    for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = KeyOfRow(first + i);
    CHECK(table
              ->ApplyGradients(keys, absl::MakeConstSpan(counts).first(keys.size()),
                               absl::MakeConstSpan(gradients).first(keys.size() * kDim), scalars,
                               Step(0))
              .ok());
  }
  return table;
}

// ---- The contestants; each writes one batch to `out` [batch, kDim] and returns its seconds ----

double RunGather(const Workload& workload, const uint8_t* rows, uint8_t* out) {
  constexpr size_t kRowBytes = sizeof(Row);
  constexpr size_t kAhead = 16;
  const double start = SecondsNow();
  for (size_t b = 0; b < workload.num_batches(); ++b) {
    const uint32_t* at = workload.rows.data() + b * workload.batch;
    for (size_t i = 0; i < workload.batch; ++i) {
      if (i + kAhead < workload.batch) __builtin_prefetch(rows + at[i + kAhead] * kRowBytes);
      std::memcpy(out + i * kRowBytes, rows + at[i] * kRowBytes, kRowBytes);
    }
  }
  return SecondsNow() - start;
}

double RunTable(const Workload& workload, const EmbeddingTable& table, uint8_t* out) {
  const double start = SecondsNow();
  for (size_t b = 0; b < workload.num_batches(); ++b) {
    CHECK(
        table
            .GatherWeights(
                absl::MakeConstSpan(workload.keys).subspan(b * workload.batch, workload.batch), out)
            .ok());
  }
  return SecondsNow() - start;
}

double RunFlatMap(const Workload& workload, const FlatMap& map, uint8_t* out) {
  constexpr size_t kAhead = 64;
  const double start = SecondsNow();
  for (size_t b = 0; b < workload.num_batches(); ++b) {
    const Key* keys = workload.keys.data() + b * workload.batch;
    for (size_t i = 0; i < workload.batch; ++i) {
      if (i + kAhead < workload.batch) map.prefetch(keys[i + kAhead]);
      const auto found = map.find(keys[i]);
      std::memcpy(out + i * sizeof(Row), found->second.data(), sizeof(Row));
    }
  }
  return SecondsNow() - start;
}

double RunApply(const Workload& workload, EmbeddingTable* table) {
  const std::vector<float> gradients(workload.batch * kDim, 0.01f);
  const std::vector<uint32_t> counts(workload.batch, 1);
  const UpdateScalars scalars = ScalarsForStep(table->layout().optimizer, 0.01f, Step(1));
  const double start = SecondsNow();
  for (size_t b = 0; b < workload.num_batches(); ++b) {
    CHECK(table
              ->ApplyGradients(
                  absl::MakeConstSpan(workload.keys).subspan(b * workload.batch, workload.batch),
                  counts, gradients, scalars, Step(1))
              .ok());
  }
  return SecondsNow() - start;
}

void Report(const char* what, const char* unit, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf("%-28s median %7.2f  (%.2f .. %.2f) %s\n", what, values[values.size() / 2],
              values.front(), values.back(), unit);
}

void Measure(const Workload& workload, uint32_t rows, uint32_t repetitions, EmbeddingTable* table) {
  // As the table's rows: aligned, on huge pages, resident.
  PageMemory aligned(rows * sizeof(Row), PageMemory::HugePages::kAtOnce);
  std::memset(aligned.data(), 1, aligned.bytes());
  FlatMap map;
  if (absl::GetFlag(FLAGS_flat_map)) {
    map.reserve(rows);
    for (uint32_t i = 0; i < rows; ++i) map[KeyOfRow(i)].fill(1.0f);
  }
  // One byte off, as rows lie in a reply.
  PageMemory out(workload.batch * sizeof(Row) + 1, PageMemory::HugePages::kLater);
  std::vector<double> gather, lookup, flat, apply, of_gather, of_flat;
  const double lookups = static_cast<double>(workload.rows.size());
  for (uint32_t i = 0; i <= repetitions; ++i) {
    const double gather_s = RunGather(workload, aligned.data(), out.data());
    const double table_s = RunTable(workload, *table, out.data() + 1);
    const double flat_s = map.empty() ? 1 : RunFlatMap(workload, map, out.data());
    const double apply_s = RunApply(workload, table);
    if (i == 0) continue;  // warm-up
    gather.push_back(1e-6 * lookups / gather_s);
    lookup.push_back(1e-6 * lookups / table_s);
    flat.push_back(1e-6 * lookups / flat_s);
    apply.push_back(1e-6 * lookups / apply_s);
    of_gather.push_back(100 * gather_s / table_s);
    of_flat.push_back(flat_s / table_s);
  }
  Report("gather by index", "M rows/s", gather);
  Report("table", "M rows/s", lookup);
  Report("flat map", "M rows/s", flat);
  Report("table, ApplyGradients", "M rows/s", apply);
  Report("table / gather by index", "%   (goal: 35 or more)", of_gather);
  Report("table / flat map", "x   (goal: 2 or more)", of_flat);
}

// Takes a snapshot of all rows, once alone and once beside applies that wait for its locks. It
// measures wall time, since a worker waits for the longest apply.
void MeasureSnapshot(const Workload& workload, EmbeddingTable* table) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const std::vector<float> gradients(workload.batch * kDim, 0.01f);
  const std::vector<uint32_t> counts(workload.batch, 1);
  for (const bool beside_applies : {false, true}) {
    std::atomic<bool> end{false};
    double longest_apply_s = 0;
    Clock::time_point start = Clock::now();
    auto snapshot = table->BeginSnapshot(Step(1), kNoStep);
    const double begin_s = seconds_since(start);
    std::thread apply([&] {
      const UpdateScalars scalars = ScalarsForStep(table->layout().optimizer, 0.01f, Step(2));
      for (size_t b = 0; beside_applies && !end.load(); b = (b + 1) % workload.num_batches()) {
        const Clock::time_point apply_start = Clock::now();
        CHECK(
            table
                ->ApplyGradients(
                    absl::MakeConstSpan(workload.keys).subspan(b * workload.batch, workload.batch),
                    counts, gradients, scalars, Step(2))
                .ok());
        longest_apply_s = std::max(longest_apply_s, seconds_since(apply_start));
      }
    });
    SnapshotRows rows;
    start = Clock::now();
    CHECK(*snapshot->Next(&rows));
    const double collect_s = seconds_since(start);
    start = Clock::now();
    uint64_t num_rows = rows.keys.size();
    while (*snapshot->Next(&rows)) num_rows += rows.keys.size();
    const double read_s = seconds_since(start);
    snapshot.reset();
    end = true;
    apply.join();
    CHECK_GE(table->num_rows(), num_rows);
    std::printf("snapshot%s: begun in %.1f us, keys collected in %.3f s, %.2f M rows/s read",
                beside_applies ? " beside applies" : "", 1e6 * begin_s, collect_s,
                1e-6 * static_cast<double>(num_rows) / read_s);
    if (beside_applies) std::printf("; the longest apply took %.1f ms", 1e3 * longest_apply_s);
    std::printf("\n");
  }
}

int Main() {
  const uint32_t rows = absl::GetFlag(FLAGS_rows);
  const uint32_t batch = absl::GetFlag(FLAGS_batch);
  const uint32_t repetitions = absl::GetFlag(FLAGS_repetitions);
  if (rows == 0 || batch == 0 || repetitions == 0) {
    std::fprintf(stderr, "rows, batch and repetitions must be positive\n");
    return 2;
  }
  std::printf("machine: %s, %u CPUs; rows %u, dim %d, Adagrad, batch %u, 1 thread, CPU time\n",
              ValueIn("/proc/cpuinfo", "model name").c_str(), std::thread::hardware_concurrency(),
              rows, kDim, batch);
  const uint64_t resident_before = ResidentBytes();
  const double start = SecondsNow();
  const std::unique_ptr<EmbeddingTable> table = MakeTable(rows);
  std::printf("filled in %.2f s\n", SecondsNow() - start);
  const double row_bytes = sizeof(float) * table->layout().row_floats();
  const double resident = static_cast<double>(ResidentBytes() - resident_before) / rows;
  const double counted = static_cast<double>(table->memory_bytes()) / rows;
  std::printf(
      "memory per row: %.1f bytes resident, %.1f counted; %.2fx of the row's %.0f"
      " (goal: 1.3 or less)\n",
      resident, counted, resident / row_bytes, row_bytes);
  CHECK_EQ(table->num_rows(), rows);
  const Workload workload = MakeWorkload(rows, batch, absl::GetFlag(FLAGS_lookups));
  Measure(workload, rows, repetitions, table.get());
  MeasureSnapshot(workload, table.get());
  return 0;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  thermocline::TurnOffMutexChecks();  // As the programs do.
  return thermocline::Main();
}
