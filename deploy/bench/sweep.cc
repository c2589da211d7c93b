#include "deploy/bench/sweep.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/disk/npy.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "deploy/bench/arms.h"
#include "deploy/clicklog/click_model.h"

namespace thermocline {
namespace {

constexpr double kSkew = 1.05;
// Of the multiplications and additions of a run, and of its data.
constexpr double kMaxFlops = 4e11;
constexpr int64_t kMaxDataBytes = int64_t{64} << 20;
constexpr int64_t kMinSteps = 5;
// Of every second table, where tables are placed by their sizes.
constexpr int64_t kSmallTables = 100;
// What a cache holds of the tables that are cached.
constexpr double kCachedShare = 0.1;

struct Knob {
  const char* name;
  std::vector<const char*> values;
  // Sets the shape's value. REQUIRES: `value` is one of `values`
  std::function<void(const std::string& value, SweepShape* shape)> set;
};

int64_t WholeOf(const std::string& text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) ? static_cast<int64_t>(value) : 0;
}

// "64^2": two layers of 64.
void SetMlps(const std::string& value, SweepShape* shape) {
  const std::vector<std::string> parts = absl::StrSplit(value, '^');
  shape->width = static_cast<int>(WholeOf(parts[0]));
  shape->layers = static_cast<int>(WholeOf(parts[1]));
}

std::vector<Knob> Knobs() {
  const auto whole = [](int SweepShape::*field) {
    return [field](const std::string& value, SweepShape* shape) {
      shape->*field = static_cast<int>(WholeOf(value));
    };
  };
  return {{"dense", {"64", "256", "1024", "4096"}, whole(&SweepShape::dense)},
          {"sparse", {"4", "16", "64", "128"}, whole(&SweepShape::sparse)},
          {"mlp", {"64^2", "256^3", "1024^3", "2048^4"}, SetMlps},
          {"hash",
           {"1e5", "1e6", "1e7"},
           [](const std::string& value, SweepShape* shape) { shape->hash = WholeOf(value); }},
          {"lookups", {"1", "4", "16", "32"}, whole(&SweepShape::lookups)},
          {"dim", {"16", "32", "64", "128"}, whole(&SweepShape::dim)},
          {"batch", {"200", "800", "3200", "12800"}, whole(&SweepShape::batch)},
          {"device",
           {"CPU", "CUDA"},
           [](const std::string& value, SweepShape* shape) { shape->device = value; }},
          {"placement",
           {"REMOTE", "CACHED", "DEVICE", "DEVICE, REMOTE", "DEVICE, CACHED"},
           [](const std::string& value, SweepShape* shape) { shape->placement = value; }}};
}

// `points` of `values`, as evenly as they come, first and last included.
std::vector<std::string> Chosen(const std::vector<const char*>& values, int points) {
  const size_t count = std::min<size_t>(static_cast<size_t>(std::max(points, 1)), values.size());
  std::vector<std::string> chosen;
  for (size_t i = 0; i < count; ++i) {
    chosen.push_back(values[count == 1 ? 0 : i * (values.size() - 1) / (count - 1)]);
  }
  return chosen;
}

bool IsSmall(const SweepShape& shape, int table) { return !shape.placement.empty() && table % 2; }

int64_t RowsOfTable(const SweepShape& shape, int table) {
  return IsSmall(shape, table) ? std::max<int64_t>(shape.hash / kSmallTables, 1) : shape.hash;
}

std::string PlacementOf(const SweepShape& shape, int table) {
  const std::vector<std::string> parts = absl::StrSplit(shape.placement, ", ");
  return parts.size() == 1 || IsSmall(shape, table) ? parts[0] : parts[1];
}

double FlopsOfSample(const SweepShape& shape) {
  const double width = shape.width, vectors = shape.sparse + 1;
  const double hidden = (shape.layers - 1) * width * width;
  const double bottom = shape.dense * width + hidden + width * shape.dim;
  const double top = (shape.dim + vectors * (vectors - 1) / 2) * width + hidden + width;
  return 6 * (bottom + top + vectors * vectors * shape.dim / 2);
}

std::string JobText(const SweepShape& shape, int64_t steps, const std::string& folder) {
  const std::vector<int> widths(static_cast<size_t>(shape.layers), shape.width);
  const std::string mlp = absl::StrJoin(widths, ", ");
  const int64_t passes = 1 + steps * shape.batch / SweepRows(shape, steps);
  std::string text = absl::StrCat(
      "name: \"sweep\"\nseed: 1\ndata { format: DLRM_NPY path: \"", folder,
      "\" num_dense: ", shape.dense, " }\ndefault_table { dim: ", shape.dim,
      " optimizer { adagrad {} } }\ndlrm { bottom: [", mlp, "] top: [", mlp,
      "] }\ntrain { batch_size: ", shape.batch, " passes: ", passes, " max_steps: ", steps,
      " learning_rate { base: 0.01 } }\ncheckpoint { none: true }\n");
  if (!shape.device.empty()) absl::StrAppend(&text, "device: ", shape.device, "\n");
  for (int table = 0; table < shape.sparse; ++table) {
    absl::StrAppend(&text, "feature { name: \"t", table, "\" columns: ", shape.lookups, " }\n");
  }
  return text;
}

std::string PlacementText(const SweepShape& shape, uint64_t budget) {
  std::string text = absl::StrCat("cache { budget: \"", budget, "B\" }\n");
  for (int table = 0; table < shape.sparse; ++table) {
    absl::StrAppend(&text, "table { name: \"t", table,
                    "\" settings { placement: ", PlacementOf(shape, table), " } }\n");
  }
  return text;
}

// Bytes that a cache has to hold for the tables that are placed in it. Those of one placement share
// a part of it, and the parts are as the lookups: equal here.
uint64_t HeldBytes(const SweepShape& shape, int64_t steps) {
  double device_rows = 0, cached_rows = 0;
  for (int table = 0; table < shape.sparse; ++table) {
    const auto most = static_cast<double>(
        std::min<int64_t>(RowsOfTable(shape, table), SweepRows(shape, steps) * shape.lookups));
    const std::string placement = PlacementOf(shape, table);
    if (placement == "DEVICE") device_rows += most + 1;
    if (placement == "CACHED") cached_rows += kCachedShare * most + 1;
  }
  const double parts = device_rows > 0 && cached_rows > 0 ? 2 : 1;
  // Weights and Adagrad's sums.
  return static_cast<uint64_t>(parts * std::max(device_rows, cached_rows)) * 2 * sizeof(float) *
         static_cast<uint64_t>(shape.dim);
}

}  // namespace

