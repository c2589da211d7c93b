#include "server/core/base_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/merged_rows.h"
#include "common/checkpoint/rows_file.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

constexpr size_t kRowsPerLoad = 4096;
// A shard is loaded in ranges of partitions, so many for each thread: they are of much the same
// size, and threads that are done early take another.
constexpr uint32_t kRangesPerThread = 4;

// "" where the rows of one are those of the other.
std::string TableDifference(const std::vector<TableLayout>& here,
                            const std::vector<TableLayout>& there) {
  if (here.size() != there.size()) {
    return absl::StrCat("it has ", there.size(), " tables, the job has ", here.size());
  }
  for (const TableLayout& table : here) {
    const auto same = std::find_if(there.begin(), there.end(),
                                   [&](const TableLayout& other) { return other.id == table.id; });
    if (same == there.end()) return absl::StrCat("it has no table '", table.name, "'");
    const std::string difference = DescribeRowDifference(table, *same);
    if (!difference.empty()) return difference;
  }
  return "";
}

// Rows and candidates of one table on their way into it.
class RowBatch {
 public:
  // `changed`: as SavedRow has it.
  void Add(const SavedRow& row, uint32_t changed) {
    if (row.values.empty()) {
      candidates_.keys.push_back(row.key.key);
      candidates_.counts.push_back(row.lookups);
      candidates_.changed.push_back(changed);
      return;
    }
    keys_.push_back(row.key.key);
    counts_.push_back(row.lookups);
    changed_.push_back(changed);
    values_.insert(values_.end(), row.values.begin(), row.values.end());
  }
  size_t size() const { return keys_.size() + candidates_.keys.size(); }
  absl::Status LoadInto(EmbeddingTable* table) {
    table->LoadCandidates(candidates_.keys, candidates_.counts, candidates_.changed);
    candidates_ = Candidates();
    absl::Status loaded = table->LoadRows(keys_, counts_, changed_, values_);
    keys_.clear();
    counts_.clear();
    changed_.clear();
    values_.clear();
    return loaded;
  }

 private:
  struct Candidates {
    std::vector<Key> keys;
    std::vector<uint32_t> counts;
    std::vector<uint32_t> changed;
  };

  Candidates candidates_;
  std::vector<Key> keys_;
  std::vector<uint32_t> counts_;
  std::vector<uint32_t> changed_;
  std::vector<float> values_;
};

// A request may bring a little more into a table than its memory budget, before others leave: one
// request at a time, however many threads load.
class BudgetLocks {
 public:
  explicit BudgetLocks(size_t num_tables) : mutexes_(num_tables) {}
  absl::Mutex* For(size_t position, const TableLayout& table) {
    return table.memory_budget_bytes == 0 ? nullptr : &mutexes_[position];
  }

 private:
  std::vector<absl::Mutex> mutexes_;
};

// Loads rows into the tables, and reports progress.
struct Loading {
  Loading(TableSet* tables, absl::FunctionRef<absl::Status(uint64_t rows)> progress)
      : tables(tables), budgets(tables->size()), progress(progress) {}

  absl::Status Load(TableId table, RowBatch* batch) {
    if (batch->size() == 0) return absl::OkStatus();
    const size_t position = tables->Find(table);
    CHECK_LT(position, tables->size());
    const uint64_t loaded = batch->size();
    // Rows that can't be spilled must not fill the memory.
    RETURN_IF_ERROR(tables->CheckRoom());
    EmbeddingTable* const into = &tables->at(position).table;
    absl::MutexLockMaybe lock(budgets.For(position, into->layout()));
    RETURN_IF_ERROR(batch->LoadInto(into));
    return progress(loaded);
  }

  TableSet* const tables;
  BudgetLocks budgets;
  const absl::FunctionRef<absl::Status(uint64_t rows)> progress;
};

