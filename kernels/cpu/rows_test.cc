#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "common/math/testing/random_optimizers.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

// `count` distinct rows of [0, num_rows), in random order.
std::vector<int32_t> DistinctRows(int num_rows, int count, std::mt19937_64* rng) {
  std::vector<int32_t> rows(num_rows);
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), *rng);
  rows.resize(count);
  return rows;
}

DeviceSpan<const int32_t> View(const std::vector<int32_t>& rows) {
  return {rows.data(), static_cast<int64_t>(rows.size())};
}

class RowsTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  std::mt19937_64 rng_{TestSeed()};
  ThreadPool pool_{2};
};

TEST_P(RowsTest, UpdatesTheTargetsThatAreRowsAndNoOther) {
  constexpr int kDim = 24, kRows = 30000, kStride = 80;
  TableLayout layout;
  layout.dim = kDim;
  DrawRowOptimizers([&](int n) { return static_cast<int>(rng_() % n); }, &layout);
  layout.optimizer.kind = GetParam();
  const RowScalars scalars = ScalarsForStep(layout.row_optimizer(), 0.1f, Step(3));
  // Targets beyond the rows are staging rows, which the update must not change.
  const int in_slab = kRows - 500;
  const std::vector<int32_t> targets = DistinctRows(kRows, 20000, &rng_);
  std::vector<float> slab = RandomFloats(&rng_, int64_t{kRows} * kStride);
  for (float& value : slab) value = std::abs(value);
  std::vector<float> gradients = RandomFloats(&rng_, targets.size() * kDim);

  std::vector<float> expected = slab;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] >= in_slab) continue;
    float* row = &expected[int64_t{targets[i]} * kStride];
    UpdateRow(scalars, &gradients[i * kDim], /*lookups=*/0, row, row + kDim, kDim);
  }
  std::vector<RowUpdateGroup> updates;
  AppendUpdates(scalars, FloatMatrix(gradients.data(), static_cast<int32_t>(targets.size()), kDim),
                View(targets), FloatMatrix(slab.data(), in_slab, layout.row_floats(), kStride),
                &updates);
  CpuSparseUpdate(updates, &pool_);
  EXPECT_EQ(slab, expected);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, RowsTest, testing::ValuesIn(kRowOptimizerKinds));

TEST(RowCopyTest, GathersAndScattersRowsOfSeveralMatrices) {
  std::mt19937_64 rng(TestSeed());
  ThreadPool pool(2);
  constexpr int kRows = 20000, kStride = 24;
  for (const int cols : {1, 16, 24}) {
    std::vector<std::vector<float>> slabs, packed;
    std::vector<std::vector<int32_t>> rows;
    std::vector<RowCopy> copies;
    for (const int count : {15000, 0, 7}) {
      rows.push_back(DistinctRows(kRows, count, &rng));
      slabs.push_back(RandomFloats(&rng, int64_t{kRows} * kStride));
      packed.push_back(RandomFloats(&rng, int64_t{count} * cols));
    }
    for (size_t m = 0; m < slabs.size(); ++m) {
      copies.push_back({FloatMatrix(slabs[m].data(), kRows, kStride), View(rows[m]),
                        FloatMatrix(packed[m].data(), static_cast<int32_t>(rows[m].size()), cols)});
    }
    std::vector<std::vector<float>> expected_slabs = slabs;
    for (size_t m = 0; m < slabs.size(); ++m) {
      for (size_t i = 0; i < rows[m].size(); ++i) {
        std::copy_n(&packed[m][i * cols], cols, &expected_slabs[m][int64_t{rows[m][i]} * kStride]);
      }
    }
    const std::vector<std::vector<float>> expected_packed = packed;
    CpuScatterRows(copies, &pool);
    EXPECT_EQ(slabs, expected_slabs);
    for (std::vector<float>& values : packed) std::fill(values.begin(), values.end(), -1.0f);
    CpuGatherRows(copies, &pool);
    EXPECT_EQ(packed, expected_packed);
  }
}

}  // namespace
}  // namespace thermocline