std::vector<std::string> SweepKnobs() {
  std::vector<std::string> names;
  for (const Knob& knob : Knobs()) names.push_back(knob.name);
  return names;
}

absl::StatusOr<std::vector<SweepPoint>> PlanSweep(const std::string& knobs, int points) {
  const std::vector<std::string> names =
      knobs.empty() ? SweepKnobs() : std::vector<std::string>(absl::StrSplit(knobs, ','));
  std::vector<SweepPoint> plan = {{"base", "base", {}, "", std::nullopt}};
  const std::vector<Knob> all = Knobs();
  for (const std::string& name : names) {
    const auto knob =
        std::find_if(all.begin(), all.end(), [&](const Knob& each) { return name == each.name; });
    if (knob == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--knobs: '", name, "' is no knob",
                                                     DidYouMean(name, SweepKnobs()), "; there are ",
                                                     absl::StrJoin(SweepKnobs(), ", ")));
    }
    // Devices and placements are kinds, of which none may be left out.
    const bool is_kind = name == "device" || name == "placement";
    const int count = is_kind ? static_cast<int>(knob->values.size()) : points;
    for (const std::string& value : Chosen(knob->values, count)) {
      SweepPoint point = {name, value, {}, "", std::nullopt};
      knob->set(value, &point.shape);
      plan.push_back(std::move(point));
    }
  }
  return plan;
}

int64_t SweepSteps(const SweepShape& shape, int64_t steps) {
  const double flops = FlopsOfSample(shape) * shape.batch;
  return std::clamp(static_cast<int64_t>(kMaxFlops / flops), std::min(kMinSteps, steps), steps);
}

int64_t SweepRows(const SweepShape& shape, int64_t steps) {
  const int64_t sample_bytes = 4 * (int64_t{shape.dense} + int64_t{shape.sparse} * shape.lookups);
  const int64_t batches = kMaxDataBytes / (sample_bytes * shape.batch);
  return shape.batch * std::clamp<int64_t>(batches, 1, steps);
}

absl::StatusOr<Job> SweepJob(const SweepShape& shape, int64_t steps, const std::string& folder) {
  const std::string text = JobText(shape, steps, folder);
  ASSIGN_OR_RETURN(Job job, ParseJob(text, "the sweep's job", {}, {}, JobUse::kTrain));
  if (shape.placement.empty() || shape.placement == "REMOTE") return job;
  const std::string placed = PlacementText(shape, CacheBudget(job, HeldBytes(shape, steps)));
  return ParseJob(text + placed, "the sweep's job", {}, {}, JobUse::kTrain);
}

absl::Status WriteSweepData(const SweepShape& shape, int64_t rows, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  const int64_t ids_of_sample = int64_t{shape.sparse} * shape.lookups;
  ASSIGN_OR_RETURN(const auto dense,
                   NpyWriter::Create(folder + "/train_dense.npy", "<f4", {shape.dense}));
  ASSIGN_OR_RETURN(const auto sparse,
                   NpyWriter::Create(folder + "/train_sparse.npy", "<i4", {ids_of_sample}));
  ASSIGN_OR_RETURN(const auto labels, NpyWriter::Create(folder + "/train_labels.npy", "<i4", {1}));
  std::vector<ZipfDistribution> tables;
  for (int table = 0; table < shape.sparse; ++table) {
    tables.emplace_back(RowsOfTable(shape, table), kSkew);
  }
  uint64_t state = 0;
  const auto uniform = [&state] { return static_cast<double>(Mix64(++state) >> 11) * 0x1p-53; };
  std::vector<float> numbers(static_cast<size_t>(shape.dense));
  std::vector<int32_t> ids(static_cast<size_t>(ids_of_sample));
  for (int64_t row = 0; row < rows; ++row) {
    for (float& number : numbers) number = static_cast<float>(uniform());
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(tables[i / static_cast<size_t>(shape.lookups)](uniform()));
    }
    const int32_t label = uniform() < 0.25;
    RETURN_IF_ERROR(dense->Append(numbers.data(), 1));
    RETURN_IF_ERROR(sparse->Append(ids.data(), 1));
    RETURN_IF_ERROR(labels->Append(&label, 1));
  }
  RETURN_IF_ERROR(dense->Finish());
  RETURN_IF_ERROR(sparse->Finish());
  return labels->Finish();
}

}  // namespace thermocline
