#include "worker/fae/packing.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "worker/fae/hot_classifier.h"
#include "worker/fae/pack_identity.h"
#include "worker/fae/pack_source.h"
#include "worker/fae/pack_writer.h"
#include "worker/fae/row_scan.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kLockPoll = absl::Milliseconds(200);

double Share(double part, double whole) { return whole == 0 ? 0 : part / whole; }

Json TablesJson(const CalibrationResult& result) {
  Json tables = Json::array();
  for (const TableCalibration& table : result.tables) {
    tables.push_back({{"name", table.name},
                      {"rows", table.rows},
                      {"hot_rows", table.hot_rows},
                      {"whole", table.is_whole},
                      {"lookup_share", Share(table.hot_lookups, table.lookups)},
                      {"estimated_rows", table.estimated_rows},
                      {"estimated_most", table.estimated_most}});
  }
  return tables;
}

// What calibration found in a sample.
Json CalibrationJson(const CalibrationResult& result, double sample_share, int64_t sampled_rows) {
  return {{"budget_bytes", result.budget_bytes},
          {"sample_share", sample_share},
          {"sampled_rows", sampled_rows},
          {"threshold", result.threshold},
          {"estimated_threshold", result.estimated_threshold},
          {"rows", result.rows()},
          {"hot_rows", result.hot_rows()},
          {"estimated_rows", result.estimated_rows()},
          {"estimated_most", result.estimated_most()},
          {"hot_bytes", result.hot_bytes},
          {"sample_lookup_share", result.lookup_share()},
          {"lookup_share", result.lookup_share()},
          {"estimate_s", result.estimate_s},
          {"count_s", result.count_s}};
}

// What the reading of all training rows met that is not in the pack.
void AddRead(const BatchReader::Progress& read, Json* json) {
  (*json)["bad_lines"] = read.bad_lines;
  (*json)["repeated_headers"] = read.repeated_headers;
  if (read.bad_lines > 0) (*json)["first_bad_line"] = read.first_bad_line;
  (*json)["padding_ids"] = read.padding_ids;
}

// What all training rows showed.
void AddTotals(const HotClassifier::Totals& totals, Json* json) {
  (*json)["lookup_share"] = Share(totals.hot_lookups, totals.lookups);
  (*json)["hot_sample_share"] = Share(totals.hot_samples, totals.samples);
  (*json)["samples"] = {{"hot", totals.hot_samples}, {"cold", totals.samples - totals.hot_samples}};
  (*json)["added_rows"] = totals.added_rows;
  (*json)["hot_rows"] = (*json)["hot_rows"].get<int64_t>() + totals.added_rows;
  (*json)["hot_bytes"] = (*json)["hot_bytes"].get<int64_t>() + totals.added_bytes;
  (*json)["whole_tables_are_whole"] = !totals.is_full;
}

void WarnOfBadRows(const BatchReader::Progress& read, const PackingOptions& options) {
  if (read.bad_lines == 0 || !options.on_warning) return;
  options.on_warning(absl::StrCat(read.bad_lines, read.bad_lines == 1 ? " row is" : " rows are",
                                  " malformed and left out; the first: ", read.first_bad_line));
}

// One call of FindOrMakePack().
class PackMaker {
 public:
  PackMaker(const Job& job, const PackingOptions& options)
      : job_(job), options_(options), path_(PackPath(job)) {}

  absl::StatusOr<Json> Run() {
    const std::string& directory = job_.calibration().directory();
    if (directory.empty()) {
      return absl::InvalidArgumentError("calibration.directory is not set");
    }
    identity_.job = IdentifyJob(job_);
    RETURN_IF_ERROR(IdentifyData(job_, &identity_));
    RETURN_IF_ERROR(CreateDirectories(options_.disk, directory));
    ASSIGN_OR_RETURN(const auto lock, AwaitLock(directory));
    ASSIGN_OR_RETURN(Json found, Find());
    if (!found.is_null()) return found;
    RETURN_IF_ERROR(RemoveUnfinished(directory));
    ASSIGN_OR_RETURN(scan_, RowScan::Open(job_, options_));
    if (options_.has_file != nullptr) *options_.has_file = true;
    const absl::Cleanup no_file = [this] {
      if (options_.has_file != nullptr) *options_.has_file = false;
    };
    return Make();
  }

 private:
  void Warn(absl::string_view text) const {
    if (options_.on_warning) options_.on_warning(text);
  }

  // Another process that makes a pack there may be making this one.
  absl::StatusOr<std::unique_ptr<DirectoryLock>> AwaitLock(const std::string& directory) const {
    for (bool has_warned = false;; has_warned = true) {
      auto lock = options_.disk->Lock(directory);
      if (!absl::IsFailedPrecondition(lock.status())) return lock;
      if (options_.cancelled != nullptr && *options_.cancelled) {
        return absl::CancelledError("packing was stopped");
      }
      if (!has_warned) Warn(absl::StrCat(lock.status().message(), "; waiting for its pack"));
      absl::SleepFor(kLockPoll);
    }
  }

