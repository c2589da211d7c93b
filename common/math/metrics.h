// How good predictions are, computed exactly over all of them. Every sum has one order, which the
// samples' order fixes.
#ifndef THERMOCLINE_COMMON_MATH_METRICS_H_
#define THERMOCLINE_COMMON_MATH_METRICS_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace thermocline {

// All functions require that the sizes are equal, labels are 0 or 1, and no score is NaN.
//   weights: how much each sample counts, finite, 0 or more; empty: each counts 1

// Area under the ROC curve: the chance that a random positive sample scores above a random negative
// one, a tie counting one half. NaN where the positives or the negatives weigh nothing.
double Auc(absl::Span<const float> scores, absl::Span<const float> labels,
           absl::Span<const float> weights = {});

// The AUC within groups, by a user for instance: the mean of the AUCs of the groups that have both
// classes, each weighted with its samples (Zhou et al., "Deep Interest Network", 2018, section
// 6.2). NaN where no group has both. The sum over the groups goes in the order of their numbers.
double GroupAuc(absl::Span<const float> scores, absl::Span<const float> labels,
                absl::Span<const float> weights, absl::Span<const uint64_t> groups);

// Mean binary cross entropy of logits; 0 for no samples. Any finite logit is allowed.
double LogLoss(absl::Span<const float> logits, absl::Span<const float> labels,
               absl::Span<const float> weights = {});

struct ScoredSamples {
  std::vector<float> logits;
  std::vector<float> labels;
  std::vector<float> weights;    // Empty: each sample counts 1.
  std::vector<uint64_t> groups;  // Empty: the samples have no groups.
};

// The metrics of some samples. A metric that has no value is NaN.
struct PredictionMetrics {
  int64_t samples = 0;
  double auc = 0;
  std::optional<double> gauc;  // nullopt: the samples have no groups.
  double logloss = 0;
  // logloss, divided by the log loss of the best constant prediction (He et al., "Practical Lessons
  // from Predicting Clicks on Ads at Facebook", 2014): below 1 the model is the better one. NaN
  // where all labels are the same.
  double normalized_entropy = NAN;
  // The mean prediction, divided by the mean label; 1 is best. NaN where there are no positives.
  double calibration = NAN;
};

// Computes all of them. It needs 8 to 36 bytes more of memory for each sample meanwhile.
PredictionMetrics ComputeMetrics(const ScoredSamples& samples);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_METRICS_H_
