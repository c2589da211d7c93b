// What a job says of the rows that its workers keep on their devices.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"

namespace thermocline {
namespace {

// A worker holds the batches of its window.
constexpr uint64_t kMaxWindowSteps = 1024;
constexpr uint64_t kMaxChunks = 1 << 20;
constexpr uint64_t kMaxFalls = 1 << 20;

class DeviceRowsValidator {
 public:
  DeviceRowsValidator(const Job& job, const JobSource& source) : job_(job), source_(source) {}

  absl::Status Run() const {
    if (job_.has_cache()) RETURN_IF_ERROR(CheckCache());
    for (int i = 0; i < job_.table_size(); ++i) RETURN_IF_ERROR(CheckPlacement(i));
    if (job_.has_fae()) RETURN_IF_ERROR(CheckFae());
    if (CountsHotRows(job_)) return CheckCalibration();
    if (!job_.has_calibration()) return absl::OkStatus();
    return source_.Error("calibration",
                         "is set, but the job has neither `fae` nor a cache with "
                         "policy: STATIC");
  }

 private:
  absl::Status CheckBudget(const std::string& path, const std::string& budget) const {
    if (budget.empty()) {
      return source_.Error(
          path, absl::StrCat("is missing; write a size, such as \"256MiB\"",
                             path == "fae.budget" ? " (`thermocline calibrate` says what sizes are "
                                                    "worth)"
                                                  : ""));
    }
    if (EmbeddedFeatures(job_).empty()) {
      return source_.Error(path, "is set, but there are no categorical columns");
    }
    return CheckSize(source_, path, budget, kMinMemoryBudgetBytes);
  }

  absl::Status CheckCache() const {
    const Cache& cache = job_.cache();
    RETURN_IF_ERROR(CheckBudget("cache.budget", cache.budget()));
    RETURN_IF_ERROR(
        CheckRange(source_, "cache.window_steps", cache.window_steps(), 1, kMaxWindowSteps));
    if (cache.prefetch_steps() >= cache.window_steps()) {
      return source_.Error("cache.prefetch_steps",
                           absl::StrCat("is ", cache.prefetch_steps(),
                                        "; it must be less than cache.window_steps, which is ",
                                        cache.window_steps()));
    }
    if (cache.policy() == Cache::STATIC && job_.cluster().workers() > 1) {
      return source_.Error("cache.policy", absl::StrCat("is STATIC, which is for one worker; "
                                                        "cluster.workers is ",
                                                        job_.cluster().workers()));
    }
    return absl::OkStatus();
  }

  // The field that gives table `i` its placement.
  std::string PlacementPath(int i) const {
    const bool is_own =
        i < source_.job().table_size() && source_.job().table(i).settings().has_placement();
    return is_own ? absl::StrCat("table[", i, "].settings.placement") : "default_table.placement";
  }

  absl::Status CheckPlacement(int i) const {
    const TableSettings& settings = job_.table(i).settings();
    if (settings.placement() == TableSettings::CACHED) return absl::OkStatus();
    const auto refuse = [&](const std::string& why) {
      return source_.Error(
          PlacementPath(i),
          absl::StrCat("is ", TableSettings::Placement_Name(settings.placement()), why));
    };
    if (!job_.has_cache()) return refuse(", but the job has no `cache`");
    if (job_.cache().policy() == Cache::STATIC) {
      return refuse("; where cache.policy is STATIC, that alone says which rows are held");
    }
    if (settings.placement() == TableSettings::REMOTE) return absl::OkStatus();
    const char* const why =
        ": its servers decide which keys have a row, so no worker can hold them";
    const std::string of_table = absl::StrCat(", but table '", job_.table(i).name(), "' has ");
    if (settings.min_count() > 1) {
      return refuse(absl::StrCat(of_table, "min_count ", settings.min_count(), why));
    }
    if (settings.has_eviction()) return refuse(absl::StrCat(of_table, "eviction", why));
    return absl::OkStatus();
  }

  absl::Status CheckFae() const {
    if (job_.has_cache()) {
      return source_.Error("fae", "is set, and `cache` as well; choose one");
    }
    RETURN_IF_ERROR(CheckBudget("fae.budget", job_.fae().budget()));
    if (job_.train().staleness_steps() > 0) {
      return source_.Error(
          "train.staleness_steps",
          absl::StrCat("is ", job_.train().staleness_steps(), "; with `fae` it must be 0"));
    }
    if (job_.data().has_shuffle()) {
      return source_.Error("data.shuffle",
                           "is set; with `fae` samples go into batches once, in the data's order");
    }
    for (int i = 0; i < job_.table_size(); ++i) {
      const TableSettings& settings = job_.table(i).settings();
      const std::string path = absl::StrCat("table[", i, "].settings.");
      const char* const why = "is set; with `fae` every key that is looked up has a row";
      if (settings.min_count() > 1) return source_.Error(path + "min_count", why);
      if (settings.has_eviction()) return source_.Error(path + "eviction", why);
    }
    return CheckSchedule();
  }

  absl::Status CheckSchedule() const {
    const Fae::Schedule& schedule = job_.fae().schedule();
    const std::string path = "fae.schedule.";
    RETURN_IF_ERROR(CheckPercent(path + "min_rate", schedule.min_rate()));
    RETURN_IF_ERROR(CheckPercent(path + "max_rate", schedule.max_rate()));
    RETURN_IF_ERROR(CheckPercent(path + "rate", schedule.rate()));
    if (!(schedule.min_rate() <= schedule.rate() && schedule.rate() <= schedule.max_rate())) {
      return source_.Error(
          path + "rate", absl::StrCat("is ", schedule.rate(), "; it must be from min_rate, ",
                                      schedule.min_rate(), ", to max_rate, ", schedule.max_rate()));
    }
    RETURN_IF_ERROR(
        CheckRange(source_, path + "falls_to_double", schedule.falls_to_double(), 1, kMaxFalls));
    if (schedule.fixed()) return absl::OkStatus();
    return CheckHeldOut(job_, source_, "fae", "; or write fae.schedule.fixed: true");
  }

  absl::Status CheckPercent(const std::string& path, double percent) const {
    if (percent > 0 && percent <= 100) return absl::OkStatus();
    return source_.Error(path, absl::StrCat("is ", percent, "; it must be in (0, 100]"));
  }

  absl::Status CheckCalibration() const {
    const Calibration& calibration = job_.calibration();
    const double share = calibration.sample_share();
    if (!(share > 0 && share <= 1)) {
      return source_.Error("calibration.sample_share",
                           absl::StrCat("is ", share, "; it must be in (0, 1]"));
    }
    if (!calibration.whole_table().empty() && calibration.whole_table() != "0") {
      RETURN_IF_ERROR(CheckSize(source_, "calibration.whole_table", calibration.whole_table(), 0));
    }
    RETURN_IF_ERROR(CheckRange(source_, "calibration.chunks", calibration.chunks(), 2, kMaxChunks));
    RETURN_IF_ERROR(
        CheckRange(source_, "calibration.chunk_rows", calibration.chunk_rows(), 1, kMaxChunks));
    const double confidence = calibration.confidence();
    if (confidence > 0 && confidence < 1) return absl::OkStatus();
    return source_.Error("calibration.confidence",
                         absl::StrCat("is ", confidence, "; it must be between 0 and 1"));
  }

  const Job& job_;
  const JobSource& source_;
};

}  // namespace

absl::Status ValidateDeviceRows(const Job& resolved, const JobSource& source) {
  return DeviceRowsValidator(resolved, source).Run();
}

}  // namespace thermocline