absl::Status LoadRange(MergedRows* rows, Loading* loading) {
  RowBatch batch;
  TableId table;
  SavedRow row;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, rows->Next(&row));
    if (!more) return loading->Load(table, &batch);
    if (row.key.table != table || batch.size() == kRowsPerLoad) {
      RETURN_IF_ERROR(loading->Load(table, &batch));
    }
    table = row.key.table;
    batch.Add(row, row.changed);
  }
}

// A part of a shard that one thread loads at a time.
struct RangeOfShard {
  int shard = 0;
  bool all_here = false;  // All partitions of the shard are loaded here, in this range and others.
  RowRange partitions;
};

// Divides the `wanted` partitions of all shards into ranges.
std::vector<RangeOfShard> RangesOf(const CheckpointManifest& base,
                                   ClusterMap::PartitionRange wanted, int num_threads) {
  const ClusterMap shards(base.num_servers());
  std::vector<RangeOfShard> ranges;
  for (int shard = 0; shard < base.shards_size(); ++shard) {
    const auto partitions = shards.PartitionRangeOf(ServerIndex(static_cast<uint32_t>(shard)));
    const uint32_t begin = std::max(partitions.begin, wanted.begin);
    const uint32_t end = std::min(partitions.end, wanted.end);
    if (begin >= end) continue;
    const uint32_t num_ranges =
        num_threads <= 1 ? 1 : std::min(end - begin, kRangesPerThread * num_threads);
    for (uint64_t i = 0; i < num_ranges; ++i) {
      RangeOfShard range;
      range.shard = shard;
      range.all_here = begin == partitions.begin && end == partitions.end;
      range.partitions.begin_partition =
          begin + static_cast<uint32_t>(i * (end - begin) / num_ranges);
      range.partitions.end_partition =
          begin + static_cast<uint32_t>((i + 1) * (end - begin) / num_ranges);
      ranges.push_back(range);
    }
  }
  return ranges;
}

// Makes room for the rows that the tables will have, as far as the files say how many they are: an
// index that grows while rows are loaded is copied several times. Of a shard's files, those of one
// cut have different rows, and a later cut's replace rows of earlier ones, so the cut with the most
// rows counts.
absl::Status ReserveRows(Disk* disk, const ServerConfig& config, const CheckpointManifest& base,
                         ClusterMap::PartitionRange wanted, TableSet* tables) {
  const ClusterMap shards(base.num_servers());
  absl::flat_hash_map<TableId, uint64_t> rows;
  for (int shard = 0; shard < base.shards_size(); ++shard) {
    const auto partitions = shards.PartitionRangeOf(ServerIndex(static_cast<uint32_t>(shard)));
    if (partitions.end <= wanted.begin || wanted.end <= partitions.begin) continue;
    std::map<std::pair<TableId, std::string>, uint64_t> of_cut;  // By table and the cut's folder.
    for (const CheckpointFile& file : base.shards(shard).files()) {
      ASSIGN_OR_RETURN(const std::unique_ptr<RowsFileReader> reader,
                       RowsFileReader::Open(disk, config.checkpoint_directory, file));
      for (const auto& [table, count] : reader->CountRows(wanted.begin, wanted.end)) {
        of_cut[{table, FolderOf(file.path())}] += count;
      }
    }
    absl::flat_hash_map<TableId, uint64_t> of_shard;
    for (const auto& [cut, count] : of_cut) {
      uint64_t& most = of_shard[cut.first];
      most = std::max(most, count);
    }
    for (const auto& [table, count] : of_shard) rows[table] += count;
  }
  for (const auto& [table, count] : rows) {
    const size_t position = tables->Find(table);
    if (position < tables->size()) tables->at(position).table.ReserveRows(count);
  }
  return absl::OkStatus();
}

