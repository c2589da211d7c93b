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

// In all functions: sizes are equal, labels are 0 or 1, no score is NaN. weights: how much each
// sample counts, finite, 0 or more; empty: each counts 1.

// Area under the ROC curve: the chance that a random positive sample scores above a random negative
// one, a tie counting one half. NaN where the positives or the negatives weigh nothing.
double Auc(absl::Span<const float> scores, absl::Span<const float> labels,
           absl::Span<const float> weights = {});

// The AUC within groups, by a user for instance: the mean of the AUCs of the groups that have both
// classes, each weighted with its samples (Zhou et al., "Deep Interest Network", 2018, section
// 6.2). NaN where no group has both. Of the groups' order by their numbers.
double GroupAuc(absl::Span<const float> scores, absl::Span<const float> labels,
                absl::Span<const float> weights, absl::Span<const uint64_t> groups);

// Mean binary cross entropy of logits; 0 for no samples. Any finite logit is fine.
double LogLoss(absl::Span<const float> logits, absl::Span<const float> labels,
               absl::Span<const float> weights = {});

struct ScoredSamples {
  std::vector<float> logits;
  std::vector<float> labels;
  std::vector<float> weights;    // Empty: each sample counts 1.
  std::vector<uint64_t> groups;  // Empty: there are none.
};

// What has no value is NaN.
struct PredictionMetrics {
  int64_t samples = 0;
  double auc = 0;
  std::optional<double> gauc;  // nullopt: the samples have no groups.
  double logloss = 0;
  // logloss, divided by that of the best constant prediction (He et al., "Practical Lessons from
  // Predicting Clicks on Ads at Facebook", 2014): below 1 is better than it. One class: NaN.
  double normalized_entropy = NAN;
  // The mean prediction, divided by the mean label: 1 is best. No positives: NaN.
  double calibration = NAN;
};

// Takes 8 to 36 bytes more of memory for each sample while it computes.
PredictionMetrics ComputeMetrics(const ScoredSamples& samples);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_METRICS_H_
