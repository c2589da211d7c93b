// A sweep over the shapes that recommendation models have, one knob at a time from a base (the test
// suite of Acun et al., "Understanding Training Efficiency of Deep Learning Recommendation Models
// at Scale", HPCA 2021): for each point a job, data with random values, and a run.
#ifndef THERMOCLINE_DEPLOY_BENCH_SWEEP_H_
#define THERMOCLINE_DEPLOY_BENCH_SWEEP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/bench/run_figures.h"
#include "proto/job.pb.h"

namespace thermocline {

// A model and its data. The defaults are the base.
struct SweepShape {
  int dense = 64;          // numbers a sample
  int sparse = 16;         // tables
  int lookups = 1;         // a sample, of each table
  int64_t hash = 100'000;  // rows that a table may have
  int dim = 16;
  int batch = 800;
  int width = 64, layers = 2;  // of both MLPs
  std::string device;          // "CPU", "CUDA"; "": the job's default
  // Of the tables: "REMOTE", "CACHED", "DEVICE", or "DEVICE, REMOTE" and so on: the first of small
  // tables, which have a hundredth of the rows and are every second one. "": no cache, and all
  // alike.
  std::string placement;
};

struct SweepPoint {
  std::string knob, value;
  SweepShape shape;
  std::string absence;  // Why there are no figures; "": there are, or the run is to come.
  std::optional<RunFigures> figures;
};

// "batch", "dim", ...
std::vector<std::string> SweepKnobs();
// knobs: separated by commas; "": all. points: how many of each knob's values, its ends included.
// The base comes first, as knob "base". Errors: kInvalidArgument (no such knob)
absl::StatusOr<std::vector<SweepPoint>> PlanSweep(const std::string& knobs, int points);

// Steps that a run makes: `steps`, or fewer where a step is long, so that it takes seconds; and the
// samples in its data, which it reads again where they are fewer.
int64_t SweepSteps(const SweepShape& shape, int64_t steps);
int64_t SweepRows(const SweepShape& shape, int64_t steps);

// The job of a point. Errors: those of ParseJob
absl::StatusOr<Job> SweepJob(const SweepShape& shape, int64_t steps, const std::string& folder);
// Writes its data: ids are skewed (Zipf, 1.05), all else is uniform.
// Errors: kUnavailable (names the file)
absl::Status WriteSweepData(const SweepShape& shape, int64_t rows, const std::string& folder);

std::string RenderSweep(const std::vector<SweepPoint>& points);
std::string SweepCsv(const std::vector<SweepPoint>& points);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_BENCH_SWEEP_H_
