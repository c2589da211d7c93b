#include "deploy/plan/hot_rows_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/job/job_data.h"
#include "common/job/model_memory.h"
#include "deploy/plan/feature_estimates.h"

namespace thermocline {
namespace {

// The memory of a distinct key that thermocline-pack counts, at most; and of a hot row's key in a
// worker, with its places in an index that is at most half full.
constexpr double kCountedKeyBytes = 40;
constexpr double kHotKeyBytes = 8 + 16;
// Program, libraries and threads, before any work; about.
constexpr double kPackProgramBytes = 45 << 20;
// Rows that thermocline-pack has at once (worker/fae/row_scan.cc): 32 batches of 256 that are read
// ahead, and 16 that are taken.
constexpr double kPackReadRows = (32 + 16) * 256;
// Hot rows are loaded in pieces of so many bytes (worker/rows/row_source_options.h).
constexpr uint64_t kHotPieceBytes = 32 << 20;
// Beside the samples of a batch in a pack, and for each of its features (docs/formats.md, "Packs").
constexpr double kPackedBatchBytes = 64, kPackedFeatureBytes = 16;

void Add(std::vector<PlanPart>* parts, std::string name, double bytes) {
  if (bytes > 0) parts->push_back({std::move(name), static_cast<uint64_t>(bytes)});
}

// As many as the budget holds, of those that are known.
double MostHotRows(const JobTables& resolved, const std::vector<PlannedTable>& tables,
                   uint64_t budget_bytes) {
  double least_bytes = INFINITY, known = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    const TableLayout& layout = resolved.sparse[t];
    if (!MayHold(layout)) continue;
    least_bytes = std::min(
        least_bytes, static_cast<double>(sizeof(float) * DeviceRowFloats(layout.row_floats())));
    known += tables[t].rows.has_value() ? static_cast<double>(*tables[t].rows) : INFINITY;
  }
  return std::min(static_cast<double>(budget_bytes) / least_bytes, known);
}

// The bytes of a sample in a batch of a pack.
double PackedSampleBytes(const Job& job, const JobTables& resolved,
                         const nlohmann::ordered_json* figures) {
  double bytes = 4.0 * static_cast<double>(job.data().num_dense() + NumbersOfLabels(job));
  const std::vector<const Feature*> features = EmbeddedFeatures(job);
  for (const FeatureSpec& spec : resolved.features) {
    const double lookups = LookupsOf(spec, features, figures);
    bytes += 8 * lookups + (lookups == 1 ? 0 : 4);
  }
  return bytes;
}

}  // namespace

HotRowsPlan PlanHotRows(const Job& job, const JobTables& resolved,
                        const std::vector<PlannedTable>& tables,
                        const nlohmann::ordered_json* figures, double held_out_share) {
  const uint64_t budget =
      ParseByteSize(job.has_fae() ? job.fae().budget() : job.cache().budget()).value_or(0);
  const double hot_rows = MostHotRows(resolved, tables, budget);
  HotRowsPlan plan;
  if (job.has_fae()) {
    // Two pieces; arenas are twice as large as needed.
    const double pieces = 2.0 * 2.0 * static_cast<double>(std::min(budget, kHotPieceBytes));
    Add(&plan.compute, "hot rows", static_cast<double>(budget));
    Add(&plan.compute, "hot rows on their way, at most", pieces);
    Add(&plan.pinned, "pinned, of hot rows on their way", pieces);
  }
  Add(&plan.worker, "keys of hot rows, and their index, at most", kHotKeyBytes * hot_rows);

  double counted = 0;
  for (const PlannedTable& table : tables) counted += static_cast<double>(table.rows.value_or(0));
  const double sample_bytes = PackedSampleBytes(job, resolved, figures);
  const double batch = job.train().batch_size();
  Add(&plan.pack, "lookups that are counted, at most", kCountedKeyBytes * counted);
  // A hot batch and a cold one, as rows and as bytes.
  Add(&plan.pack, "rows read ahead, and batches that are written",
      (kPackReadRows + (job.has_fae() ? 4 * batch : 0)) * sample_bytes);
  Add(&plan.pack, "keys of hot rows, at most", 8 * hot_rows);
  Add(&plan.pack, "the program", kPackProgramBytes);

  double bytes = 8 * hot_rows;
  if (job.has_fae() && figures != nullptr) {
    const double rows = figures->at("rows").get<double>() * (1 - held_out_share);
    const auto features = static_cast<double>(resolved.features.size());
    bytes += rows * sample_bytes +
             std::ceil(rows / batch) * (kPackedBatchBytes + kPackedFeatureBytes * features);
  }
  Add(&plan.disk,
      absl::StrCat(job.has_fae() ? "pack of hot and cold batches" : "pack of hot rows",
                   job.calibration().directory().empty() ? "" : " (calibration.directory)"),
      bytes);
  return plan;
}

}  // namespace thermocline
