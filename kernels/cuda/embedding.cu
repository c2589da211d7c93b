// Pooling of embedding rows. One thread holds Pack<kWidth> columns of one bag and adds the bag's
// rows in order: the order of CpuPoolForward, so the same bits.
#include <vector>

#include "kernels/cuda/operations.h"
#include "kernels/cuda/slice.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

struct PooledFeature {
  PoolInput input;
  int32_t column = 0;  // first in z
};

struct Bag {
  int32_t begin, end;
};

__device__ Bag BagOf(const PoolInput& input, int32_t sample) {
  if (input.offsets.size == 0) return {sample, sample + 1};
  return {input.offsets.data[sample], input.offsets.data[sample + 1]};
}

// threads of a feature: [batch, dim / kWidth]
template <int kWidth>
__global__ void PoolForwardKernel(GRID_CONSTANT(Slice<PooledFeature>) slice, int32_t dim,
                                  Matrix z) {  // [batch, ...]
  const int item = ItemOfBlock(slice);
  const PooledFeature& feature = slice.items[item];
  const int64_t thread = ThreadOfItem(slice, item);
  const int32_t packs = dim / kWidth;
  const int32_t sample = static_cast<int32_t>(thread / packs);
  if (sample >= z.rows) return;
  const int32_t column = static_cast<int32_t>(thread % packs) * kWidth;
  const int32_t* const row_indices = feature.input.row_indices.data;
  const Bag bag = BagOf(feature.input, sample);
  Pack<kWidth> sum = {};
  const auto term = [&](int32_t j) {
    return LoadTerm<kWidth>(RowOf(feature.input.rows, row_indices[j]) + column,
                            feature.input.weights, j);
  };
  if (bag.begin < bag.end) sum = term(bag.begin);
  UNROLL(4)
  for (int32_t j = bag.begin + 1; j < bag.end; ++j) sum.Add(term(j));
  if (feature.input.mode == PoolingMode::kMean && bag.end - bag.begin > 1) {
    sum.Scale(1.0f / static_cast<float>(bag.end - bag.begin));
  }
  sum.Store(RowOf(z, sample) + feature.column + column);
}

// threads of a feature: [batch, dim]
__global__ void PoolBackwardKernel(GRID_CONSTANT(Slice<PooledFeature>) slice, int32_t dim,
                                   Matrix z_gradient) {  // [batch, ...]
  const int item = ItemOfBlock(slice);
  const PooledFeature& feature = slice.items[item];
  const int64_t thread = ThreadOfItem(slice, item);
  const int32_t sample = static_cast<int32_t>(thread / dim);
  if (sample >= z_gradient.rows) return;
  const Bag bag = BagOf(feature.input, sample);
  const int32_t length = bag.end - bag.begin;
  if (length < 2) return;
  RowOf(z_gradient, sample)[feature.column + thread % dim] *= 1.0f / static_cast<float>(length);
}

template <int kWidth>
void LaunchForwardOfWidth(absl::Span<const PooledFeature> features, int32_t dim, Matrix z,
                          cudaStream_t stream) {
  const int64_t blocks = CeilDiv(int64_t{z.rows} * (dim / kWidth), kBlockThreads);
  const auto kernel = PoolForwardKernel<kWidth>;
  ForEachSlice(
      features, [blocks](const PooledFeature&) { return blocks; },
      [&](const Slice<PooledFeature>& slice) {
        LAUNCH(kernel, slice.num_blocks(), kBlockThreads, stream, slice, dim, z);
      });
}

}  // namespace

cudaError_t LaunchPoolForward(absl::Span<const PoolInput> features, int32_t dim,
                              int32_t first_vector, Matrix z, cudaStream_t stream) {
  std::vector<PooledFeature> pooled;
  bool packed = dim % 4 == 0 && RowsArePacked(z);
  for (size_t f = 0; f < features.size(); ++f) {
    pooled.push_back({features[f], (first_vector + static_cast<int32_t>(f)) * dim});
    packed = packed && RowsArePacked(features[f].rows);
  }
  if (packed) {
    LaunchForwardOfWidth<4>(pooled, dim, z, stream);
  } else {
    LaunchForwardOfWidth<1>(pooled, dim, z, stream);
  }
  return cudaGetLastError();
}

cudaError_t LaunchPoolBackward(absl::Span<const PoolInput> features, int32_t dim,
                               int32_t first_vector, Matrix z_gradient, cudaStream_t stream) {
  std::vector<PooledFeature> divided;
  for (size_t f = 0; f < features.size(); ++f) {
    if (features[f].mode != PoolingMode::kMean || features[f].offsets.empty()) continue;
    divided.push_back({features[f], (first_vector + static_cast<int32_t>(f)) * dim});
  }
  const int64_t blocks = CeilDiv(int64_t{z_gradient.rows} * dim, kBlockThreads);
  ForEachSlice(
      absl::MakeConstSpan(divided), [blocks](const PooledFeature&) { return blocks; },
      [&](const Slice<PooledFeature>& slice) {
        LAUNCH(PoolBackwardKernel, slice.num_blocks(), kBlockThreads, stream, slice, dim,
               z_gradient);
      });
  return cudaGetLastError();
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
