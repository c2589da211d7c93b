#include "common/checkpoint/merged_rows.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"

namespace thermocline {
namespace {

RowKey Begin(TableId table, uint32_t partition) {
  RowKey key;
  key.table = table;
  key.partition = partition;
  return key;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MergedRows>> MergedRows::Open(Disk* disk,
                                                             const std::string& directory,
                                                             const CheckpointManifest& manifest,
                                                             int shard, const RowRange& range) {
  CHECK(shard >= 0 && shard < manifest.shards_size());
  CHECK_LE(range.end_partition, kNumPartitions);
  std::unique_ptr<MergedRows> merged(new MergedRows(range));
  for (const TableLayout& table : TablesOf(manifest)) {
    merged->tables_[table.id.value()] = {static_cast<size_t>(table.row_floats()),
                                         table.min_count > 0,
                                         table.OldestKept(Step(manifest.step()))};
  }
  merged->last_step_ = manifest.step();
  const ClusterMap map(manifest.num_servers());
  const auto partitions = map.PartitionRangeOf(ServerIndex(static_cast<uint32_t>(shard)));
  merged->first_partition_of_server_ = partitions.begin;
  merged->end_partition_of_server_ = partitions.end;
  if (range.begin_partition >= partitions.end || range.end_partition <= partitions.begin)
    return merged;
  for (const CheckpointFile& file : manifest.shards(shard).files()) {
    Source source;
    ASSIGN_OR_RETURN(source.file, RowsFileReader::Open(disk, directory, file));
    if (range.table.has_value() || range.begin_partition > partitions.begin) {
      source.file->Seek(Begin(range.table.value_or(TableId(0)), range.begin_partition));
    }
    merged->sources_.push_back(std::move(source));
  }
  return merged;
}

// Moves to the next row within the range.
absl::Status MergedRows::Advance(Source* source) {
  source->used = false;
  for (;;) {
    ASSIGN_OR_RETURN(const bool found, source->file->Next(&source->row));
    const RowKey& key = source->row.key;
    if (!found || (range_.table.has_value() && *range_.table < key.table)) {
      source->done = true;
      return absl::OkStatus();
    }
    if (key.partition < range_.begin_partition) {
      source->file->Seek(Begin(key.table, range_.begin_partition));
    } else if (key.partition >= range_.end_partition) {
      if (range_.table.has_value() ||
          key.table.value() == std::numeric_limits<TableId::ValueType>::max()) {
        source->done = true;
        return absl::OkStatus();
      }
      source->file->Seek(Begin(TableId(key.table.value() + 1), range_.begin_partition));
    } else {
      ++rows_read_;
      return CheckRow(*source);
    }
  }
}

absl::Status MergedRows::CheckRow(const Source& source) {
  const RowKey& key = source.row.key;
  const auto wrong = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("'", source.file->path(), "' is damaged: key ", key.key,
                                            " of table ", key.table.value(), what));
  };
  const auto table = tables_.find(key.table.value());
  if (table == tables_.end()) return wrong(", which the manifest doesn't know");
  const size_t floats = source.row.values.size();
  if (floats != table->second.row_floats && !(floats == 0 && table->second.has_candidates)) {
    return wrong(absl::StrCat(" has ", floats, " floats, not ", table->second.row_floats));
  }
  if (key.partition < first_partition_of_server_ || key.partition >= end_partition_of_server_) {
    return wrong(absl::StrCat(" is of partition ", key.partition, ", another server's"));
  }
  if (int64_t{source.row.changed} > last_step_ + 1) {
    return wrong(absl::StrCat(" was changed at step ", int64_t{source.row.changed} - 1,
                              ", behind the checkpoint's step ", last_step_));
  }
  return absl::OkStatus();
}

absl::Status MergedRows::CheckBytes() const {
  for (const Source& source : sources_) RETURN_IF_ERROR(source.file->CheckBytes());
  return absl::OkStatus();
}

absl::StatusOr<bool> MergedRows::Next(SavedRow* row) {
  for (;;) {
    Source* first = nullptr;
    for (Source& source : sources_) {
      if (source.used && !source.done) RETURN_IF_ERROR(Advance(&source));
      if (source.done) continue;
      // The newest file's row replaces others with the same key.
      if (first == nullptr || !(first->row.key < source.row.key)) first = &source;
    }
    if (first == nullptr) return false;
    for (Source& source : sources_) {
      if (!source.done && source.row.key == first->row.key) source.used = true;
    }
    *row = first->row;
    if (row->changed >= tables_.at(row->key.table.value()).oldest_kept) return true;
  }
}

}  // namespace thermocline
