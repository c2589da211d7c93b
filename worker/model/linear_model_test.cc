// A second model passes the gradient check of the first: nothing in the interface is DLRM's alone.
#include "worker/model/testing/linear_model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/random_values.h"
#include "worker/model/testing/random_batch.h"

namespace thermocline {
namespace {

using Doubles = std::vector<double>;

TEST(LinearModel, GradientsAgreeWithFiniteDifferences) {
  std::mt19937_64 rng(TestSeed());
  const std::unique_ptr<Device> device = MakeCpuDevice({1, CpuIsaLimit::kAuto});
  // Vectors and scalars; features 0 and 2 share a table.
  const ModelSpec spec = DescribeLinear({3, {4, 1, 4, 1}, 0});
  const BatchShape shape = {
      7,
      {0, 1, 0, 2},
      {PoolingMode::kSum, PoolingMode::kSum, PoolingMode::kMean, PoolingMode::kMean},
      {3, -1, 2, 4},
      5};
  ModelUnderTest model(spec, MakeLinear, OptimizerConfig(), device.get(), 10, &rng);
  const auto* const linear = static_cast<const LinearModel*>(model.model.get());
  RandomBatch batch = MakeRandomBatch(shape, spec.inputs, linear->vector_places(), &rng);

  const DenseTensor &numeric = spec.tensors[0], &vectors = spec.tensors[1], &bias = spec.tensors[2];
  const auto reference = [&](const Doubles& arena, const std::vector<Doubles>& rows,
                             Doubles* logits) {
    double loss = 0;
    for (int b = 0; b < shape.batch_size; ++b) {
      double x = arena[model.arena.OffsetOf(bias)];
      for (int c = 0; c < 3; ++c) {
        x += batch.numeric[b * 3 + c] * arena[model.arena.OffsetOf(numeric) + c];
      }
      for (int f = 0; f < 4; ++f) {
        const int dim = spec.inputs.vector_dims[f];
        const int first = batch.offsets[f][b], last = batch.offsets[f][b + 1];
        const double share =
            shape.poolings[f] == PoolingMode::kMean ? 1.0 / std::max(1, last - first) : 1.0;
        const double* const weights =
            &arena[model.arena.OffsetOf(vectors) + linear->first_weight_of(f)];
        for (int j = first; j < last; ++j) {
          for (int d = 0; d < dim; ++d) {
            x += share * weights[d] * rows[shape.tables[f]][batch.row_indices[f][j] * dim + d];
          }
        }
      }
      logits->push_back(x);
      loss += std::max(x, 0.0) - x * batch.labels[b] + std::log1p(std::exp(-std::fabs(x)));
    }
    return loss;
  };
  ExpectGradientsOf(reference, &model, &batch);
}

}  // namespace
}  // namespace thermocline
