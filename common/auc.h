// Quality of predicted clicks.
#ifndef THERMOCLINE_COMMON_AUC_H_
#define THERMOCLINE_COMMON_AUC_H_

#include "absl/types/span.h"

namespace thermocline {

// Area under the ROC curve: the chance that a random positive scores above a random negative; ties
// count half. Exact (by ranks). 0.5 where one of the classes is absent.
//   scores: [n], any increasing function of the probability; labels: [n] 0 or 1
double Auc(absl::Span<const float> scores, absl::Span<const float> labels);

// Mean of log(1 + exp(x)) - y x. 0 where n is 0.
//   logits: [n]; labels: [n] 0 or 1
double LogLoss(absl::Span<const float> logits, absl::Span<const float> labels);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_AUC_H_