// Whether the ranges had all rows of the shards that are loaded whole: none lies where it is not
// looked for.
absl::Status CheckWholeShards(const std::string& directory, const CheckpointManifest& base,
                              const std::vector<RangeOfShard>& ranges,
                              const std::vector<uint64_t>& rows_read) {
  std::vector<uint64_t> missing(base.shards_size());
  for (int shard = 0; shard < base.shards_size(); ++shard) {
    for (const CheckpointFile& file : base.shards(shard).files()) missing[shard] += file.rows();
  }
  for (size_t i = 0; i < ranges.size(); ++i) missing[ranges[i].shard] -= rows_read[i];
  for (const RangeOfShard& range : ranges) {
    if (!range.all_here || missing[range.shard] == 0) continue;
    return absl::DataLossError(absl::StrCat("the files of server ", range.shard, " in '", directory,
                                            "' lack ", missing[range.shard],
                                            " rows that the manifest says they have"));
  }
  return absl::OkStatus();
}

// A table of another run's checkpoint, and the one of the same name here.
struct InitTable {
  TableLayout there;
  TableId here;
};

std::vector<InitTable> InitTablesOf(const ServerConfig& config, const CheckpointManifest& init) {
  std::vector<InitTable> tables;
  const std::vector<std::string>& anew = config.init_begins_anew;
  for (const TableLayout& there : TablesOf(init)) {
    if (std::count(anew.begin(), anew.end(), there.name) > 0) continue;
    for (const TableLayout& here : config.tables) {
      if (here.name == there.name) tables.push_back({there, here.id});
    }
  }
  return tables;
}

// One table's rows in one shard. Where its id is another here, so are its rows' partitions: all are
// read, and those of this server taken. Candidates stay those that are still too few.
absl::Status LoadInitTable(MergedRows* rows, const TableLayout& there, TableId here,
                           const ServerConfig& config, Loading* loading) {
  const ClusterMap servers(config.num_servers);
  const uint64_t salt = TableSalt(here);
  const TableLayout& layout = loading->tables->at(loading->tables->Find(here)).table.layout();
  const uint32_t min_count = layout.min_count;
  std::vector<float> carried(layout.row_floats());
  RowBatch batch;
  SavedRow row;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, rows->Next(&row));
    if (!more) return loading->Load(here, &batch);
    if (servers.ServerOfHash(KeyHash(salt, row.key.key)) != config.server_index) continue;
    if (row.values.empty() && row.lookups >= min_count) continue;
    if (batch.size() == kRowsPerLoad) RETURN_IF_ERROR(loading->Load(here, &batch));
    if (!row.values.empty() && layout.first_order.has_value() != there.first_order.has_value()) {
      CarryRow(there, row.values, layout, config.seed, row.key.key, absl::MakeSpan(carried));
      row.values = carried;
    }
    batch.Add(row, /*changed=*/0);
  }
}

// Runs load(i) for each i below `n`, on so many threads. After an error what has not begun is left
// out. Returns the first error.
absl::Status LoadAll(size_t n, int num_threads, absl::FunctionRef<absl::Status(size_t i)> load) {
  std::vector<absl::Status> loaded(n);
  std::atomic<bool> failed{false};
  ThreadPool(num_threads).ParallelFor(static_cast<int64_t>(n), [&](int64_t i, int) {
    if (failed.load()) return;
    loaded[i] = load(static_cast<size_t>(i));
    if (!loaded[i].ok()) failed.store(true);
  });
  for (const absl::Status& status : loaded) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointManifest> ReadBaseManifest(Disk* disk, const ServerConfig& config) {
  const CheckpointStore store(disk, config.checkpoint_directory);
  ASSIGN_OR_RETURN(CheckpointManifest base,
                   store.Load(config.base_checkpoint, config.base_generation));
  const auto refuse = [&](const auto&... what) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint '", config.base_checkpoint, "' is of another model: ", what...));
  };
  if (base.job_id() != config.job_id || base.generation() > config.generation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint '", config.base_checkpoint, "' is of job '", base.job_id(), "', generation ",
        base.generation(), "; this is job '", config.job_id, "', generation ", config.generation));
  }
  if (base.seed() != config.seed) {
    return refuse("its seed is ", base.seed(), ", the job's is ", config.seed);
  }
  const std::string difference = TableDifference(config.tables, TablesOf(base));
  if (!difference.empty()) return refuse(difference);
  return base;
}

