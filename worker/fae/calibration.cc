#include "worker/fae/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/timing.h"
#include "common/job/model_memory.h"
#include "worker/fae/pack_identity.h"
#include "worker/fae/student_t.h"
#include "worker/rows/device_slab.h"

namespace thermocline {
namespace {

constexpr int64_t kDefaultWholeTableBytes = 1 << 20;
constexpr int64_t kDefaultWholeTableShare = 16;

int64_t CountedBytes(const CountedTable& counted, const TableCalibration& table) {
  return static_cast<int64_t>(counted.keys.size()) * table.row_bytes;
}

class Calibrator {
 public:
  Calibrator(const JobTables& tables, const std::vector<CountedTable>& counted,
             const CalibrationOptions& options)
      : counted_(counted), options_(options) {
    result_.budget_bytes = options.budget_bytes;
    for (size_t t = 0; t < counted.size(); ++t) {
      TableCalibration& table = result_.tables.emplace_back();
      table.name = tables.sparse[t].name;
      table.row_bytes = DeviceRowBytes(tables.sparse[t]);
      table.rows = static_cast<int64_t>(counted[t].keys.size());
      table.lookups = counted[t].lookups;
      table.may_be_hot = MayHold(tables.sparse[t]);
    }
  }

  absl::StatusOr<CalibrationResult> Run() {
    RETURN_IF_ERROR(ChooseWholeTables());
    const Stopwatch estimating;
    std::vector<RowEstimator> estimators;
    for (size_t t = 0; t < counted_.size(); ++t) estimators.emplace_back(counted_[t], t, options_);
    FindEstimatedThreshold(estimators);
    result_.estimate_s = absl::ToDoubleSeconds(estimating.Elapsed());
    const Stopwatch counting;
    FindThreshold();
    CountHotRows();
    result_.count_s = absl::ToDoubleSeconds(counting.Elapsed());
    for (size_t t = 0; t < counted_.size(); ++t) {
      TableCalibration& table = result_.tables[t];
      if (!table.may_be_hot) continue;
      const RowEstimate estimate = estimators[t].Estimate(table.is_whole ? 0 : result_.threshold);
      table.estimated_rows = estimate.rows;
      table.estimated_most = estimate.most;
    }
    return std::move(result_);
  }

 private:
  // The smallest first, so that as many as possible are.
  absl::Status ChooseWholeTables() {
    std::vector<size_t> order(counted_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return CountedBytes(counted_[a], result_.tables[a]) <
             CountedBytes(counted_[b], result_.tables[b]);
    });
    std::string names;
    for (const size_t t : order) {
      if (!result_.tables[t].may_be_hot) continue;
      const int64_t bytes = CountedBytes(counted_[t], result_.tables[t]);
      if (bytes >= options_.whole_table_bytes) break;
      if (whole_bytes_ + bytes > options_.budget_bytes && options_.whole_table_is_default) break;
      result_.tables[t].is_whole = true;
      whole_bytes_ += bytes;
      absl::StrAppend(&names, names.empty() ? "" : ", ", result_.tables[t].name);
    }
    if (whole_bytes_ <= options_.budget_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "calibration.whole_table is ", options_.whole_table_bytes,
        " bytes: the tables below that take ", whole_bytes_, " bytes together, but the budget is ",
        options_.budget_bytes, " (", names, ")"));
  }

  // Bytes of the hot rows, if the estimates are right to the upper ends of their intervals.
  double MostBytes(const std::vector<RowEstimator>& estimators, uint64_t threshold) const {
    auto bytes = static_cast<double>(whole_bytes_);
    for (size_t t = 0; t < counted_.size(); ++t) {
      const TableCalibration& table = result_.tables[t];
      if (table.is_whole || !table.may_be_hot) continue;
      bytes += estimators[t].Estimate(threshold).most * static_cast<double>(table.row_bytes);
    }
    return bytes;
  }

  void FindEstimatedThreshold(const std::vector<RowEstimator>& estimators) {
    uint64_t low = 1, high = 2;
    for (const CountedTable& table : counted_) high = std::max(high, table.lookups + 1);
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      const bool fits = MostBytes(estimators, middle) <= static_cast<double>(options_.budget_bytes);
      (fits ? high : low) = fits ? middle : middle + 1;
    }
    result_.estimated_threshold = low;
  }

  // From the most lookups down to the first number whose rows don't fit.
  void FindThreshold() {
    std::map<uint32_t, int64_t, std::greater<>> bytes_of;  // by lookups
    for (size_t t = 0; t < counted_.size(); ++t) {
      if (result_.tables[t].is_whole || !result_.tables[t].may_be_hot) continue;
      absl::flat_hash_map<uint32_t, int64_t> rows_of;
      for (const uint32_t count : counted_[t].counts) ++rows_of[count];
      for (const auto& [count, rows] : rows_of)
        bytes_of[count] += rows * result_.tables[t].row_bytes;
    }
    int64_t bytes = whole_bytes_;
    result_.threshold = 1;
    for (const auto& [count, more] : bytes_of) {
      bytes += more;
      if (bytes <= options_.budget_bytes) continue;
      result_.threshold = uint64_t{count} + 1;
      return;
    }
  }

  void CountHotRows() {
    for (size_t t = 0; t < counted_.size(); ++t) {
      TableCalibration& table = result_.tables[t];
      if (!table.may_be_hot) continue;
      for (const uint32_t count : counted_[t].counts) {
        if (!table.is_whole && count < result_.threshold) continue;
        ++table.hot_rows;
        table.hot_lookups += count;
      }
      result_.hot_bytes += table.hot_rows * table.row_bytes;
    }
  }

  const std::vector<CountedTable>& counted_;
  const CalibrationOptions& options_;
  CalibrationResult result_;
  int64_t whole_bytes_ = 0;
};

}  // namespace

