#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

struct Feature {
  PoolingMode mode;
  int32_t num_rows;
  std::vector<float> rows;
  std::vector<int32_t> row_indices, offsets;
  std::vector<float> weights;

  float WeightOf(int32_t j) const { return weights.empty() ? 1 : weights[j]; }
};

template <typename T>
DeviceSpan<const T> Span(const std::vector<T>& v) {
  return {v.data(), static_cast<int64_t>(v.size())};
}

// max_bag < 0: one lookup in every bag, without offsets.
Feature MakeFeature(PoolingMode mode, int max_bag, int32_t batch, int32_t dim,
                    std::mt19937_64* rng) {
  Feature f{mode, 9, RandomFloats(rng, 9 * dim), {}, {}, {}};
  if (max_bag >= 0) f.offsets.push_back(0);
  for (int32_t b = 0; b < batch; ++b) {
    const int lookups = max_bag < 0 ? 1 : static_cast<int>((*rng)() % (max_bag + 1));
    for (int l = 0; l < lookups; ++l) f.row_indices.push_back(static_cast<int32_t>((*rng)() % 9));
    if (max_bag >= 0) f.offsets.push_back(static_cast<int32_t>(f.row_indices.size()));
  }
  return f;
}

// The last is weighted.
std::vector<Feature> MakeFeatures(int32_t batch, int32_t dim, std::mt19937_64* rng) {
  Feature weighted = MakeFeature(PoolingMode::kSum, 6, batch, dim, rng);
  weighted.weights = RandomFloats(rng, weighted.row_indices.size());
  return {MakeFeature(PoolingMode::kSum, -1, batch, dim, rng),
          MakeFeature(PoolingMode::kSum, 4, batch, dim, rng),
          MakeFeature(PoolingMode::kMean, 5, batch, dim, rng),
          MakeFeature(PoolingMode::kMean, 0, batch, dim, rng),
          MakeFeature(PoolingMode::kMean, -1, batch, dim, rng),
          weighted};
}

std::vector<PoolInput> Inputs(std::vector<Feature>* features, int32_t dim) {
  std::vector<PoolInput> inputs;
  for (Feature& f : *features) {
    inputs.push_back({f.mode, FloatMatrix(f.rows.data(), f.num_rows, dim), Span(f.row_indices),
                      Span(f.offsets), Span(f.weights)});
  }
  return inputs;
}

std::vector<float> Pool(std::vector<Feature>* features, int32_t batch, int32_t dim, int threads) {
  ThreadPool pool(threads);
  const int32_t vectors = static_cast<int32_t>(features->size()) + 1;
  std::vector<float> z(batch * vectors * dim, 77);
  CpuPoolForward(Inputs(features, dim), dim, 1, FloatMatrix(z.data(), batch, vectors * dim), &pool);
  return z;
}

TEST(PoolTest, AgreesWithPlainLoops) {
  std::mt19937_64 rng(TestSeed());
  for (int32_t dim : {1, 8, 16, 17, 24, 32, 48, 64, 128, 512}) {
    for (int32_t batch : {0, 1, 3, 33, 257}) {
      std::vector<Feature> features = MakeFeatures(batch, dim, &rng);
      const std::vector<float> z = Pool(&features, batch, dim, 1);
      const size_t vectors = features.size() + 1;
      for (int32_t b = 0; b < batch; ++b) {
        for (int32_t d = 0; d < dim; ++d) ASSERT_EQ(z[b * vectors * dim + d], 77);
        for (size_t f = 0; f < features.size(); ++f) {
          const Feature& feature = features[f];
          const int32_t first = feature.offsets.empty() ? b : feature.offsets[b];
          const int32_t last = feature.offsets.empty() ? b + 1 : feature.offsets[b + 1];
          for (int32_t d = 0; d < dim; ++d) {
            float sum = 0;
            for (int32_t j = first; j < last; ++j) {
              sum += feature.WeightOf(j) * feature.rows[feature.row_indices[j] * dim + d];
            }
            if (feature.mode == PoolingMode::kMean && last - first > 1) {
              sum *= 1.0f / static_cast<float>(last - first);
            }
            ASSERT_EQ(z[(b * vectors + 1 + f) * dim + d], sum)
                << "dim " << dim << " batch " << batch;
          }
        }
      }
      EXPECT_EQ(Pool(&features, batch, dim, 2), z);
      EXPECT_EQ(Pool(&features, batch, dim, 4), z);
    }
  }
}