  // The report of a pack that is there; null: there is none that can be used.
  absl::StatusOr<Json> Find() const {
    const auto pack = PackFile::Open(options_.disk, path_);
    if (absl::IsNotFound(pack.status())) return Json();
    if (absl::IsUnavailable(pack.status())) return pack.status();
    std::string fault;
    if (!pack.ok()) {
      fault = std::string(pack.status().message());
    } else {
      const PackIdentity& was = (*pack)->identity;
      std::string difference = DescribeDifference(identity_.job, was.job);
      if (difference.empty()) difference = DescribeDifference(identity_.data, was.data);
      if (difference.empty()) difference = DescribeDifference(identity_.times, was.times);
      if (difference.empty()) return Done(**pack, /*reused=*/true);
      fault = absl::StrCat("'", path_, "' was made of other data: ", difference);
    }
    Warn(absl::StrCat(fault, "; it is made anew"));
    return Json();
  }

  // What programs left that were killed: none is at work in the folder now.
  absl::Status RemoveUnfinished(const std::string& directory) const {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, options_.disk->List(directory));
    for (const std::string& name : names) {
      if (!IsUnfinishedPack(name)) continue;
      RETURN_IF_ERROR(options_.disk->Remove(absl::StrCat(directory, "/", name)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> Make() {
    const double share = job_.calibration().sample_share();
    // First of all, so that a folder that can't be written to is known at once.
    LookupLimit lookups = LookupLimitOf(job_);
    lookups.most = std::numeric_limits<int32_t>::max();
    ASSIGN_OR_RETURN(
        const std::unique_ptr<PackWriter> writer,
        PackWriter::Create(options_.disk, path_, identity_,
                           WantsBatches(job_) ? int64_t{job_.train().batch_size()} : 1, lookups));
    ASSIGN_OR_RETURN(const CalibrationOptions calibration, CalibrationOptions::Of(job_));
    const Stopwatch calibrating;
    int64_t sampled_rows = 0;
    ASSIGN_OR_RETURN(const std::vector<CountedTable> counted, scan_->Count(share, &sampled_rows));
    if (sampled_rows == 0) return absl::InvalidArgumentError("there are no training rows");
    ASSIGN_OR_RETURN(const CalibrationResult result,
                     Calibrate(scan_->tables(), counted, calibration));
    Json report = CalibrationJson(result, share, sampled_rows);
    report["tables"] = TablesJson(result);
    report["calibrate_s"] = absl::ToDoubleSeconds(calibrating.Elapsed());
    const Stopwatch packing;
    HotClassifier classifier(scan_->tables(), counted, result);
    if (WantsBatches(job_)) {
      RETURN_IF_ERROR(WriteRows(&classifier, writer.get()));
      WarnOfBadRows(scan_->last(), options_);
      AddRead(scan_->last(), &report);
      RETURN_IF_ERROR(CheckHotBatch(classifier.totals(), sampled_rows, counted, result));
      AddTotals(classifier.totals(), &report);
    } else if (share == 1) {
      WarnOfBadRows(scan_->last(), options_);
    }
    HotSet hot = classifier.MakeHotSet();
    if (hot.num_rows() == 0) return NoHotRow(result);
    RETURN_IF_ERROR(CheckDataIsTheSame());
    report["pack_s"] = absl::ToDoubleSeconds(packing.Elapsed());
    RETURN_IF_ERROR(writer->Finish(std::move(hot), report.dump()));
    ASSIGN_OR_RETURN(const auto pack, PackFile::Open(options_.disk, path_));
    Json done = Done(*pack, /*reused=*/false);
    done["pack_s"] = absl::ToDoubleSeconds(packing.Elapsed());
    return done;
  }

  absl::Status WriteRows(HotClassifier* classifier, PackWriter* writer) {
    std::vector<uint8_t> is_hot;
    return scan_->Read("packing", 1, [&](const RowScan::Batches& batches) -> absl::Status {
      for (const std::unique_ptr<Batch>& batch : batches) {
        classifier->Classify(*batch, scan_->pool(), &is_hot);
        for (int row = 0; row < batch->size; ++row) {
          RETURN_IF_ERROR(writer->Add(*batch, row, is_hot[row] != 0));
        }
      }
      return absl::OkStatus();
    });
  }

  absl::Status CheckHotBatch(const HotClassifier::Totals& totals, int64_t sampled_rows,
                             const std::vector<CountedTable>& counted,
                             const CalibrationResult& result) {
    const int64_t needed = std::min<int64_t>(job_.train().batch_size(), totals.samples);
    if (totals.hot_samples >= needed) return absl::OkStatus();
    const double sampled_share = Share(sampled_rows, totals.samples);
    ASSIGN_OR_RETURN(
        const int64_t bytes,
        scan_->LeastBudget(job_.calibration().sample_share(),
                           static_cast<int64_t>(static_cast<double>(needed) * sampled_share + 0.5),
                           counted, result));
    std::string why = absl::StrFormat(
        "no hot batch: with fae.budget %d bytes, %.3g%% of the samples have only hot lookups (%d "
        "of %d; a batch has %d)",
        result.budget_bytes, 100 * Share(totals.hot_samples, totals.samples), totals.hot_samples,
        totals.samples, job_.train().batch_size());
    if (sampled_share < 1) {
      absl::StrAppendFormat(&why,
                            "; lookups were counted in %.3g%% of the samples: "
                            "calibration.sample_share: 1 makes more of a budget",
                            100 * sampled_share);
    }
    if (bytes > result.budget_bytes) {
      absl::StrAppendFormat(&why,
                            ". A budget of at least %d bytes would make one; where that is not "
                            "much less than all the rows take (%d bytes of those counted), the "
                            "data is not skewed enough for hot batches",
                            bytes, AllBytes(result));
    }
    return absl::InvalidArgumentError(why);
  }

  static int64_t AllBytes(const CalibrationResult& result) {
    int64_t bytes = 0;
    for (const TableCalibration& table : result.tables) bytes += table.rows * table.row_bytes;
    return bytes;
  }

  static absl::Status NoHotRow(const CalibrationResult& result) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no hot row: the rows that are looked up most, ", result.threshold - 1,
        " times in the sample, take more than the budget of ", result.budget_bytes, " bytes"));
  }

