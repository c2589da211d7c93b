#include "worker/model/testing/random_batch.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

std::vector<DenseTable> TablesOf(const ModelSpec& spec, const OptimizerConfig& optimizer) {
  std::vector<DenseTable> tables;
  for (const DenseTensor& tensor : spec.tensors) {
    DenseTable table;
    table.layout.name = tensor.name;
    table.layout.dim = kDenseBlockFloats;
    table.layout.optimizer = optimizer;
    table.rows = tensor.rows();
    table.cols = tensor.cols();
    tables.push_back(table);
  }
  return tables;
}

// The weights of a row that the feature looks up: its vector, its first-order weight, or both.
int RowWeights(const ModelSpec& spec, size_t feature) {
  const EmbeddedFeature& of = spec.inputs.features[feature];
  const auto first_order = spec.first_order.find(of.table);
  if (first_order == spec.first_order.end()) return of.dim;
  return first_order->second.has_vectors ? of.dim + 1 : 1;
}

template <typename T>
DeviceSpan<const T> SpanOf(const std::vector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

// Points batch->batch to the lookups that batch has.
void Describe(const BatchShape& shape, const ModelInputs& inputs, const std::vector<int>& dims,
              RandomBatch* batch) {
  batch->batch.batch_size = shape.batch_size;
  for (size_t t = 0; t < batch->rows.size(); ++t) {
    TableBatch table;
    table.rows = FloatMatrix(batch->rows[t].data(), shape.unique_keys, dims[t]);
    table.segment_offsets = SpanOf(batch->seg_offsets[t]);
    table.segment_bags = SpanOf(batch->seg_bags[t]);
    batch->batch.tables.push_back(table);
    batch->gradients.push_back(std::vector<float>(batch->rows[t].size(), NAN));
    batch->gradient_matrices.push_back(
        FloatMatrix(batch->gradients[t].data(), shape.unique_keys, dims[t]));
  }
  for (size_t f = 0; f < shape.tables.size(); ++f) {
    FeatureBatch feature;
    feature.table = shape.tables[f];
    feature.pooling = shape.poolings[f];
    feature.row_indices = SpanOf(batch->row_indices[f]);
    const bool is_by_step = inputs.features[f].sequence != kSamples;
    if (shape.max_bag[f] >= 0 && !is_by_step) feature.offsets = SpanOf(batch->offsets[f]);
    batch->batch.features.push_back(feature);
  }
  batch->step_samples.resize(inputs.sequences.size());
  for (size_t s = 0; s < inputs.sequences.size(); ++s) {
    const std::vector<int32_t>& offsets = batch->offsets[inputs.sequences[s].first_feature];
    std::vector<int32_t>& samples = batch->step_samples[s];
    for (int b = 0; b < shape.batch_size; ++b) samples.resize(offsets[b + 1], b);
    batch->batch.sequences.push_back({offsets.back(), SpanOf(offsets), SpanOf(samples)});
  }
}

}  // namespace

RandomBatch MakeRandomBatch(const BatchShape& shape, const ModelSpec& spec,
                            const std::vector<VectorPlace>& places, std::mt19937_64* rng) {
  RandomBatch batch;
  batch.numeric = RandomFloats(rng, size_t(shape.batch_size) * spec.inputs.numeric, 1);
  const size_t tasks = spec.tasks.size();
  for (size_t i = 0; i < tasks * shape.batch_size; ++i) {
    batch.labels.push_back((*rng)() % 2);
    if (tasks > 1) batch.weights.push_back(0.5f * ((*rng)() % 3));
  }
  const size_t features = shape.tables.size();
  size_t tables = 0;
  for (int t : shape.tables) tables = std::max(tables, size_t(t) + 1);
  std::vector<int> dims(tables);
  for (size_t f = 0; f < features; ++f) dims[shape.tables[f]] = RowWeights(spec, f);
  batch.seg_offsets.resize(tables), batch.seg_bags.resize(tables);
  batch.row_indices.resize(features), batch.offsets.resize(features);
  std::vector<std::vector<std::vector<int32_t>>> by_key(tables);
  for (auto& keys : by_key) keys.resize(shape.unique_keys);
  for (size_t t = 0; t < tables; ++t) {
    batch.rows.push_back(RandomFloats(rng, size_t(shape.unique_keys) * dims[t], 1));
  }
  for (size_t f = 0; f < features; ++f) batch.offsets[f].push_back(0);
  for (int b = 0; b < shape.batch_size; ++b) {
    int lookups = 0;
    for (size_t f = 0; f < features; ++f) {
      const int sequence = spec.inputs.features[f].sequence;
      const bool begins = sequence == kSamples ||
                          spec.inputs.sequences[sequence].first_feature == static_cast<int>(f);
      if (begins) lookups = shape.max_bag[f] < 0 ? 1 : (*rng)() % (shape.max_bag[f] + 1);
      for (int l = 0; l < lookups; ++l) {
        batch.row_indices[f].push_back((*rng)() % shape.unique_keys);
      }
      batch.offsets[f].push_back(static_cast<int32_t>(batch.row_indices[f].size()));
    }
  }
  const auto lookups_of = [&](int32_t f) { return static_cast<int64_t>(batch.offsets[f].back()); };
  for (int b = 0; b < shape.batch_size; ++b) {
    for (size_t f = 0; f < features; ++f) {
      const int64_t first = FirstRowOf(places, static_cast<int32_t>(f), lookups_of);
      for (int32_t i = batch.offsets[f][b]; i < batch.offsets[f][b + 1]; ++i) {
        const int64_t bag = places[f].is_by_step ? i : b;
        by_key[shape.tables[f]][batch.row_indices[f][i]].push_back(
            static_cast<int32_t>(first + bag * places[f].stride));
      }
    }
  }
  for (size_t t = 0; t < tables; ++t) {
    batch.seg_offsets[t].push_back(0);
    for (const auto& bags : by_key[t]) {
      batch.seg_bags[t].insert(batch.seg_bags[t].end(), bags.begin(), bags.end());
      batch.seg_offsets[t].push_back(static_cast<int32_t>(batch.seg_bags[t].size()));
    }
  }
  Describe(shape, spec.inputs, dims, &batch);
  return batch;
}

