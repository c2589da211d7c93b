#include "worker/model/dlrm.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/math/table_spec.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

// A model's inputs in host memory, and the SparseBatch that points to them.
struct Inputs {
  std::vector<float> dense, labels;
  std::vector<std::vector<float>> rows;                     // [table][unique * dim]
  std::vector<std::vector<int32_t>> row_indices, offsets;   // [feature]
  std::vector<std::vector<int32_t>> seg_offsets, seg_bags;  // [table]
  SparseBatch batch;
};

struct Case {
  DlrmShape shape;
  int32_t batch_size = 0;
  std::vector<int32_t> tables;        // of each feature
  std::vector<PoolingMode> poolings;  // of each feature
  std::vector<int32_t> max_bag;       // of each feature; 0: no lookups at all; -1: one-lookup form
  int32_t unique_keys = 5;            // of each table
};

Inputs MakeInputs(const Case& c, std::mt19937_64* rng) {
  Inputs in;
  in.dense = RandomFloats(rng, size_t(c.batch_size) * c.shape.num_dense, 1);
  for (int b = 0; b < c.batch_size; ++b) in.labels.push_back((*rng)() % 2);
  const int features = c.shape.num_features;
  int tables = 0;
  for (int t : c.tables) tables = std::max(tables, t + 1);
  in.rows.resize(tables), in.seg_offsets.resize(tables), in.seg_bags.resize(tables);
  in.row_indices.resize(features), in.offsets.resize(features);
  std::vector<std::vector<std::vector<int32_t>>> by_key(tables);
  for (auto& keys : by_key) keys.resize(c.unique_keys);
  for (int t = 0; t < tables; ++t) {
    in.rows[t] = RandomFloats(rng, size_t(c.unique_keys) * c.shape.dim, 1);
  }
  for (int f = 0; f < features; ++f) in.offsets[f].push_back(0);
  for (int b = 0; b < c.batch_size; ++b) {
    for (int f = 0; f < features; ++f) {
      const int lookups = c.max_bag[f] < 0 ? 1 : (*rng)() % (c.max_bag[f] + 1);
      for (int l = 0; l < lookups; ++l) {
        const int32_t row_index = (*rng)() % c.unique_keys;
        in.row_indices[f].push_back(row_index);
        by_key[c.tables[f]][row_index].push_back(
            BagRow(b, f, features, c.shape.num_dense > 0 ? 1 : 0));
      }
      in.offsets[f].push_back(static_cast<int32_t>(in.row_indices[f].size()));
    }
  }
  in.batch.batch_size = c.batch_size;
  for (int t = 0; t < tables; ++t) {
    in.seg_offsets[t].push_back(0);
    for (const auto& bags : by_key[t]) {
      in.seg_bags[t].insert(in.seg_bags[t].end(), bags.begin(), bags.end());
      in.seg_offsets[t].push_back(static_cast<int32_t>(in.seg_bags[t].size()));
    }
    in.batch.tables.push_back(
        {FloatMatrix(in.rows[t].data(), c.unique_keys, c.shape.dim),
         {in.seg_offsets[t].data(), static_cast<int64_t>(in.seg_offsets[t].size())},
         {in.seg_bags[t].data(), static_cast<int64_t>(in.seg_bags[t].size())}});
  }
  for (int f = 0; f < features; ++f) {
    FeatureBatch feature{c.tables[f], c.poolings[f], {}, {}};
    feature.row_indices = {in.row_indices[f].data(),
                           static_cast<int64_t>(in.row_indices[f].size())};
    if (c.max_bag[f] >= 0) {
      feature.offsets = {in.offsets[f].data(), static_cast<int64_t>(in.offsets[f].size())};
    }
    in.batch.features.push_back(feature);
  }
  return in;
}

using Doubles = std::vector<double>;

