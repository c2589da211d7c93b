#include "common/math/metrics.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/check.h"

namespace thermocline {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// An integer that orders as the score does, with the label in its lowest bit.
uint64_t OrderedBits(float score, bool positive) {
  CHECK(!std::isnan(score));
  if (score == 0) score = 0;  // -0 ties with 0
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof(bits));
  bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{bits} << 1 | (positive ? 1 : 0);
}

// One sample, of which only the order matters.
struct Ranked {
  uint64_t order = 0;  // OrderedBits
  float weight = 1;
  uint64_t group = 0;
};

uint64_t OrderOf(uint64_t sample) { return sample; }
double WeightOf(uint64_t) { return 1; }
uint64_t OrderOf(const Ranked& sample) { return sample.order; }
double WeightOf(const Ranked& sample) { return sample.weight; }

// REQUIRES: the samples ascend by OrderOf.
template <typename Sample>
double AreaUnderCurve(absl::Span<const Sample> samples) {
  // Twice the pairs that a negative loses, so that a tie of samples that count 1 is an integer too.
  double double_wins = 0;
  double positives = 0, negatives = 0;
  for (size_t i = 0; i < samples.size();) {
    double tied_positives = 0, tied_negatives = 0;
    const uint64_t score = OrderOf(samples[i]) >> 1;
    for (; i < samples.size() && OrderOf(samples[i]) >> 1 == score; ++i) {
      ((OrderOf(samples[i]) & 1) != 0 ? tied_positives : tied_negatives) += WeightOf(samples[i]);
    }
    double_wins += tied_positives * (2 * negatives + tied_negatives);
    positives += tied_positives;
    negatives += tied_negatives;
  }
  if (positives == 0 || negatives == 0) return kNone;
  return double_wins / 2 / (positives * negatives);
}

// Returns the samples in the order of groups, then of scores. Samples that tie keep their order.
std::vector<Ranked> Rank(absl::Span<const float> scores, absl::Span<const float> labels,
                         absl::Span<const float> weights, absl::Span<const uint64_t> groups) {
  std::vector<Ranked> samples(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    samples[i].order = OrderedBits(scores[i], labels[i] != 0);
    if (!weights.empty()) samples[i].weight = weights[i];
    if (!groups.empty()) samples[i].group = groups[i];
  }
  std::stable_sort(samples.begin(), samples.end(), [](const Ranked& a, const Ranked& b) {
    return a.group != b.group ? a.group < b.group : a.order < b.order;
  });
  return samples;
}

void CheckSizes(size_t samples, absl::Span<const float> labels, absl::Span<const float> weights) {
  CHECK_EQ(samples, labels.size());
  if (!weights.empty()) CHECK_EQ(samples, weights.size());
}

double WeightAt(absl::Span<const float> weights, size_t sample) {
  return weights.empty() ? 1 : weights[sample];
}

}  // namespace

double Auc(absl::Span<const float> scores, absl::Span<const float> labels,
           absl::Span<const float> weights) {
  CheckSizes(scores.size(), labels, weights);
  if (!weights.empty()) {
    return AreaUnderCurve<Ranked>(Rank(scores, labels, weights, {}));
  }
  std::vector<uint64_t> samples;
  samples.reserve(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    samples.push_back(OrderedBits(scores[i], labels[i] != 0));
  }
  std::sort(samples.begin(), samples.end());
  return AreaUnderCurve<uint64_t>(samples);
}

double GroupAuc(absl::Span<const float> scores, absl::Span<const float> labels,
                absl::Span<const float> weights, absl::Span<const uint64_t> groups) {
  CheckSizes(scores.size(), labels, weights);
  CHECK_EQ(scores.size(), groups.size());
  const std::vector<Ranked> samples = Rank(scores, labels, weights, groups);
  double sum = 0, sum_of_weights = 0;
  for (size_t begin = 0; begin < samples.size();) {
    size_t end = begin;
    double weight = 0;
    for (; end < samples.size() && samples[end].group == samples[begin].group; ++end) {
      weight += samples[end].weight;
    }
    const double auc =
        AreaUnderCurve<Ranked>(absl::MakeConstSpan(samples).subspan(begin, end - begin));
    if (!std::isnan(auc)) {
      sum += weight * auc;
      sum_of_weights += weight;
    }
    begin = end;
  }
  return sum_of_weights == 0 ? kNone : sum / sum_of_weights;
}

double LogLoss(absl::Span<const float> logits, absl::Span<const float> labels,
               absl::Span<const float> weights) {
  CheckSizes(logits.size(), labels, weights);
  if (logits.empty()) return 0;
  double sum = 0, sum_of_weights = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double x = logits[i];
    const double weight = WeightAt(weights, i);
    sum += weight * (std::max(x, 0.0) - x * labels[i] + std::log1p(std::exp(-std::fabs(x))));
    sum_of_weights += weight;
  }
  return sum_of_weights == 0 ? kNone : sum / sum_of_weights;
}

PredictionMetrics ComputeMetrics(const ScoredSamples& samples) {
  PredictionMetrics metrics;
  metrics.samples = static_cast<int64_t>(samples.logits.size());
  metrics.auc = Auc(samples.logits, samples.labels, samples.weights);
  if (!samples.groups.empty()) {
    metrics.gauc = GroupAuc(samples.logits, samples.labels, samples.weights, samples.groups);
  }
  metrics.logloss = LogLoss(samples.logits, samples.labels, samples.weights);
  double all = 0, positives = 0, predicted = 0;
  for (size_t i = 0; i < samples.logits.size(); ++i) {
    const double weight = WeightAt(samples.weights, i);
    all += weight;
    positives += weight * samples.labels[i];
    predicted += weight / (1 + std::exp(-static_cast<double>(samples.logits[i])));
  }
  if (positives > 0) metrics.calibration = predicted / positives;
  if (positives > 0 && positives < all) {
    const double rate = positives / all;
    metrics.normalized_entropy =
        metrics.logloss / -(rate * std::log(rate) + (1 - rate) * std::log1p(-rate));
  }
  return metrics;
}

}  // namespace thermocline
