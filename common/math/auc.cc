#include "common/math/auc.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/check.h"

namespace thermocline {
namespace {

// An integer that orders as the score does, with the label in its lowest bit.
uint64_t OrderedBits(float score, bool positive) {
  if (score == 0) score = 0;  // -0 ties with 0
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof(bits));
  bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{bits} << 1 | (positive ? 1 : 0);
}

}  // namespace

double Auc(absl::Span<const float> scores, absl::Span<const float> labels) {
  CHECK_EQ(scores.size(), labels.size());
  std::vector<uint64_t> samples;
  samples.reserve(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    CHECK(!std::isnan(scores[i]));
    samples.push_back(OrderedBits(scores[i], labels[i] != 0));
  }
  std::sort(samples.begin(), samples.end());

  // Twice the pairs that a negative loses, so that a tie is an integer too.
  double double_wins = 0;
  int64_t positives = 0, negatives = 0;
  for (size_t i = 0; i < samples.size();) {
    int64_t tied_positives = 0, tied_negatives = 0;
    const uint64_t score = samples[i] >> 1;
    for (; i < samples.size() && samples[i] >> 1 == score; ++i) {
      ++((samples[i] & 1) != 0 ? tied_positives : tied_negatives);
    }
    double_wins +=
        static_cast<double>(tied_positives) * static_cast<double>(2 * negatives + tied_negatives);
    positives += tied_positives;
    negatives += tied_negatives;
  }
  if (positives == 0 || negatives == 0) return std::numeric_limits<double>::quiet_NaN();
  return double_wins / 2 / (static_cast<double>(positives) * static_cast<double>(negatives));
}

double LogLoss(absl::Span<const float> logits, absl::Span<const float> labels) {
  CHECK_EQ(logits.size(), labels.size());
  if (logits.empty()) return 0;
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double x = logits[i];
    sum += std::max(x, 0.0) - x * labels[i] + std::log1p(std::exp(-std::fabs(x)));
  }
  return sum / static_cast<double>(logits.size());
}

}  // namespace thermocline
