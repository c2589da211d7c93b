// One training step of DLRM in the shape of its Criteo Kaggle example, as buffers on a device and
// operations in their order, and the operations of other models' layers: what kernels_benchmark
// times.
#ifndef THERMOCLINE_KERNELS_STEP_BENCHMARK_H_
#define THERMOCLINE_KERNELS_STEP_BENCHMARK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace thermocline {

// A matrix product [m, k] x [k, n].
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
};

struct BenchmarkOperation {
  std::string name;
  double bytes = 0;                    // What one batch must move; 0: memory is not its limit.
  std::vector<ProductShape> products;  // One batch's; empty: arithmetic is not its limit.
  std::function<void()> run;

  double flops() const;
};

class StepBenchmark {
 public:
  // `device` outlives this.
  StepBenchmark(Device* device, int32_t batch, MlpPrecision precision);

  // The operations of a step, and the operations of a cache of rows on the device.
  std::vector<BenchmarkOperation> StepOperations();
  std::vector<BenchmarkOperation> CacheOperations();
  // The operations of layers, on the concatenated input of the Kaggle shape (429 columns) and on
  // the hidden layers of 400 that DeepFM has there.
  std::vector<BenchmarkOperation> OperationsOfLayers();
  // The operations of steps, on sequences of 1 to 59 steps of 64 columns.
  std::vector<BenchmarkOperation> OperationsOfSteps();
  double lookups_per_key() const;
  // The loss of the last batch, divided by its samples.
  double Loss();

 private:
  struct MlpLayout {
    MlpConfig config;
    std::vector<ProductShape> forward, backward_data, backward_parameters;
  };
  // A batch of lookups of one feature, on the device.
  struct Feature {
    Matrix rows, sums;
    DeviceSpan<const int32_t> row_indices, segment_offsets, segment_lookups, targets;
  };

  MlpLayout LayOut(std::vector<int32_t> widths, bool top, MlpPrecision precision);
  void AddFeature(int64_t cardinality, int32_t feature);
  template <typename T>
  T* Put(const std::vector<T>& values);
  float* Random(int64_t floats, float scale);
  Matrix RandomMatrix(int32_t columns) { return RandomMatrix(batch_, columns); }
  Matrix RandomMatrix(int32_t rows, int32_t columns);

  std::vector<BenchmarkOperation> ForwardOperations();
  std::vector<BenchmarkOperation> BackwardOperations();
  std::vector<BenchmarkOperation> OperationsOfMlpLayers();
  std::vector<BenchmarkOperation> OperationsOfVectors();
  std::vector<BenchmarkOperation> OperationsOfAttention(const StepRanges& ranges, int32_t steps,
                                                        double mean_length);

  Device* const device_;
  const int32_t batch_;
  const OptimizerConfig optimizer_;
  const UpdateScalars scalars_;
  std::mt19937_64 rng_{1};
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  int64_t arena_floats_ = 0;
  MlpLayout bottom_layout_, top_layout_;
  std::unique_ptr<Mlp> bottom_, top_;
  DeviceSpan<float> weights_, gradients_, state_;  // the arenas
  Matrix dense_, z_, z_gradient_, top_input_, top_input_gradient_, logits_, logits_gradient_;
  DeviceSpan<const float> labels_;
  DeviceSpan<double> loss_;
  Matrix slab_;  // [slab rows, dim + state_floats]
  int64_t unique_ = 0;
  std::vector<PoolInput> pool_;
  std::vector<SegmentGroup> segments_;
  std::vector<RowUpdateGroup> updates_;
  std::vector<RowCopy> copies_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_STEP_BENCHMARK_H_