ModelUnderTest::ModelUnderTest(const ModelSpec& spec, const OptimizerConfig& optimizer,
                               Device* device, const BatchRoom& room, std::mt19937_64* rng)
    : spec(spec),
      device(device),
      optimizer(optimizer),
      arena(device, TablesOf(spec, optimizer)),
      loss_sums(spec.tasks.size()),
      model(spec,
            {device, &arena, room, {loss_sums.data(), static_cast<int64_t>(loss_sums.size())}}) {
  const std::vector<float> weights = RandomFloats(rng, arena.weights().size, 0.5f);
  std::copy(weights.begin(), weights.end(), arena.weights().data);
}

void ModelUnderTest::Step(RandomBatch* batch) {
  const int32_t size = batch->batch.batch_size;
  model.Forward(FloatMatrix(batch->numeric.data(), size, spec.inputs.numeric), batch->batch,
                {&place, 1});
  model.BackwardToRows({SpanOf(batch->labels), SpanOf(batch->weights), 1.0f / size},
                       batch->gradient_matrices);
  model.BackwardDense();
  EXPECT_TRUE(device->Synchronize().ok());
}

std::vector<float> ModelUnderTest::Score(const RandomBatch& batch) {
  const int32_t size = batch.batch.batch_size;
  model.Forward(FloatMatrix(const_cast<float*>(batch.numeric.data()), size, spec.inputs.numeric),
                batch.batch);
  EXPECT_TRUE(device->Synchronize().ok());
  std::vector<float> scores;
  for (int32_t b = 0; b < size; ++b) {
    for (size_t t = 0; t < spec.tasks.size(); ++t) {
      scores.push_back(*model.Logits(static_cast<int>(t)).row(b));
    }
  }
  return scores;
}

double ModelUnderTest::loss_sum() const {
  double sum = 0;
  for (size_t t = 0; t < spec.tasks.size(); ++t) sum += spec.tasks[t].weight * loss_sums[t];
  return sum;
}

void ExpectGradientsOf(const ReferenceLoss& reference, ModelUnderTest* model, RandomBatch* batch) {
  using Doubles = std::vector<double>;
  const int32_t size = batch->batch.batch_size;
  const int tasks = static_cast<int>(model->spec.tasks.size());
  model->Step(batch);
  const DeviceSpan<float> weights = model->arena.weights();
  Doubles arena(weights.data, weights.data + weights.size);
  std::vector<Doubles> rows;
  for (const auto& r : batch->rows) rows.emplace_back(r.begin(), r.end());
  Doubles reference_logits;
  const double loss = reference(arena, rows, &reference_logits);
  EXPECT_NEAR(model->loss_sum(), loss, 1e-4 * size);
  for (int i = 0; i < size * tasks; ++i) {
    EXPECT_NEAR(*model->model.Logits(i % tasks).row(i / tasks), reference_logits[i], 1e-4)
        << "sample " << i / tasks << ", task " << i % tasks;
  }

  const auto difference = [&](double* parameter) {
    Doubles ignored;
    const double eps = 1e-6, kept = *parameter;
    *parameter = kept + eps;
    const double up = reference(arena, rows, &ignored);
    *parameter = kept - eps;
    const double down = reference(arena, rows, &ignored);
    *parameter = kept;
    return (up - down) / (2 * eps) / size;
  };
  for (const DenseTensor& tensor : model->spec.tensors) {
    const int64_t offset = model->arena.OffsetOf(tensor);
    const int64_t floats = int64_t{tensor.rows()} * tensor.cols();
    for (int64_t i = 0; i < floats; ++i) {
      const double expected = difference(&arena[offset + i]);
      ASSERT_NEAR(model->arena.gradients()[offset + i], expected, 1e-5 + 1e-4 * std::fabs(expected))
          << tensor.name << "[" << i << "]";
    }
    for (int64_t i = floats; i % kDenseBlockFloats != 0; ++i) {
      ASSERT_EQ(model->arena.gradients()[offset + i], 0) << tensor.name << " padding";
    }
  }
  for (size_t t = 0; t < rows.size(); ++t) {
    for (size_t i = 0; i < rows[t].size(); ++i) {
      const double expected = difference(&rows[t][i]);
      ASSERT_NEAR(batch->gradients[t][i], expected, 1e-5 + 1e-4 * std::fabs(expected))
          << "table " << t << " float " << i;
    }
  }
}

}  // namespace thermocline
