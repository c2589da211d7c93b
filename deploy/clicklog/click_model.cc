#include "deploy/clicklog/click_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/hash.h"

namespace thermocline {
namespace {

// Distinct values of the 26 categorical columns of Criteo's Kaggle log.
constexpr std::array<int64_t, kClickSparse> kKaggleCardinalities = {
    1460, 583,   10131227, 2202608, 305,  24,   12517, 633,     3,  93145, 5683,   8351593, 3194,
    27,   14992, 5461306,  10,      5652, 2173, 4,     7046547, 18, 15,    286181, 105,     142572};
constexpr int64_t kShrinkAbove = 10'000;
constexpr int64_t kMinCardinality = 3;
constexpr int64_t kContexts = 50'000;

// What a column describes.
enum Owner { kUser, kItem, kContext, kOwners };
constexpr std::array<Owner, kClickSparse> kOwner = {
    kItem, kItem,    kUser, kUser,    kContext, kContext, kItem,    kItem,    kContext,
    kUser, kItem,    kItem, kContext, kContext, kUser,    kItem,    kContext, kItem,
    kItem, kContext, kUser, kContext, kContext, kItem,    kContext, kUser};

// Columns up to this many values repeat values over owners, popular ones more; larger ones are ids.
constexpr int64_t kMaxAttributeValues = 200'000;
// Share of ids that are drawn independently of the row's user, item and context.
constexpr double kNoise = 0.03;

constexpr double kMeanCount = 3;
constexpr int32_t kMaxCount = 1'000'000;

// The planted model.
constexpr double kBias = -1.6;
constexpr double kIdEffect = 0.9;
constexpr double kPairEffect = 4;
constexpr int kPairFactors = 2;
constexpr std::array<std::pair<int, int>, 6> kPairs = {
    {{0, 4}, {1, 9}, {5, 17}, {13, 18}, {6, 21}, {10, 14}}};
constexpr double kDenseEffect = 0.25;

enum Salt : uint64_t { kAttributeSalt = 1, kEffectSalt = 2, kLeftSalt = 3, kRightSalt = 4 };

// A fixed number in [0, 2^64) for each (purpose, column, value).
uint64_t HashOf(Salt salt, int column, int64_t value) {
  return Mix64(static_cast<uint64_t>(value) + (static_cast<uint64_t>(salt) << 58) +
               (static_cast<uint64_t>(column) << 48));
}

double Unit(uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

// In [-0.5, 0.5).
double EffectOf(Salt salt, int column, int32_t id) { return Unit(HashOf(salt, column, id)) - 0.5; }

}  // namespace

ZipfDistribution::ZipfDistribution(int64_t n, double skew) : n_(n), power_(1 - skew) {
  if (std::abs(power_) < 1e-6) power_ = 0;
  span_ = power_ == 0 ? std::log(n + 1.0) : std::pow(n + 1.0, power_) - 1;
}

int64_t ZipfDistribution::operator()(double uniform) const {
  const double rank =
      power_ == 0 ? std::exp(uniform * span_) : std::pow(1 + uniform * span_, 1 / power_);
  return std::min(static_cast<int64_t>(rank) - 1, n_ - 1);
}

// SplitMix64.
class ClickModel::Random {
 public:
  explicit Random(uint64_t stream) : state_(Mix64(stream)) {}
  double Uniform() {
    state_ += 0x9E3779B97F4A7C15u;
    return Unit(Mix64(state_));
  }

 private:
  uint64_t state_;
};

// Where in a distribution the draws of one row lie: uniform in [0, 1) each, and correlated by a
// Gaussian copula. A draw near 0 is a popular id.
class ClickModel::Popularity {
 public:
  Popularity(double correlation, Random* random)
      : common_(std::sqrt(correlation)), own_(std::sqrt(1 - correlation)), random_(*random) {
    if (common_ > 0) row_ = Normal();
  }

  double Next() {
    // Independent draws take one number each, as they always have: the same bytes.
    return common_ > 0 ? CdfOf(common_ * row_ + own_ * Normal()) : random_.Uniform();
  }
  // The same; without correlation it returns `uniform`, a draw in [0, 1).
  double Next(double uniform) { return common_ > 0 ? Next() : uniform; }