Doubles MlpForward(const Doubles& arena, const std::vector<DenseTensor>& tensors,
                   const std::string& name, Doubles x, bool relu_after_last) {
  size_t layers = 0;
  for (const DenseTensor& t : tensors) layers += t.name.rfind(name, 0) == 0 ? 1 : 0;
  layers /= 2;
  size_t at = 0;
  while (tensors[at].name.rfind(name, 0) != 0) ++at;
  for (size_t i = 0; i < layers; ++i, at += 2) {
    const DenseTensor& w = tensors[at];
    const DenseTensor& bias = tensors[at + 1];
    Doubles y(bias.size);
    for (int64_t o = 0; o < bias.size; ++o) {
      y[o] = arena[bias.offset + o];
      for (size_t k = 0; k < x.size(); ++k) y[o] += x[k] * arena[w.offset + k * bias.size + o];
      if (i + 1 < layers || relu_after_last) y[o] = std::max(y[o], 0.0);
    }
    x = y;
  }
  return x;
}

// The model in plain double loops: the sum of the losses of a batch.
double ReferenceLoss(const Case& c, const std::vector<DenseTensor>& tensors, const Doubles& arena,
                     const std::vector<Doubles>& rows, const Inputs& in, Doubles* logits) {
  const int dim = c.shape.dim;
  double loss = 0;
  for (int b = 0; b < c.batch_size; ++b) {
    Doubles dense(in.dense.begin() + b * c.shape.num_dense,
                  in.dense.begin() + (b + 1) * c.shape.num_dense);
    std::vector<Doubles> vectors;
    if (c.shape.num_dense > 0) {
      vectors.push_back(MlpForward(arena, tensors, "bottom", dense, true));
    }
    for (int f = 0; f < c.shape.num_features; ++f) {
      Doubles pooled(dim);
      const int first = in.offsets[f][b], last = in.offsets[f][b + 1];
      for (int j = first; j < last; ++j) {
        for (int d = 0; d < dim; ++d)
          pooled[d] += rows[c.tables[f]][in.row_indices[f][j] * dim + d];
      }
      if (c.poolings[f] == PoolingMode::kMean && last > first) {
        for (double& x : pooled) x /= last - first;
      }
      vectors.push_back(pooled);
    }
    Doubles top = vectors[0];
    for (size_t i = 1; i < vectors.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        double dot = 0;
        for (int d = 0; d < dim; ++d) dot += vectors[i][d] * vectors[j][d];
        top.push_back(dot);
      }
    }
    const double x = MlpForward(arena, tensors, "top", top, false)[0];
    logits->push_back(x);
    loss += std::max(x, 0.0) - x * in.labels[b] + std::log1p(std::exp(-std::fabs(x)));
  }
  return loss;
}

void FillWeights(DlrmModel* model, std::mt19937_64* rng) {
  for (const DenseTensor& tensor : model->tensors()) {
    const std::vector<float> v = RandomFloats(rng, tensor.num_blocks() * kDenseBlockFloats, 0.5f);
    std::copy(v.begin(), v.end(), model->weights().data + tensor.offset);
  }
}

struct Gradients {
  std::vector<std::vector<float>> embeddings;  // [table][unique * dim]
  std::vector<Matrix> matrices;
};

Gradients MakeGradients(const Case& c, const Inputs& in) {
  Gradients g;
  for (const auto& rows : in.rows) g.embeddings.push_back(std::vector<float>(rows.size(), NAN));
  for (auto& e : g.embeddings) {
    g.matrices.push_back(FloatMatrix(e.data(), c.unique_keys, c.shape.dim));
  }
  return g;
}

Case SharedTables() {
  Case c;
  c.shape = {3, 4, 5, {7}, {6, 4}};
  c.batch_size = 9;
  c.tables = {0, 1, 0, 2};
  c.poolings = {PoolingMode::kSum, PoolingMode::kMean, PoolingMode::kMean, PoolingMode::kSum};
  c.max_bag = {3, 4, 2, -1};
  return c;
}

Case DimSixteen() {
  Case c = SharedTables();
  c.shape = {2, 11, 16, {9}, {12}};
  c.batch_size = 5;
  c.tables = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9};
  c.poolings.assign(11, PoolingMode::kSum);
  c.max_bag.assign(11, -1);
  c.max_bag[3] = 0;
  c.unique_keys = 3;
  return c;
}

