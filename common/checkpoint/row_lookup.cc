#include "common/checkpoint/row_lookup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/listed_file.h"

namespace thermocline {
namespace {

// One thread looks for so many keys at a time.
constexpr size_t kKeysPerRange = 2048;

}  // namespace

// Neighbouring wanted keys of one shard.
struct RowLookup::Range {
  size_t begin = 0, end = 0;
  uint32_t shard = 0;
};

RowLookup::RowLookup(const CheckpointManifest& manifest, ThreadPool* threads)
    : shards_(manifest.num_servers()), last_step_(manifest.step()), threads_(threads) {
  for (const TableLayout& table : TablesOf(manifest)) {
    tables_[table.id.value()] = table;
  }
}

absl::StatusOr<std::unique_ptr<RowLookup>> RowLookup::Open(Disk* disk, const std::string& directory,
                                                           const CheckpointManifest& manifest,
                                                           ThreadPool* threads) {
  std::unique_ptr<RowLookup> lookup(new RowLookup(manifest, threads));
  struct Opened {
    const CheckpointFile* listed;
    std::unique_ptr<RowsFileReader>* reader;
    absl::Status status;
  };
  std::vector<Opened> all;
  lookup->files_.resize(manifest.shards_size());
  for (int shard = 0; shard < manifest.shards_size(); ++shard) {
    const auto& listed = manifest.shards(shard).files();
    Files& files = lookup->files_[shard];
    files.resize(listed.size());
    for (int i = 0; i < listed.size(); ++i) {
      all.push_back({&listed[listed.size() - 1 - i], &files[i], absl::OkStatus()});
    }
  }
  threads->ParallelFor(static_cast<int64_t>(all.size()), [&](int64_t i, int) {
    auto reader = RowsFileReader::Open(disk, directory, *all[i].listed, RowsFileUse::kSingleRows);
    all[i].status = reader.status();
    if (reader.ok()) *all[i].reader = *std::move(reader);
  });
  for (const Opened& opened : all) RETURN_IF_ERROR(opened.status);
  lookup->readers_.resize(threads->num_threads());
  for (std::vector<Files>& of_thread : lookup->readers_) of_thread.resize(manifest.shards_size());
  return lookup;
}

const RowLookup::Files& RowLookup::ReadersOf(int thread, uint32_t shard) {
  Files& readers = readers_[thread][shard];
  if (readers.empty()) {
    for (const std::unique_ptr<RowsFileReader>& file : files_[shard]) {
      readers.push_back(file->Share());
    }
  }
  return readers;
}

std::vector<RowLookup::Range> RowLookup::RangesOf(absl::Span<const RowKey> wanted) const {
  std::vector<Range> ranges;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const uint32_t shard = shards_.ServerOfPartition(wanted[i].partition).value();
    if (ranges.empty() || ranges.back().shard != shard ||
        i - ranges.back().begin == kKeysPerRange) {
      ranges.push_back({i, i, shard});
    }
    ranges.back().end = i + 1;
  }
  return ranges;
}

absl::StatusOr<bool> RowLookup::IsRow(const RowsFileReader& file, const SavedRow& row) const {
  const auto found = tables_.find(row.key.table.value());
  if (found != tables_.end() && int64_t{row.changed} <= last_step_ + 1) {
    const TableLayout& table = found->second;
    if (row.values.empty() && table.min_count > 0) return false;
    if (row.values.size() == static_cast<size_t>(table.row_floats())) {
      return row.changed >= table.OldestKept(Step(last_step_));
    }
  }
  return DamagedFile(file.path(),
                     absl::StrCat("key ", row.key.key, " of table ", row.key.table.value(),
                                  " has a row that can't be of this checkpoint"));
}

absl::Status RowLookup::ReadRange(absl::Span<const RowKey> wanted, const Range& range,
                                  const Files& files, OnFound found) const {
  std::vector<size_t> missing, still_missing;
  for (size_t i = range.begin; i < range.end; ++i) missing.push_back(i);
  SavedRow row;
  for (const std::unique_ptr<RowsFileReader>& file : files) {
    still_missing.clear();
    for (const size_t i : missing) {
      file->Seek(wanted[i]);
      ASSIGN_OR_RETURN(const bool any, file->Next(&row));
      if (!any || !(row.key == wanted[i])) {
        still_missing.push_back(i);
        continue;
      }
      ASSIGN_OR_RETURN(const bool is_row, IsRow(*file, row));
      if (is_row) found(i, row);
    }
    std::swap(missing, still_missing);
  }
  return absl::OkStatus();
}

absl::Status RowLookup::Read(absl::Span<const RowKey> wanted, OnFound found) {
  const std::vector<Range> ranges = RangesOf(wanted);
  std::vector<absl::Status> statuses(ranges.size());
  threads_->ParallelFor(static_cast<int64_t>(ranges.size()), [&](int64_t i, int thread) {
    statuses[i] = ReadRange(wanted, ranges[i], ReadersOf(thread, ranges[i].shard), found);
  });
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace thermocline
