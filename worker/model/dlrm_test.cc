#include "worker/model/dlrm.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/math/table_spec.h"
#include "common/model/model_spec.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/random_values.h"
#include "worker/model/testing/random_batch.h"

namespace thermocline {
namespace {

struct Case {
  int num_numeric = 0;
  int num_features = 0;
  int dim = 0;
  std::vector<uint32_t> bottom, top;
  BatchShape batch;
};

ModelSpec SpecOf(const Case& c) {
  Job job;
  job.mutable_dlrm()->mutable_bottom()->Assign(c.bottom.begin(), c.bottom.end());
  job.mutable_dlrm()->mutable_top()->Assign(c.top.begin(), c.top.end());
  return DescribeModel(job, {c.num_numeric, std::vector<int>(c.num_features, c.dim), c.dim});
}

using Doubles = std::vector<double>;

Doubles MlpForward(const Doubles& arena, const DenseArena& layout, const MlpShape& mlp, Doubles x,
                   bool relu_after_last) {
  for (int i = 0; i < mlp.num_layers(); ++i) {
    const int64_t weight = layout.OffsetOf(mlp.WeightOf(i)), bias = layout.OffsetOf(mlp.BiasOf(i));
    const int64_t out = mlp.widths[i + 1];
    Doubles y(out);
    for (int64_t o = 0; o < out; ++o) {
      y[o] = arena[bias + o];
      for (size_t k = 0; k < x.size(); ++k) y[o] += x[k] * arena[weight + k * out + o];
      if (i + 1 < mlp.num_layers() || relu_after_last) y[o] = std::max(y[o], 0.0);
    }
    x = y;
  }
  return x;
}

// The model in plain double loops: the sum of the losses of a batch.
double ReferenceLossOf(const Case& c, const ModelUnderTest& model, const RandomBatch& in,
                       const Doubles& arena, const std::vector<Doubles>& rows, Doubles* logits) {
  const BatchShape& batch = c.batch;
  double loss = 0;
  for (int b = 0; b < batch.batch_size; ++b) {
    std::vector<Doubles> vectors;
    if (c.num_numeric > 0) {
      const auto numeric = in.numeric.begin() + b * c.num_numeric;
      vectors.push_back(MlpForward(arena, model.arena, model.spec.mlps[0],
                                   Doubles(numeric, numeric + c.num_numeric), true));
    }
    for (int f = 0; f < c.num_features; ++f) {
      Doubles pooled(c.dim);
      const int first = in.offsets[f][b], last = in.offsets[f][b + 1];
      for (int j = first; j < last; ++j) {
        for (int d = 0; d < c.dim; ++d) {
          pooled[d] += rows[batch.tables[f]][in.row_indices[f][j] * c.dim + d];
        }
      }
      if (batch.poolings[f] == PoolingMode::kMean && last > first) {
        for (double& x : pooled) x /= last - first;
      }
      vectors.push_back(pooled);
    }
    Doubles top = vectors[0];
    for (size_t i = 1; i < vectors.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        double dot = 0;
        for (int d = 0; d < c.dim; ++d) dot += vectors[i][d] * vectors[j][d];
        top.push_back(dot);
      }
    }
    const double x = MlpForward(arena, model.arena, model.spec.mlps[1], top, false)[0];
    logits->push_back(x);
    loss += std::max(x, 0.0) - x * in.labels[b] + std::log1p(std::exp(-std::fabs(x)));
  }
  return loss;
}

Case SharedTables() {
  Case c = {3, 4, 5, {7}, {6, 4}, {}};
  c.batch.batch_size = 9;
  c.batch.tables = {0, 1, 0, 2};
  c.batch.poolings = {PoolingMode::kSum, PoolingMode::kMean, PoolingMode::kMean, PoolingMode::kSum};
  c.batch.max_bag = {3, 4, 2, -1};
  return c;
}

Case DimSixteen() {
  Case c = {2, 11, 16, {9}, {12}, {}};
  c.batch.batch_size = 5;
  c.batch.tables = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9};
  c.batch.poolings.assign(11, PoolingMode::kSum);
  c.batch.max_bag.assign(11, -1);
  c.batch.max_bag[3] = 0;
  c.batch.unique_keys = 3;
  return c;
}

Case NumericOnly() {
  Case c = {4, 0, 3, {}, {5}, {}};
  c.batch.batch_size = 6;
  return c;
}

Case EmbeddedOnly() {
  Case c = SharedTables();
  c.num_numeric = 0;
  c.bottom = {};
  return c;
}

Case OneEmbeddedFeature() {
  Case c = {0, 1, 4, {}, {5}, {}};
  c.batch.batch_size = 6;
  c.batch.tables = {0};
  c.batch.poolings = {PoolingMode::kMean};
  c.batch.max_bag = {3};
  return c;
}

Case OneOfAll() {
  Case c = {1, 1, 1, {1}, {}, {}};
  c.batch.batch_size = 1;
  c.batch.tables = {0};
  c.batch.poolings = {PoolingMode::kSum};
  c.batch.max_bag = {-1};
  c.batch.unique_keys = 1;
  return c;
}

class DlrmGradientTest : public testing::TestWithParam<Case (*)()> {};

