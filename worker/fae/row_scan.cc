#include "worker/fae/row_scan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"

namespace thermocline {
namespace {

// Batches that are counted or classified at a time: enough for the threads to be worth waking.
constexpr size_t kBatchesAtATime = 16;
constexpr int kMostParserThreads = 8;
constexpr char kCounting[] = "counting lookups";

uint32_t CountOf(const CountedTable& table, Key key) {
  const auto found = std::lower_bound(table.keys.begin(), table.keys.end(), key);
  if (found == table.keys.end() || *found != key) return 0;
  return table.counts[static_cast<size_t>(found - table.keys.begin())];
}

}  // namespace

RowScan::RowScan(const Job& job, const PackingOptions& options)
    : job_(job), options_(options), tables_(ResolveTables(job)), pool_(options.threads) {}

absl::StatusOr<std::unique_ptr<RowScan>> RowScan::Open(const Job& job,
                                                       const PackingOptions& options) {
  std::unique_ptr<RowScan> scan(new RowScan(job, options));
  Job reading = job;
  const int parsers = std::min(options.threads, kMostParserThreads);
  reading.mutable_data()->set_parser_threads(static_cast<uint32_t>(parsers));
  reading.mutable_data()->set_read_ahead_batches(2 * kBatchesAtATime);
  ASSIGN_OR_RETURN(scan->dataset_, Dataset::Open(reading));
  return scan;
}

absl::Status RowScan::Read(absl::string_view activity, double share,
                           absl::FunctionRef<absl::Status(const Batches&)> take) {
  DatasetScan scan;
  scan.batch_rows = kScanRows;
  scan.share = share;
  scan.seed = job_.seed();
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader, dataset_->OpenScan(scan));
  const Stopwatch watch;
  int64_t rows = 0;
  for (bool ended = false; !ended;) {
    Batches batches;
    while (batches.size() < kBatchesAtATime) {
      if (options_.cancelled != nullptr && *options_.cancelled) {
        return absl::CancelledError("packing was stopped");
      }
      ASSIGN_OR_RETURN(std::unique_ptr<Batch> batch, reader->Next());
      ended = batch == nullptr;
      if (ended) break;
      rows += batch->size;
      batches.push_back(std::move(batch));
    }
    if (batches.empty()) break;
    RETURN_IF_ERROR(take(batches));
    if (options_.on_progress) {
      options_.on_progress({activity, rows, batches.back()->progress, watch.Elapsed()});
    }
    for (std::unique_ptr<Batch>& batch : batches) reader->Recycle(std::move(batch));
  }
  last_ = reader->progress();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CountedTable>> RowScan::Count(double share, int64_t* rows) {
  LookupCounts counts(tables_, &pool_);
  *rows = 0;
  RETURN_IF_ERROR(Read(kCounting, share, [&](const Batches& batches) {
    counts.Add(batches);
    for (const std::unique_ptr<Batch>& batch : batches) *rows += batch->size;
    return absl::OkStatus();
  }));
  return counts.Finish();
}

absl::StatusOr<int64_t> RowScan::LeastBudget(double share, int64_t samples,
                                             const std::vector<CountedTable>& counted,
                                             const CalibrationResult& result) {
  // [samples] The threshold at which each sample is hot.
  std::vector<uint32_t> thresholds;
  RETURN_IF_ERROR(Read(kCounting, share, [&](const Batches& batches) {
    for (const std::unique_ptr<Batch>& batch : batches) {
      const size_t first = thresholds.size();
      thresholds.resize(first + batch->size, std::numeric_limits<uint32_t>::max());
      for (size_t f = 0; f < batch->features.size(); ++f) {
        const int table = tables_.features[f].table_index;
        if (result.tables[table].is_whole) continue;
        const FeatureLookups& lookups = batch->features[f];
        for (int row = 0; row < batch->size; ++row) {
          uint32_t& threshold = thresholds[first + row];
          for (int32_t i = lookups.offsets[row]; i < lookups.offsets[row + 1]; ++i) {
            threshold = std::min(threshold, CountOf(counted[table], lookups.keys[i]));
          }
        }
      }
    }
    return absl::OkStatus();
  }));
  CHECK(!thresholds.empty());
  const auto most = static_cast<int64_t>(thresholds.size());
  const auto nth = thresholds.begin() + std::clamp<int64_t>(samples, 1, most) - 1;
  std::nth_element(thresholds.begin(), nth, thresholds.end(), std::greater<>());
  int64_t bytes = 0;
  for (size_t t = 0; t < counted.size(); ++t) {
    const TableCalibration& table = result.tables[t];
    for (const uint32_t count : counted[t].counts) {
      if (table.is_whole || count >= *nth) bytes += table.row_bytes;
    }
  }
  return bytes;
}

}  // namespace thermocline