  absl::Status CheckDataIsTheSame() const {
    PackIdentity now;
    RETURN_IF_ERROR(IdentifyData(job_, &now));
    std::string difference = DescribeDifference(now.data, identity_.data);
    if (difference.empty()) difference = DescribeDifference(now.times, identity_.times);
    if (difference.empty()) return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat("the data changed while hot batches were made of it: ", difference));
  }

  Json Done(const PackFile& pack, bool reused) const {
    Json json = Json::parse(pack.tail.report, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) json = Json::object();
    if (reused) json["calibrate_s"] = json["pack_s"] = 0;
    json["reused"] = reused;
    const PackCounts& counts = pack.tail.counts;
    json["batches"] = {{"hot", counts.batches[1]}, {"cold", counts.batches[0]}};
    json["digest"] = PackDigest(pack.tail);
    json["file"] = pack.path;
    json["file_bytes"] = pack.file->size();
    return json;
  }

  const Job& job_;
  const PackingOptions& options_;
  const std::string path_;
  PackIdentity identity_;
  std::unique_ptr<RowScan> scan_;
};

}  // namespace

absl::StatusOr<Json> FindOrMakePack(const Job& job, const PackingOptions& options) {
  return PackMaker(job, options).Run();
}

namespace {

absl::StatusOr<CalibrationResult> CalibrateFor(const Job& job, int64_t budget_bytes,
                                               const JobTables& tables,
                                               const std::vector<CountedTable>& counted) {
  ASSIGN_OR_RETURN(const CalibrationOptions options, CalibrationOptions::Of(job, budget_bytes));
  return Calibrate(tables, counted, options);
}

}  // namespace

absl::StatusOr<Json> CalibrateOnly(const Job& job, const CalibrationGrid& grid,
                                   const PackingOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RowScan> scan, RowScan::Open(job, options));
  Json results = Json::array();
  std::vector<std::pair<size_t, HotClassifier>> classifiers;  // of results[first]
  for (const double share : grid.sample_shares) {
    const Stopwatch counting;
    int64_t sampled_rows = 0;
    ASSIGN_OR_RETURN(const std::vector<CountedTable> counted, scan->Count(share, &sampled_rows));
    if (sampled_rows == 0) return absl::InvalidArgumentError("there are no training rows");
    const double read_s = absl::ToDoubleSeconds(counting.Elapsed());
    for (const int64_t budget : grid.budget_bytes) {
      const auto result = CalibrateFor(job, budget, scan->tables(), counted);
      if (!result.ok()) {
        results.push_back({{"budget_bytes", budget},
                           {"sample_share", share},
                           {"error", std::string(result.status().message())}});
        continue;
      }
      Json json = CalibrationJson(*result, share, sampled_rows);
      json["read_s"] = read_s;
      json["tables"] = TablesJson(*result);
      classifiers.emplace_back(results.size(), HotClassifier(scan->tables(), counted, *result));
      results.push_back(std::move(json));
    }
  }
  std::vector<uint8_t> is_hot;
  RETURN_IF_ERROR(scan->Read("classifying samples", 1, [&](const RowScan::Batches& batches) {
    for (const std::unique_ptr<Batch>& batch : batches) {
      for (auto& classifier : classifiers) {
        classifier.second.Classify(*batch, scan->pool(), &is_hot);
      }
    }
    return absl::OkStatus();
  }));
  WarnOfBadRows(scan->last(), options);
  for (const auto& classifier : classifiers) {
    AddTotals(classifier.second.totals(), &results[classifier.first]);
  }
  return Json{{"calibrations", std::move(results)}};
}

}  // namespace thermocline