Case DenseOnly() {
  Case c;
  c.shape = {4, 0, 3, {}, {5}};
  c.batch_size = 6;
  return c;
}

Case SparseOnly() {
  Case c = SharedTables();
  c.shape.num_dense = 0;
  c.shape.bottom_hidden = {};
  return c;
}

Case OneSparseFeature() {
  Case c;
  c.shape = {0, 1, 4, {}, {5}};
  c.batch_size = 6;
  c.tables = {0};
  c.poolings = {PoolingMode::kMean};
  c.max_bag = {3};
  return c;
}

Case OneOfAll() {
  Case c;
  c.shape = {1, 1, 1, {1}, {}};
  c.batch_size = 1;
  c.tables = {0};
  c.poolings = {PoolingMode::kSum};
  c.max_bag = {-1};
  c.unique_keys = 1;
  return c;
}

class DlrmGradientTest : public testing::TestWithParam<Case (*)()> {};

// Every gradient of the model against central differences of the reference in double.
TEST_P(DlrmGradientTest, AgreesWithFiniteDifferences) {
  std::mt19937_64 rng(TestSeed());
  const Case c = GetParam()();
  const std::unique_ptr<Device> device = MakeCpuDevice({2, CpuIsaLimit::kAuto});
  DlrmModel model(device.get(), c.shape, OptimizerConfig(), c.batch_size + 3);
  FillWeights(&model, &rng);
  const Inputs in = MakeInputs(c, &rng);
  Gradients g = MakeGradients(c, in);

  const Matrix logits = model.Forward(
      FloatMatrix(const_cast<float*>(in.dense.data()), c.batch_size, c.shape.num_dense), in.batch);
  model.BackwardToEmbeddings({in.labels.data(), c.batch_size}, {}, 1.0f / c.batch_size, g.matrices);
  model.BackwardDense();
  ASSERT_TRUE(device->Synchronize().ok());

  Doubles arena(model.weights().data, model.weights().data + model.weights().size);
  std::vector<Doubles> rows;
  for (const auto& r : in.rows) rows.emplace_back(r.begin(), r.end());
  Doubles reference_logits;
  const double loss = ReferenceLoss(c, model.tensors(), arena, rows, in, &reference_logits);
  EXPECT_NEAR(model.loss_sum()[0], loss, 1e-4 * c.batch_size);
  for (int b = 0; b < c.batch_size; ++b) EXPECT_NEAR(*logits.row(b), reference_logits[b], 1e-4);

  const auto difference = [&](double* parameter) {
    Doubles ignored;
    const double eps = 1e-6, kept = *parameter;
    *parameter = kept + eps;
    const double up = ReferenceLoss(c, model.tensors(), arena, rows, in, &ignored);
    *parameter = kept - eps;
    const double down = ReferenceLoss(c, model.tensors(), arena, rows, in, &ignored);
    *parameter = kept;
    return (up - down) / (2 * eps) / c.batch_size;
  };
  for (const DenseTensor& tensor : model.tensors()) {
    for (int64_t i = 0; i < tensor.size; ++i) {
      const double expected = difference(&arena[tensor.offset + i]);
      ASSERT_NEAR(model.gradients()[tensor.offset + i], expected, 1e-5 + 1e-4 * std::fabs(expected))
          << tensor.name << "[" << i << "]";
    }
    for (int64_t i = tensor.size; i < tensor.num_blocks() * kDenseBlockFloats; ++i) {
      ASSERT_EQ(model.gradients()[tensor.offset + i], 0) << tensor.name << " padding";
    }
  }
  for (size_t t = 0; t < rows.size(); ++t) {
    for (size_t i = 0; i < rows[t].size(); ++i) {
      const double expected = difference(&rows[t][i]);
      ASSERT_NEAR(g.embeddings[t][i], expected, 1e-5 + 1e-4 * std::fabs(expected))
          << "table " << t << " float " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DlrmGradientTest,
                         testing::Values(SharedTables, DimSixteen, DenseOnly, SparseOnly,
                                         OneSparseFeature, OneOfAll));

void UpdateDense(Device* device, const OptimizerConfig& optimizer, int step, DlrmModel* model) {
  device->DenseUpdate(optimizer, ScalarsForStep(optimizer, 0.05f, Step(step)),
                      model->gradients().AsConst(), model->weights(), model->state());
}

// Trains a few steps and returns every bit that training left behind.
std::vector<float> Train(int threads, CpuIsaLimit isa, OptimizerKind kind, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Case c = DimSixteen();
  c.shape = {13, 11, 16, {33}, {70, 20}};
  c.unique_keys = 40;
  const std::unique_ptr<Device> device = MakeCpuDevice({threads, isa});
  OptimizerConfig optimizer;
  optimizer.kind = kind;
  DlrmModel model(device.get(), c.shape, optimizer, 300);
  FillWeights(&model, &rng);
  std::vector<float> left;
  for (int step = 0; step < 3; ++step) {
    c.batch_size = step == 0 ? 257 : step == 1 ? 60 : 3;
    const Inputs in = MakeInputs(c, &rng);
    Gradients g = MakeGradients(c, in);
    model.Forward(FloatMatrix(const_cast<float*>(in.dense.data()), c.batch_size, c.shape.num_dense),
                  in.batch);
    model.BackwardToEmbeddings({in.labels.data(), c.batch_size}, {}, 1.0f / c.batch_size,
                               g.matrices);
    model.BackwardDense();
    UpdateDense(device.get(), optimizer, step, &model);
    for (const auto& e : g.embeddings) left.insert(left.end(), e.begin(), e.end());
    left.push_back(static_cast<float>(model.loss_sum()[0]));
  }
  left.insert(left.end(), model.weights().data, model.weights().data + model.weights().size);
  left.insert(left.end(), model.state().data, model.state().data + model.state().size);
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
  c.batch_size = 64;
  const std::unique_ptr<Device> device = MakeCpuDevice({2, CpuIsaLimit::kAuto});
  const OptimizerConfig optimizer;
  DlrmModel model(device.get(), c.shape, optimizer, c.batch_size);
  FillWeights(&model, &rng);
  const Inputs in = MakeInputs(c, &rng);
  Gradients g = MakeGradients(c, in);
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    model.Forward(FloatMatrix(const_cast<float*>(in.dense.data()), c.batch_size, c.shape.num_dense),
                  in.batch);
    model.BackwardToEmbeddings({in.labels.data(), c.batch_size}, {}, 1.0f / c.batch_size,
                               g.matrices);
    model.BackwardDense();
    UpdateDense(device.get(), optimizer, step, &model);
    last = model.loss_sum()[0];
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST(DlrmTest, TensorsStandInWholeBlocksInOrder) {
  const std::unique_ptr<Device> device = MakeCpuDevice({1, CpuIsaLimit::kAuto});
  const DlrmModel model(device.get(), {13, 26, 16, {512, 256, 64}, {512, 256}}, OptimizerConfig(),
                        8);
  ASSERT_EQ(model.tensors().size(), 14u);
  EXPECT_EQ(model.tensors()[0].name, "bottom.0.weight");
  EXPECT_EQ(model.tensors()[0].size, 13 * 512);
  EXPECT_EQ(model.tensors()[8].name, "top.0.weight");
  EXPECT_EQ(model.tensors()[8].size, 367 * 512);
  EXPECT_EQ(model.tensors()[13].name, "top.2.bias");
  int64_t offset = 0;
  for (const DenseTensor& tensor : model.tensors()) {
    EXPECT_EQ(tensor.offset, offset) << tensor.name;
    offset += (tensor.size + kDenseBlockFloats - 1) / kDenseBlockFloats * kDenseBlockFloats;
  }
}

}  // namespace
}  // namespace thermocline