// Pooling is linear in the rows: the gradient of sum(weight * pooled) in every row, through
// CpuPoolBackward and CpuSegmentSum, is the difference that one unit in that row makes.
TEST(PoolTest, GradientsAgreeWithDifferences) {
  std::mt19937_64 rng(TestSeed());
  const int32_t dim = 3, batch = 20;
  std::vector<Feature> features = MakeFeatures(batch, dim, &rng);
  const int32_t vectors = static_cast<int32_t>(features.size()) + 1;
  const std::vector<float> weight = RandomFloats(&rng, batch * vectors * dim);
  const auto loss = [&] {
    const std::vector<float> z = Pool(&features, batch, dim, 1);
    double sum = 0;
    for (size_t i = 0; i < z.size(); ++i) sum += static_cast<double>(z[i]) * weight[i];
    return sum;
  };
  ThreadPool pool(2);
  std::vector<float> gradient = weight;
  CpuPoolBackward(Inputs(&features, dim), dim, 1,
                  FloatMatrix(gradient.data(), batch, vectors * dim), &pool);
  for (size_t f = 0; f < features.size(); ++f) {
    Feature& feature = features[f];
    std::vector<int32_t> lookups, offsets = {0};
    std::vector<float> weights;
    for (int32_t row = 0; row < feature.num_rows; ++row) {
      for (int32_t b = 0; b < batch; ++b) {
        const int32_t first = feature.offsets.empty() ? b : feature.offsets[b];
        const int32_t last = feature.offsets.empty() ? b + 1 : feature.offsets[b + 1];
        for (int32_t j = first; j < last; ++j) {
          if (feature.row_indices[j] != row) continue;
          lookups.push_back(b * vectors + 1 + static_cast<int32_t>(f));
          if (!feature.weights.empty()) weights.push_back(feature.weights[j]);
        }
      }
      offsets.push_back(static_cast<int32_t>(lookups.size()));
    }
    std::vector<float> sums(feature.rows.size());
    const SegmentGroup group = {Span(lookups), Span(offsets),
                                FloatMatrix(sums.data(), feature.num_rows, dim), Span(weights)};
    CpuSegmentSum(FloatMatrix(gradient.data(), batch * vectors, dim), {group}, &pool);
    const double before = loss();
    for (size_t i = 0; i < sums.size(); ++i) {
      feature.rows[i] += 1;
      ASSERT_NEAR(sums[i], loss() - before, 1e-4) << "feature " << f;
      feature.rows[i] -= 1;
    }
  }
}

// In chunks of 256 lookups, each in order, the partial sums in order.
std::vector<float> CanonicalSum(const std::vector<float>& gradients,
                                const std::vector<int32_t>& lookups, int32_t dim,
                                const float* weights = nullptr) {
  const auto term = [&](size_t j, int32_t d) {
    const float gradient = gradients[lookups[j] * dim + d];
    return weights == nullptr ? gradient : weights[j] * gradient;
  };
  std::vector<float> sum(dim, 0.0f);
  for (int32_t d = 0; d < dim; ++d) {
    for (size_t chunk = 0; chunk < lookups.size(); chunk += 256) {
      float partial = term(chunk, d);
      for (size_t j = chunk + 1; j < std::min(lookups.size(), chunk + 256); ++j) {
        partial += term(j, d);
      }
      sum[d] = chunk == 0 ? partial : sum[d] + partial;
    }
  }
  return sum;
}

TEST(SegmentSumTest, HasTheCanonicalBitsForAnyThreads) {
  std::mt19937_64 rng(TestSeed());
  for (int32_t dim : {1, 7, 16, 32, 33, 48, 64, 128, 512}) {
    const int32_t num_gradients = 500;
    std::vector<float> gradients = RandomFloats(&rng, num_gradients * dim);
    std::vector<std::vector<int32_t>> segments;
    for (int group = 0; group < 3; ++group) {
      for (int length : {1, 0, 2, 255, 256, 257, 1, 1, 900, 513, 0}) {
        std::vector<int32_t> lookups;
        for (int j = 0; j < length; ++j) {
          lookups.push_back(static_cast<int32_t>(rng() % num_gradients));
        }
        segments.push_back(lookups);
      }
    }
    std::vector<int32_t> lookups, offsets = {0};
    for (const auto& segment : segments) {
      lookups.insert(lookups.end(), segment.begin(), segment.end());
      offsets.push_back(static_cast<int32_t>(lookups.size()));
    }
    const auto count = static_cast<int32_t>(segments.size());
    const std::vector<float> weights = RandomFloats(&rng, lookups.size());
    const std::vector<float> ones(lookups.size(), 1.0f);
    for (int threads : {1, 2, 4}) {
      ThreadPool pool(threads);
      std::vector<float> sums(count * dim, 77), more(count * dim, 77), weighted(count * dim, 77);
      const SegmentGroup groups[] = {
          {Span(lookups), Span(offsets), FloatMatrix(sums.data(), count, dim)},
          {{}, {offsets.data(), 1}, FloatMatrix(nullptr, 0, dim)},  // a table without lookups
          {Span(lookups), Span(offsets), FloatMatrix(more.data(), count, dim), Span(ones)},
          {Span(lookups), Span(offsets), FloatMatrix(weighted.data(), count, dim), Span(weights)}};
      CpuSegmentSum(FloatMatrix(gradients.data(), num_gradients, dim), groups, &pool);
      for (int32_t s = 0; s < count; ++s) {
        const std::vector<float> expected = CanonicalSum(gradients, segments[s], dim);
        ASSERT_EQ(std::memcmp(&sums[s * dim], expected.data(), dim * sizeof(float)), 0)
            << "dim " << dim << " segment " << s << " threads " << threads;
        const std::vector<float> times =
            CanonicalSum(gradients, segments[s], dim, weights.data() + offsets[s]);
        ASSERT_EQ(std::memcmp(&weighted[s * dim], times.data(), dim * sizeof(float)), 0)
            << "weighted, dim " << dim << " segment " << s << " threads " << threads;
      }
      EXPECT_EQ(more, sums);
    }
  }
}

}  // namespace
}  // namespace thermocline
