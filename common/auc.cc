#include "common/auc.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/check.h"

namespace thermocline {

double Auc(absl::Span<const float> scores, absl::Span<const float> labels) {
  CHECK_EQ(scores.size(), labels.size());
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return scores[a] < scores[b]; });
  // Sum of the positives' ranks (from 1; tied scores share the mean of their ranks).
  double positives = 0, rank_sum = 0;
  for (size_t i = 0; i < order.size();) {
    size_t end = i;
    double tied_positives = 0;
    for (; end < order.size() && scores[order[end]] == scores[order[i]]; ++end) {
      tied_positives += labels[order[end]] > 0.5f ? 1 : 0;
    }
    rank_sum += tied_positives * 0.5 * static_cast<double>(i + 1 + end);
    positives += tied_positives;
    i = end;
  }
  const double negatives = static_cast<double>(scores.size()) - positives;
  if (positives == 0 || negatives == 0) return 0.5;
  return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives);
}

double LogLoss(absl::Span<const float> logits, absl::Span<const float> labels) {
  CHECK_EQ(logits.size(), labels.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double x = logits[i];
    sum += std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))) - labels[i] * x;
  }
  return logits.empty() ? 0 : sum / static_cast<double>(logits.size());
}

}  // namespace thermocline
