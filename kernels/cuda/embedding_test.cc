// Pooling and segment sums on the device have the bits of the CPU's.
#include <algorithm>
#include <numeric>
#include <string>

#include "kernels/cuda/testing/test_device.h"

namespace thermocline {
namespace {

constexpr float kUntouched = 12345;

std::vector<int32_t> RandomIndices(std::mt19937_64* rng, int64_t n, int32_t below) {
  std::uniform_int_distribution<int32_t> uniform(0, below - 1);
  std::vector<int32_t> v(n);
  for (int32_t& x : v) x = uniform(*rng);
  return v;
}

std::vector<int32_t> Offsets(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> offsets(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
  return offsets;
}

// One feature's inputs on the host.
struct Feature {
  PoolingMode mode;
  std::vector<float> rows;  // [num_rows, ld]
  int32_t num_rows;
  int64_t ld;
  std::vector<int32_t> row_indices, offsets;
  std::vector<float> weights;
};

class EmbeddingTest : public KernelsTest {
 protected:
  // Bags of 0 to 9 lookups, but for single lookups without offsets.
  Feature RandomFeature(int32_t batch, int32_t dim, int kind) {
    Feature feature;
    feature.mode = kind % 2 == 0 ? PoolingMode::kSum : PoolingMode::kMean;
    feature.num_rows = 1 + static_cast<int32_t>(rng_() % 50);
    feature.ld = dim + static_cast<int64_t>(rng_() % 3) * 4 + (kind == 5 ? 1 : 0);
    feature.rows = RandomFloats(&rng_, feature.num_rows * feature.ld);
    int64_t lookups = batch;
    if (kind != 2) {
      feature.offsets = Offsets(RandomIndices(&rng_, batch, 10));
      lookups = feature.offsets.back();
    }
    feature.row_indices = RandomIndices(&rng_, lookups, feature.num_rows);
    if (kind == 4) feature.weights = RandomFloats(&rng_, lookups);
    return feature;
  }

  void TestPooling(int32_t batch, int32_t dim, int32_t num_features, bool backward, bool odd_ld) {
    std::vector<Feature> features;
    for (int32_t f = 0; f < num_features; ++f) {
      features.push_back(RandomFeature(batch, dim, static_cast<int>(rng_() % (odd_ld ? 6 : 5))));
    }
    constexpr int32_t kFirstVector = 1;
    const int32_t columns = (kFirstVector + num_features) * dim;
    const int64_t ld = PaddedColumns(columns) + (odd_ld ? 3 : 0);
    std::vector<float> z(batch * ld, kUntouched);
    if (backward) z = RandomFloats(&rng_, batch * ld);
    ExpectSameBits("pooling of batch " + std::to_string(batch) + ", dim " + std::to_string(dim),
                   [&](Device* device, Uploads* uploads) {
                     std::vector<PoolInput> inputs;
                     for (const Feature& f : features) {
                       inputs.push_back({f.mode,
                                         FloatMatrix(uploads->Put(f.rows), f.num_rows, dim, f.ld),
                                         uploads->PutSpan(f.row_indices),
                                         {}});
                       if (!f.offsets.empty()) inputs.back().offsets = uploads->PutSpan(f.offsets);
                       if (!f.weights.empty()) inputs.back().weights = uploads->PutSpan(f.weights);
                     }
                     const Matrix z_matrix = FloatMatrix(uploads->Put(z), batch, columns, ld);
                     if (backward) {
                       device->PoolBackward(inputs, dim, kFirstVector, z_matrix);
                     } else {
                       device->PoolForward(inputs, dim, kFirstVector, z_matrix);
                     }
                     return uploads->Get(z_matrix.floats(), z.size());
                   });
  }

  // Segments of `lengths[g]` lookups in group g; those of every third group have weights.
  void TestSegmentSum(const std::vector<std::vector<int32_t>>& lengths, int32_t dim, int64_t pad) {
    constexpr int32_t kGradients = 301;
    const int64_t ld = dim + pad;
    const std::vector<float> gradients = RandomFloats(&rng_, kGradients * ld);
    std::vector<std::vector<int32_t>> lookups;
    std::vector<std::vector<float>> weights;
    const size_t first_weighted = rng_() % 3;
    for (const std::vector<int32_t>& of_group : lengths) {
      lookups.push_back(RandomIndices(&rng_, Offsets(of_group).back(), kGradients));
      const bool is_weighted = weights.size() % 3 == first_weighted;
      weights.push_back(RandomFloats(&rng_, is_weighted ? lookups.back().size() : 0));
    }
    ExpectSameBits(
        "segment sum, dim " + std::to_string(dim), [&](Device* device, Uploads* uploads) {
          std::vector<SegmentGroup> groups;
          for (size_t g = 0; g < lengths.size(); ++g) {
            const auto segments = static_cast<int32_t>(lengths[g].size());
            const std::vector<float> sums(segments * ld, kUntouched);
            groups.push_back({uploads->PutSpan(lookups[g]), uploads->PutSpan(Offsets(lengths[g])),
                              FloatMatrix(uploads->Put(sums), segments, dim, ld)});
            if (!weights[g].empty()) groups.back().weights = uploads->PutSpan(weights[g]);
          }
          device->SegmentSum(FloatMatrix(uploads->Put(gradients), kGradients, dim, ld), groups);
          std::vector<float> all;
          for (const SegmentGroup& group : groups) {
            const std::vector<float> sums = uploads->Get(group.sums.floats(), group.sums.rows * ld);
            all.insert(all.end(), sums.begin(), sums.end());
          }
          return all;
        });
  }
};

TEST_F(EmbeddingTest, PoolForward) {
  for (int32_t dim : {1, 8, 16, 17, 64, 128}) {
    for (int32_t batch : {0, 1, 3, 130}) {
      TestPooling(batch, dim, 1, false, true);
      TestPooling(batch, dim, 5, false, false);
      TestPooling(batch, dim, 5, false, true);
    }
  }
  TestPooling(1000, 16, 26, false, false);
}

TEST_F(EmbeddingTest, PoolBackward) {
  for (int32_t dim : {1, 8, 16, 17, 64, 128}) {
    for (int32_t batch : {0, 1, 130}) TestPooling(batch, dim, 6, true, true);
  }
}

TEST_F(EmbeddingTest, MoreFeaturesThanOneLaunchTakes) {
  TestPooling(7, 4, 150, false, false);
  TestPooling(7, 4, 150, true, false);
}

TEST_F(EmbeddingTest, SegmentSum) {
  for (int32_t dim : {1, 8, 16, 17, 64, 128}) {
    for (int64_t pad : {0, 4, 5}) {
      TestSegmentSum({{1}, {255}, {256}, {257}, {5000}, {0}, {}}, dim, pad);
      TestSegmentSum({{1, 1, 0, 255, 256, 257, 0, 5000, 1, 512, 513, 0}}, dim, pad);
    }
  }
}

// The chunks of long segments start anywhere in the windows.
TEST_F(EmbeddingTest, SegmentSumOfRandomLengths) {
  for (int repeat = 0; repeat < 40; ++repeat) {
    std::vector<std::vector<int32_t>> lengths(3);
    for (std::vector<int32_t>& of_group : lengths) {
      const int segments = 1 + static_cast<int>(rng_() % 12);
      for (int s = 0; s < segments; ++s) {
        const int32_t around = static_cast<int32_t>(rng_() % 5) * kSegmentChunk;
        of_group.push_back(std::max(0, around + static_cast<int32_t>(rng_() % 9) - 4));
      }
    }
    TestSegmentSum(lengths, 16, 0);
  }
}

TEST_F(EmbeddingTest, SegmentSumOfManyGroupsAndGrowingScratch) {
  std::vector<std::vector<int32_t>> lengths(90, {300, 2});
  TestSegmentSum(lengths, 8, 0);
  TestSegmentSum({{1 << 20}}, 128, 0);
  TestSegmentSum({{3, 700}}, 128, 0);
}

}  // namespace
}  // namespace thermocline
