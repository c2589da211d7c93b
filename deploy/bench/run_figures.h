// What one run of `thermocline train` did, read from its run directory: how fast it was, how good
// its model, and what it moved. And figures over several runs.
#ifndef THERMOCLINE_DEPLOY_BENCH_RUN_FIGURES_H_
#define THERMOCLINE_DEPLOY_BENCH_RUN_FIGURES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace thermocline {

// An evaluation, or the scoring at a change between hot and cold batches.
struct ScoredPoint {
  int64_t steps = 0;   // Trained until then.
  double train_s = 0;  // Training time until then, without evaluations.
  std::optional<double> auc, logloss;
  double seconds = 0;          // That the evaluation took.
  bool is_evaluation = true;   // Else of the schedule alone: of fewer rows.
  std::optional<double> rate;  // Of the schedule from then on, in percent.
  double schedule_s = 0;       // That the scoring for the change took.
};

struct RunFigures {
  int64_t steps = 0, samples = 0;
  // Of training. The scoring that a schedule of hot and cold batches asks for counts as training,
  // evaluations don't.
  double train_s = 0;
  double samples_per_s = 0;
  std::optional<double> auc, logloss;  // Of the model at the end.
  std::string digest, device;
  // Of messages between workers and servers and among workers, without those of evaluations.
  double wire_bytes_per_sample = 0;
  std::optional<double> device_bytes_per_sample;  // To the device and from it.
  std::optional<double> hit_rate;                 // Keys that the cache held, of all distinct ones.
  std::optional<double> hot_share;                // Samples in hot batches, of all.
  std::optional<double> hot_rows;
  std::string pack;  // The file of hot and cold batches, or of hot rows; "": there is none.
  bool reuses_pack = false;
  std::optional<double> calibrate_s, pack_s;  // Before training. None: it did neither, or reused.
  std::vector<std::pair<std::string, double>> stage_us;  // A sample, of worker 0.
  // Steps and seconds of training from its beginning, as the worker reported them, without scoring.
  std::vector<std::pair<double, double>> progress;
  std::vector<ScoredPoint> points;  // Ascending.
};

// Errors: kDataLoss (no run ended well in the folder; names what is missing).
absl::StatusOr<RunFigures> ReadRun(const std::string& run_dir);

// Training time until so many steps, with the scoring of the schedule. What lies between two
// reports lies on a line between them.
double TrainSecondsAt(const RunFigures& run, int64_t steps);

// Makes the evaluations of another run of the same model points of `run`, at its own times: so that
// a run need not be evaluated, and write back what it holds, to be timed.
void TakeEvaluations(const RunFigures& evaluated, RunFigures* run);

// Training time until an evaluation first finds at least `auc`; nullopt: none does.
std::optional<double> SecondsToAuc(const RunFigures& run, double auc);

// A cell of a CSV file: of any text; of a number, "" for none.
std::string CsvCell(const std::string& text);
std::string CsvCell(std::optional<double> value);

// The middle value, or the mean of the two in the middle. REQUIRES: not empty
double Median(std::vector<double> values);

struct Spread {
  double median = 0, low = 0, high = 0;
};
// nullopt: there are no values.
std::optional<Spread> SpreadOf(const std::vector<double>& values);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_BENCH_RUN_FIGURES_H_
