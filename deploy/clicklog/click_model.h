// The distribution that a synthetic click log is drawn from.
#ifndef THERMOCLINE_DEPLOY_CLICKLOG_CLICK_MODEL_H_
#define THERMOCLINE_DEPLOY_CLICKLOG_CLICK_MODEL_H_

#include <array>
#include <cstdint>
#include <vector>

namespace thermocline {

inline constexpr int kClickDense = 13;
inline constexpr int kClickSparse = 26;

// Neighbouring rows.
struct ClickBlock {
  int rows = 0;
  std::vector<int32_t> counts;  // [rows, 13]; the dense feature is log(1 + count)
  std::vector<float> dense;     // [rows, 13]
  std::vector<int32_t> ids;     // [rows, 26], each below its column's cardinality
  std::vector<int32_t> labels;  // [rows]
  std::vector<float> logits;    // [rows] The planted model's.
};

// Draws ids 0 .. n-1 with nearly P(id) ~ (id + 1)^-skew, by inverting the continuous distribution.
class ZipfDistribution {
 public:
  ZipfDistribution(int64_t n, double skew);
  int64_t operator()(double uniform) const;  // uniform in [0, 1)

 private:
  int64_t n_;
  double power_;  // 1 - skew; 0: the harmonic case
  double span_;
};

// Draws the rows of a click log. Thread-safe.
class ClickModel {
 public:
  //   correlation: in [0, 1], how far the user, item and context of a row, and the ids drawn beside
  //     them, are popular together; it does not change how often each of them comes
  ClickModel(int64_t users, int64_t items, double skew, double shrink, double correlation);

  const std::vector<int64_t>& cardinalities() const { return cardinalities_; }

  // Draws `rows` rows, which depend on `stream` alone.
  void Draw(uint64_t stream, int rows, ClickBlock* block) const;

 private:
  class Random;
  class Popularity;
  void DrawIds(Random* random, int32_t* ids) const;  // [26]
  // Returns the log-odds of a click: the sum of an effect of every id, of products of effects of a
  // few pairs, and of two dense features.
  static double Logit(const int32_t* ids, const float* dense);

  const double correlation_;
  std::vector<int64_t> cardinalities_;
  std::vector<ZipfDistribution> owners_;  // User, item, context.
  std::vector<ZipfDistribution> noise_;   // [26]
  std::vector<float> log1p_;              // log(1 + count) of small counts.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLICKLOG_CLICK_MODEL_H_
