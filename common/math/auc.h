// How good predictions are, computed exactly over all of them.
#ifndef THERMOCLINE_COMMON_MATH_AUC_H_
#define THERMOCLINE_COMMON_MATH_AUC_H_

#include "absl/types/span.h"

namespace thermocline {

// Area under the ROC curve: the chance that a random positive sample scores above a random negative
// one, a tie counting one half. NaN where there are no positives or no negatives.
//
// REQUIRES: sizes equal; labels are 0 or 1; no score is NaN.
double Auc(absl::Span<const float> scores, absl::Span<const float> labels);

// Mean binary cross entropy of logits; 0 for no samples. Any finite logit is fine.
//
// REQUIRES: sizes equal; labels are 0 or 1.
double LogLoss(absl::Span<const float> logits, absl::Span<const float> labels);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_AUC_H_
