// Random inputs of a model in host memory, and the gradient check that every model passes.
#ifndef THERMOCLINE_WORKER_MODEL_TESTING_RANDOM_BATCH_H_
#define THERMOCLINE_WORKER_MODEL_TESTING_RANDOM_BATCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "common/job/resolved_job.h"
#include "common/math/sparse_optimizer.h"
#include "common/model/model_spec.h"
#include "kernels/device.h"
#include "worker/model/dense_arena.h"
#include "worker/model/model.h"

namespace thermocline {

struct BatchShape {
  int32_t batch_size = 0;
  std::vector<int32_t> tables;        // of each feature
  std::vector<PoolingMode> poolings;  // of each feature
  // A feature has at most so many lookups for a sample; 0: none at all; -1: the one-lookup form.
  // All features of a sequence, which are read step by step, have the same number.
  std::vector<int32_t> max_bag;
  int32_t unique_keys = 5;  // of each table
};

// `batch` points to the other members.
struct RandomBatch {
  std::vector<float> numeric;
  std::vector<float> labels, weights;                       // [tasks, batch]; weights: or none
  std::vector<std::vector<float>> rows;                     // [table][unique * dim]
  std::vector<std::vector<int32_t>> row_indices, offsets;   // [feature]
  std::vector<std::vector<int32_t>> step_samples;           // [sequence]
  std::vector<std::vector<int32_t>> seg_offsets, seg_bags;  // [table]
  std::vector<std::vector<float>> gradients;                // as rows; not numbers at first
  std::vector<Matrix> gradient_matrices;                    // [table] the same
  SparseBatch batch;
};

RandomBatch MakeRandomBatch(const BatchShape& shape, const ModelSpec& spec,
                            const std::vector<VectorPlace>& places, std::mt19937_64* rng);

// A model with random dense parameters.
struct ModelUnderTest {
  ModelUnderTest(const ModelSpec& spec, const OptimizerConfig& optimizer, Device* device,
                 const BatchRoom& room, std::mt19937_64* rng);

  // A step without the updates.
  void Step(RandomBatch* batch);
  // The logits of each sample's tasks, without training.
  std::vector<float> Score(const RandomBatch& batch);
  // The sum of the tasks' losses times their weights, in the last step.
  double loss_sum() const;

  const ModelSpec spec;
  Device* const device;
  const OptimizerConfig optimizer;
  DenseArena arena;
  std::vector<double> loss_sums;  // [tasks]
  SamplePlace place;              // Where the next step stands.
  Model model;
};

// The sum of the losses of the batch, in double; appends its logits, those of a sample's tasks one
// after the other. arena: as the model's.
using ReferenceLoss = std::function<double(const std::vector<double>& arena,
                                           const std::vector<std::vector<double>>& rows,
                                           std::vector<double>* logits)>;

// Compares logits, loss and every gradient of a step with the reference and with its central
// differences.
void ExpectGradientsOf(const ReferenceLoss& reference, ModelUnderTest* model, RandomBatch* batch);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_TESTING_RANDOM_BATCH_H_