// Every gradient of the model against central differences of the reference in double.
TEST_P(DlrmGradientTest, AgreesWithFiniteDifferences) {
  std::mt19937_64 rng(TestSeed());
  const Case c = GetParam()();
  const std::unique_ptr<Device> device = MakeCpuDevice({2, CpuIsaLimit::kAuto});
  ModelUnderTest model(SpecOf(c), MakeDlrm, OptimizerConfig(), device.get(), c.batch.batch_size + 3,
                       &rng);
  RandomBatch batch =
      MakeRandomBatch(c.batch, model.spec.inputs, model.model->vector_places(), &rng);
  const auto reference = [&](const Doubles& arena, const std::vector<Doubles>& rows,
                             Doubles* logits) {
    return ReferenceLossOf(c, model, batch, arena, rows, logits);
  };
  ExpectGradientsOf(reference, &model, &batch);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DlrmGradientTest,
                         testing::Values(SharedTables, DimSixteen, NumericOnly, EmbeddedOnly,
                                         OneEmbeddedFeature, OneOfAll));

void UpdateDense(int step, ModelUnderTest* model) {
  model->device->DenseUpdate(model->optimizer, ScalarsForStep(model->optimizer, 0.05f, Step(step)),
                             model->arena.gradients().AsConst(), model->arena.weights(),
                             model->arena.state());
}

// Trains a few steps and returns every bit that training left behind.
std::vector<float> Train(int threads, CpuIsaLimit isa, OptimizerKind kind, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Case c = DimSixteen();
  c.num_numeric = 13;
  c.bottom = {33};
  c.top = {70, 20};
  c.batch.unique_keys = 40;
  const std::unique_ptr<Device> device = MakeCpuDevice({threads, isa});
  OptimizerConfig optimizer;
  optimizer.kind = kind;
  ModelUnderTest model(SpecOf(c), MakeDlrm, optimizer, device.get(), 300, &rng);
  std::vector<float> left;
  for (int step = 0; step < 3; ++step) {
    c.batch.batch_size = step == 0 ? 257 : step == 1 ? 60 : 3;
    RandomBatch batch =
        MakeRandomBatch(c.batch, model.spec.inputs, model.model->vector_places(), &rng);
    model.Step(&batch);
    UpdateDense(step, &model);
    for (const auto& e : batch.gradients) left.insert(left.end(), e.begin(), e.end());
    left.push_back(static_cast<float>(model.loss_sum));
  }
  for (const DeviceSpan<float>& arena : {model.arena.weights(), model.arena.state()}) {
    left.insert(left.end(), arena.data, arena.data + arena.size);
  }
  return left;
}

TEST(DlrmTest, SameBitsForAnyThreadsAndInstructions) {
  const uint64_t seed = TestSeed();
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad,
                             OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam}) {
    const std::vector<float> expected = Train(1, CpuIsaLimit::kAuto, kind, seed);
    const auto same_bits = [&expected](const std::vector<float>& got) {
      return got.size() == expected.size() &&
             std::memcmp(got.data(), expected.data(), sizeof(float) * got.size()) == 0;
    };
    EXPECT_TRUE(same_bits(Train(1, CpuIsaLimit::kAvx2, kind, seed)));
    EXPECT_TRUE(same_bits(Train(2, CpuIsaLimit::kAuto, kind, seed)));
    EXPECT_TRUE(same_bits(Train(4, CpuIsaLimit::kAvx2, kind, seed)));
    EXPECT_FALSE(same_bits(Train(1, CpuIsaLimit::kAuto, kind, seed + 1)));
  }
}

TEST(DlrmTest, LossFallsWhenTrained) {
  std::mt19937_64 rng(TestSeed());
  Case c = SharedTables();
  c.batch.batch_size = 64;
  const std::unique_ptr<Device> device = MakeCpuDevice({2, CpuIsaLimit::kAuto});
  ModelUnderTest model(SpecOf(c), MakeDlrm, OptimizerConfig(), device.get(), c.batch.batch_size,
                       &rng);
  RandomBatch batch =
      MakeRandomBatch(c.batch, model.spec.inputs, model.model->vector_places(), &rng);
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    model.Step(&batch);
    UpdateDense(step, &model);
    last = model.loss_sum;
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST(DenseArena, TensorsStandInWholeBlocksInOrder) {
  std::mt19937_64 rng(TestSeed());
  const std::unique_ptr<Device> device = MakeCpuDevice({1, CpuIsaLimit::kAuto});
  const Case c = {13, 26, 16, {512, 256, 64}, {512, 256}, {}};
  const ModelUnderTest model(SpecOf(c), MakeDlrm, OptimizerConfig(), device.get(), 8, &rng);
  ASSERT_EQ(model.spec.tensors.size(), 14u);
  int64_t offset = 0;
  for (const DenseTensor& tensor : model.spec.tensors) {
    EXPECT_EQ(model.arena.OffsetOf(tensor), offset) << tensor.name;
    const int64_t floats = int64_t{tensor.rows()} * tensor.cols();
    offset += (floats + kDenseBlockFloats - 1) / kDenseBlockFloats * kDenseBlockFloats;
  }
  EXPECT_EQ(model.arena.weights().size, offset);
}

}  // namespace
}  // namespace thermocline
