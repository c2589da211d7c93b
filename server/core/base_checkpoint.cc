#include "server/core/base_checkpoint.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/merged_rows.h"
#include "common/cluster_map.h"
#include "common/status_macros.h"
#include "common/table_spec.h"

namespace thermocline {
namespace {

constexpr size_t kRowsPerLoad = 4096;

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

// Rows of one table on their way into it.
class RowBatch {
 public:
  void Add(const SavedRow& row) {
    keys_.push_back(row.key.key);
    counts_.push_back(row.lookups);
    changed_.push_back(row.changed);
    values_.insert(values_.end(), row.values.begin(), row.values.end());
  }
  size_t size() const { return keys_.size(); }
  absl::Status LoadInto(EmbeddingTable* table) {
    absl::Status loaded = table->LoadRows(keys_, counts_, changed_, values_);
    keys_.clear();
    counts_.clear();
    changed_.clear();
    values_.clear();
    return loaded;
  }

 private:
  std::vector<Key> keys_;
  std::vector<uint32_t> counts_;
  std::vector<uint32_t> changed_;
  std::vector<float> values_;
};

absl::Status LoadPart(MergedRows* rows, TableSet* tables,
                      absl::FunctionRef<absl::Status(uint64_t rows)> progress) {
  RowBatch batch;
  TableId table;
  const auto load = [&]() -> absl::Status {
    if (batch.size() == 0) return absl::OkStatus();
    const size_t position = tables->Find(table);
    CHECK_LT(position, tables->size());
    const uint64_t loaded = batch.size();
    // Where rows can't be spilled, they mustn't fill the memory.
    RETURN_IF_ERROR(tables->CheckRoom());
    RETURN_IF_ERROR(batch.LoadInto(&tables->at(position).table));
    return progress(loaded);
  };
  SavedRow row;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, rows->Next(&row));
    if (!more) return load();
    if (row.key.table != table || batch.size() == kRowsPerLoad) RETURN_IF_ERROR(load());
    table = row.key.table;
    batch.Add(row);
  }
}

}  // namespace

absl::StatusOr<CheckpointManifest> ReadBaseManifest(Disk* disk, const ServerConfig& config) {
  const CheckpointStore store(disk, config.checkpoint_directory);
  ASSIGN_OR_RETURN(CheckpointManifest base, store.Load(config.base_checkpoint));
  const auto refuse = [&](const auto&... what) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint '", config.base_checkpoint, "' is of another model: ", what...));
  };
  if (base.job_id() != config.job_id || base.epoch() > config.epoch) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint '", config.base_checkpoint, "' is of job '", base.job_id(), "', epoch ",
        base.epoch(), "; this is job '", config.job_id, "', epoch ", config.epoch));
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
  if (base.epoch() != config.epoch || base.num_servers() != config.num_servers) return history;
  history.committed = history.base;
  const int files = base.parts(static_cast<int>(config.server_index.value())).files_size();
  history.increments = static_cast<uint32_t>(std::max(0, files - 1));
  return history;
}

absl::Status LoadBaseRows(Disk* disk, const ServerConfig& config, const CheckpointManifest& base,
                          TableSet* tables,
                          absl::FunctionRef<absl::Status(uint64_t rows)> progress) {
  const ClusterMap::SlotRange slots =
      ClusterMap(config.num_servers).SlotRangeOf(config.server_index);
  RowRange range;
  range.begin_slot = slots.begin;
  range.end_slot = slots.end;
  for (int part = 0; part < base.parts_size(); ++part) {
    ASSIGN_OR_RETURN(const std::unique_ptr<MergedRows> rows,
                     MergedRows::Open(disk, config.checkpoint_directory, base, part, range));
    RETURN_IF_ERROR(LoadPart(rows.get(), tables, progress));
  }
  return absl::OkStatus();
}

}  // namespace thermocline