absl::StatusOr<CalibrationOptions> CalibrationOptions::Of(const Job& job, int64_t budget_bytes) {
  const Calibration& calibration = job.calibration();
  CalibrationOptions options;
  options.budget_bytes =
      budget_bytes > 0 ? budget_bytes : static_cast<int64_t>(*ParseByteSize(HotBudget(job)));
  if (!WantsBatches(job)) {
    ASSIGN_OR_RETURN(const uint64_t bytes,
                     StaticRowBytes(ResolveTables(job), job.train().batch_size(),
                                    static_cast<uint64_t>(options.budget_bytes)));
    options.budget_bytes = static_cast<int64_t>(bytes);
  }
  options.whole_table_is_default = calibration.whole_table().empty();
  options.whole_table_bytes =
      options.whole_table_is_default
          ? std::min(kDefaultWholeTableBytes, options.budget_bytes / kDefaultWholeTableShare)
      : calibration.whole_table() == "0"
          ? 0
          : static_cast<int64_t>(*ParseByteSize(calibration.whole_table()));
  options.chunks = calibration.chunks();
  options.chunk_rows = calibration.chunk_rows();
  options.confidence = calibration.confidence();
  options.seed = job.seed();
  return options;
}

int64_t CalibrationResult::rows() const {
  int64_t rows = 0;
  for (const TableCalibration& table : tables) rows += table.rows;
  return rows;
}

int64_t CalibrationResult::hot_rows() const {
  int64_t rows = 0;
  for (const TableCalibration& table : tables) rows += table.hot_rows;
  return rows;
}

double CalibrationResult::estimated_rows() const {
  double rows = 0;
  for (const TableCalibration& table : tables) rows += table.estimated_rows;
  return rows;
}

double CalibrationResult::estimated_most() const {
  double rows = 0;
  for (const TableCalibration& table : tables) rows += table.estimated_most;
  return rows;
}

double CalibrationResult::lookup_share() const {
  uint64_t lookups = 0, hot = 0;
  for (const TableCalibration& table : tables) {
    lookups += table.lookups;
    hot += table.hot_lookups;
  }
  return lookups == 0 ? 0 : static_cast<double>(hot) / static_cast<double>(lookups);
}

absl::StatusOr<CalibrationResult> Calibrate(const JobTables& tables,
                                            const std::vector<CountedTable>& counted,
                                            const CalibrationOptions& options) {
  return Calibrator(tables, counted, options).Run();
}

std::vector<std::vector<Key>> HotKeys(const std::vector<CountedTable>& counted,
                                      const CalibrationResult& result) {
  std::vector<std::vector<Key>> hot(counted.size());
  for (size_t t = 0; t < counted.size(); ++t) {
    if (!result.tables[t].may_be_hot) continue;
    for (size_t i = 0; i < counted[t].keys.size(); ++i) {
      if (result.tables[t].is_whole || counted[t].counts[i] >= result.threshold) {
        hot[t].push_back(counted[t].keys[i]);
      }
    }
  }
  return hot;
}

RowEstimator::RowEstimator(const CountedTable& counted, uint64_t table,
                           const CalibrationOptions& options)
    : counts_(counted.counts), chunk_rows_(options.chunk_rows) {
  if (counts_.size() <= uint64_t{options.chunks} * options.chunk_rows) return;
  t_ = StudentT(options.confidence, options.chunks - 1.0);
  const uint64_t places = counts_.size() - chunk_rows_ + 1;
  for (uint64_t i = 0; i < options.chunks; ++i) {
    begins_.push_back(Mix64(Mix64(Mix64(options.seed) ^ table) + i) % places);
  }
}

RowEstimate RowEstimator::Estimate(uint64_t threshold) const {
  const auto rows_from = [&](size_t begin, size_t end) {
    double rows = 0;
    for (size_t i = begin; i < end; ++i) rows += counts_[i] >= threshold ? 1 : 0;
    return rows;
  };
  if (begins_.empty()) {
    const double rows = rows_from(0, counts_.size());
    return {rows, rows};
  }
  const auto n = static_cast<double>(begins_.size());
  double sum = 0, squares = 0;
  for (const size_t begin : begins_) {
    const double rows = rows_from(begin, begin + chunk_rows_);
    sum += rows;
    squares += rows * rows;
  }
  const double mean = sum / n;
  const double variance = std::max(0.0, (squares - n * mean * mean) / (n - 1));
  const double chunks_of_table =
      static_cast<double>(counts_.size()) / static_cast<double>(chunk_rows_);
  const double most = (mean + t_ * std::sqrt(variance / n)) * chunks_of_table;
  return {mean * chunks_of_table, std::min(most, static_cast<double>(counts_.size()))};
}

}  // namespace thermocline