CutHistory HistoryOf(const CheckpointManifest& base, const ServerConfig& config) {
  CutHistory history;
  history.base = Step(base.step());
  if (base.generation() != config.generation || base.num_servers() != config.num_servers)
    return history;
  history.committed = history.base;
  const int files = base.shards(static_cast<int>(config.server_index.value())).files_size();
  history.increments = static_cast<uint32_t>(std::max(0, files - 1));
  return history;
}

absl::Status LoadBaseRows(Disk* disk, const ServerConfig& config, const CheckpointManifest& base,
                          int num_threads, TableSet* tables,
                          absl::FunctionRef<absl::Status(uint64_t rows)> progress) {
  const auto wanted = ClusterMap(config.num_servers).PartitionRangeOf(config.server_index);
  RETURN_IF_ERROR(ReserveRows(disk, config, base, wanted, tables));
  const std::vector<RangeOfShard> ranges = RangesOf(base, wanted, num_threads);
  std::vector<uint64_t> rows_read(ranges.size());
  Loading loading(tables, progress);
  RETURN_IF_ERROR(LoadAll(ranges.size(), num_threads, [&](size_t i) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<MergedRows> rows,
                     MergedRows::Open(disk, config.checkpoint_directory, base, ranges[i].shard,
                                      ranges[i].partitions));
    RETURN_IF_ERROR(LoadRange(rows.get(), &loading));
    rows_read[i] = rows->rows_read();
    return absl::OkStatus();
  }));
  for (const TableLayout& saved : TablesOf(base)) {
    const Step step(base.step());
    tables->at(tables->Find(saved.id)).table.Forget(step, saved.OldestKept(step));
  }
  return CheckWholeShards(config.checkpoint_directory, base, ranges, rows_read);
}

absl::StatusOr<CheckpointManifest> ReadInitManifest(Disk* disk, const ServerConfig& config) {
  const CheckpointStore store(disk, config.init_directory);
  absl::StatusOr<CheckpointManifest> init =
      store.Load(config.init_checkpoint, config.init_generation);
  if (absl::IsNotFound(init.status())) {
    return absl::NotFoundError(absl::StrCat("the checkpoint that the job begins with (init_from) ",
                                            "is gone: ", init.status().message()));
  }
  RETURN_IF_ERROR(init.status());
  for (const TableLayout& there : TablesOf(*init)) {
    for (const TableLayout& here : config.tables) {
      if (here.name != there.name) continue;
      const std::string difference = DescribeInitDifference(here, there);
      if (difference.empty()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the checkpoint '", config.init_checkpoint, "' does not fit (init_from): ", difference));
    }
  }
  return init;
}

absl::Status LoadInitRows(Disk* disk, const ServerConfig& config, const CheckpointManifest& init,
                          int num_threads, TableSet* tables,
                          absl::FunctionRef<absl::Status(uint64_t rows)> progress) {
  const auto own = ClusterMap(config.num_servers).PartitionRangeOf(config.server_index);
  struct Piece {
    InitTable table;
    RangeOfShard range;
  };
  std::vector<Piece> pieces;
  for (const InitTable& table : InitTablesOf(config, init)) {
    const bool moves = table.there.id != table.here;
    const ClusterMap::PartitionRange wanted =
        moves ? ClusterMap::PartitionRange{0, kNumPartitions} : own;
    for (RangeOfShard& range : RangesOf(init, wanted, num_threads)) {
      range.partitions.table = table.there.id;
      pieces.push_back({table, range});
    }
  }
  Loading loading(tables, progress);
  return LoadAll(pieces.size(), num_threads, [&](size_t i) -> absl::Status {
    const auto& [table, range] = pieces[i];
    ASSIGN_OR_RETURN(
        const std::unique_ptr<MergedRows> rows,
        MergedRows::Open(disk, config.init_directory, init, range.shard, range.partitions));
    return LoadInitTable(rows.get(), table.there, table.here, config, &loading);
  });
}

}  // namespace thermocline