 private:
  // Box and Muller.
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - random_.Uniform()));
    return radius * std::cos(kTwoPi * random_.Uniform());
  }
  // The share of a normal distribution below `normal`, itself below 1.
  static double CdfOf(double normal) {
    return std::min(0.5 * std::erfc(-normal / kSqrt2), 1 - 0x1p-53);
  }

  static constexpr double kTwoPi = 6.283185307179586;
  static constexpr double kSqrt2 = 1.4142135623730951;

  const double common_, own_;
  Random& random_;
  double row_ = 0;
};

ClickModel::ClickModel(int64_t users, int64_t items, double skew, double shrink, double correlation)
    : correlation_(correlation) {
  for (int64_t rows : kKaggleCardinalities) {
    if (rows > kShrinkAbove) {
      rows = std::max(kMinCardinality, static_cast<int64_t>(static_cast<double>(rows) / shrink));
    }
    cardinalities_.push_back(rows);
    noise_.emplace_back(rows, skew);
  }
  for (int64_t n : {users, items, kContexts}) owners_.emplace_back(n, skew);
  for (int i = 0; i < 64; ++i) log1p_.push_back(static_cast<float>(std::log1p(i)));
}

void ClickModel::DrawIds(Random* random, int32_t* ids) const {
  Popularity popularity(correlation_, random);
  int64_t owners[kOwners];
  for (int o = 0; o < kOwners; ++o) owners[o] = owners_[o](popularity.Next());
  for (int c = 0; c < kClickSparse; ++c) {
    const int64_t values = cardinalities_[c];
    const double u = random->Uniform();
    int64_t id;
    if (u < kNoise) {
      id = noise_[c](popularity.Next(u / kNoise));
    } else {
      const uint64_t hash = HashOf(kAttributeSalt, c, owners[kOwner[c]]);
      id = values < kMaxAttributeValues
               ? static_cast<int64_t>(Unit(hash) * Unit(hash) * static_cast<double>(values))
               : static_cast<int64_t>(hash % static_cast<uint64_t>(values));
    }
    ids[c] = static_cast<int32_t>(id);
  }
}

double ClickModel::Logit(const int32_t* ids, const float* dense) {
  double logit = kBias + kDenseEffect * (dense[0] - dense[1]);
  for (int c = 0; c < kClickSparse; ++c) logit += kIdEffect * EffectOf(kEffectSalt, c, ids[c]);
  for (const auto& [left, right] : kPairs) {
    for (int k = 0; k < kPairFactors; ++k) {
      logit += kPairEffect * EffectOf(kLeftSalt, 32 * k + left, ids[left]) *
               EffectOf(kRightSalt, 32 * k + right, ids[right]);
    }
  }
  return logit;
}

void ClickModel::Draw(uint64_t stream, int rows, ClickBlock* block) const {
  block->rows = rows;
  block->counts.resize(static_cast<size_t>(rows) * kClickDense);
  block->dense.resize(static_cast<size_t>(rows) * kClickDense);
  block->ids.resize(static_cast<size_t>(rows) * kClickSparse);
  block->labels.resize(rows);
  block->logits.resize(rows);
  Random random(stream);
  for (int row = 0; row < rows; ++row) {
    int32_t* const ids = &block->ids[static_cast<size_t>(row) * kClickSparse];
    float* const dense = &block->dense[static_cast<size_t>(row) * kClickDense];
    DrawIds(&random, ids);
    for (int i = 0; i < kClickDense; ++i) {
      // Exponentially distributed, rounded; so that the text form holds the same numbers.
      const double count = std::nearbyint(-kMeanCount * std::log(1 - random.Uniform()));
      const int32_t n = static_cast<int32_t>(std::min<double>(count, kMaxCount));
      block->counts[static_cast<size_t>(row) * kClickDense + i] = n;
      dense[i] =
          n < static_cast<int32_t>(log1p_.size()) ? log1p_[n] : static_cast<float>(std::log1p(n));
    }
    const double logit = Logit(ids, dense);
    block->logits[row] = static_cast<float>(logit);
    block->labels[row] = random.Uniform() < 1 / (1 + std::exp(-logit)) ? 1 : 0;
  }
}

}  // namespace thermocline
