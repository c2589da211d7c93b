// The operations of kernels/device.h, kernels/layer_operations.h and kernels/step_operations.h,
// which have their contracts, as launches of kernels. Each returns what CUDA says of its launches.
// Operands are device memory; spans of descriptors are read before the call returns.
#ifndef THERMOCLINE_KERNELS_CUDA_OPERATIONS_H_
#define THERMOCLINE_KERNELS_CUDA_OPERATIONS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/math/sparse_optimizer.h"
#include "kernels/cuda/launch.h"
#include "kernels/layer_operations.h"
#include "kernels/matrix.h"
#include "kernels/step_operations.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

// embedding.cu
cudaError_t LaunchPoolForward(absl::Span<const PoolInput> features, int32_t dim,
                              int32_t first_vector, Matrix z, cudaStream_t stream);
cudaError_t LaunchPoolBackward(absl::Span<const PoolInput> features, int32_t dim,
                               int32_t first_vector, Matrix z_gradient, cudaStream_t stream);

// segment_sum.cu. Scratch: partial sums of the segments that have several chunks.
int64_t SegmentSumScratchFloats(absl::Span<const SegmentGroup> groups, int32_t dim);
cudaError_t LaunchSegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups,
                             float* scratch, cudaStream_t stream);

// rows.cu
cudaError_t LaunchSparseUpdate(absl::Span<const RowUpdateGroup> groups, cudaStream_t stream);
cudaError_t LaunchGatherRows(absl::Span<const RowCopy> copies, cudaStream_t stream);
cudaError_t LaunchScatterRows(absl::Span<const RowCopy> copies, cudaStream_t stream);
// What the gradients of a dense update are multiplied with, so that their norm over all rows is at
// most `norm`. squares: [num_rows] scratch; scale: [1].
cudaError_t LaunchGlobalClipScale(const UpdateScalars& scalars, float norm, int64_t num_rows,
                                  int32_t row_floats, const float* gradients, float* squares,
                                  float* scale, cudaStream_t stream);
// row_floats: floats of a row of weights or gradients; state_floats: floats of its state. scale:
// multiplies gradients after clip_value; null: 1.
cudaError_t LaunchDenseUpdate(const UpdateScalars& scalars, int64_t num_rows, int32_t row_floats,
                              int32_t state_floats, const float* gradients, const float* scale,
                              float* weights, float* state, cudaStream_t stream);

// interaction.cu
cudaError_t LaunchInteractionForward(Matrix z, int32_t vectors, Matrix output, cudaStream_t stream);
cudaError_t LaunchInteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient,
                                      Matrix z_gradient, cudaStream_t stream);

// loss.cu. Scratch: one partial sum a block.
int64_t BceScratchDoubles(int64_t batch);
cudaError_t LaunchBceWithLogits(Matrix logits, const float* labels,
                                const float* weights,  // null: each is 1
                                float scale, Matrix logits_gradient, double* loss_sum,
                                double* scratch, cudaStream_t stream);
cudaError_t LaunchFindNonFinite(DeviceSpan<const float> values, int64_t* index,
                                cudaStream_t stream);

// mlp.cu. Column sums go in chunks of rows that depend on the number of rows alone.
struct ColumnSums {
  float* sums = nullptr;            // [cols]
  const float* partials = nullptr;  // [MaskedSumChunks(rows), cols]
  int32_t chunks = 0;
  int32_t cols = 0;
};
int32_t MaskedSumChunks(int64_t rows);
inline constexpr int32_t kMaxMaskedSumChunks = 128;

// Keeps gradient[r, c] where activation[r, c] > 0 (or activation.data is null), sets it to 0
// elsewhere, and writes the column sums of each chunk of rows to partials [chunks, cols], unless
// that is null.
cudaError_t LaunchMaskAndSum(Matrix activation, Matrix gradient, float* partials,
                             cudaStream_t stream);
// Adds the partials of every item, in order.
cudaError_t LaunchAddPartials(absl::Span<const ColumnSums> items, cudaStream_t stream);

// layers.cu. Scratch: SumOverSamplesScratchFloats(samples, floats that are summed over them).
int64_t SumOverSamplesScratchFloats(int64_t samples, int64_t floats);
cudaError_t LaunchCopy(Matrix from, Matrix to, cudaStream_t stream);
cudaError_t LaunchAdd(Matrix a, Matrix b, Matrix sum, cudaStream_t stream);
cudaError_t LaunchMultiplyAdd(float scale, Matrix a, Matrix b, Matrix c, Matrix output,
                              cudaStream_t stream);
cudaError_t LaunchScaleRows(Matrix scale, Matrix x, Matrix output, cudaStream_t stream);
cudaError_t LaunchRowDot(Matrix a, Matrix b, Matrix output, cudaStream_t stream);
cudaError_t LaunchProductLogitForward(Matrix a, Matrix b, Matrix output, cudaStream_t stream);
cudaError_t LaunchProductLogitBackward(Matrix a, Matrix b, Matrix output_gradient,
                                       Matrix a_gradient, cudaStream_t stream);
cudaError_t LaunchActivationForward(ActivationKind kind, const float* slopes, Matrix x, Matrix y,
                                    cudaStream_t stream);
// scratch: for kPrelu, of x.cols floats
cudaError_t LaunchActivationBackward(ActivationKind kind, const float* slopes, Matrix x, Matrix y,
                                     Matrix y_gradient, Matrix x_gradient, float* slope_gradients,
                                     float* scratch, cudaStream_t stream);
cudaError_t LaunchLayerNormForward(Matrix x, const float* gain, const float* bias, float epsilon,
                                   Matrix y, Matrix moments, cudaStream_t stream);
// scratch: of 2 * x.cols floats
cudaError_t LaunchLayerNormBackward(Matrix x, Matrix moments, const float* gain, Matrix y_gradient,
                                    Matrix x_gradient, float* gain_gradient, float* bias_gradient,
                                    float* scratch, cudaStream_t stream);
cudaError_t LaunchDropout(const DropoutMask& mask, const SamplePlace* place, Matrix x, Matrix y,
                          cudaStream_t stream);
cudaError_t LaunchSoftmaxForward(Matrix x, Matrix y, cudaStream_t stream);
cudaError_t LaunchSoftmaxBackward(Matrix y, Matrix y_gradient, Matrix x_gradient,
                                  cudaStream_t stream);
cudaError_t LaunchNormalizeForward(Matrix x, int32_t width, float epsilon, Matrix y, Matrix lengths,
                                   cudaStream_t stream);
cudaError_t LaunchNormalizeBackward(Matrix y, int32_t width, float epsilon, Matrix lengths,
                                    Matrix y_gradient, Matrix x_gradient, cudaStream_t stream);
cudaError_t LaunchSumVectors(Matrix x, float scale, Matrix sum, cudaStream_t stream);
cudaError_t LaunchRepeatVector(Matrix vector, float scale, Matrix x, cudaStream_t stream);
cudaError_t LaunchMixForward(Matrix shares, Matrix x, Matrix y, cudaStream_t stream);
cudaError_t LaunchMixBackward(Matrix shares, Matrix x, Matrix y_gradient, Matrix shares_gradient,
                              Matrix x_gradient, cudaStream_t stream);
cudaError_t LaunchFmForward(Matrix x, int32_t width, Matrix sums, Matrix output,
                            cudaStream_t stream);
cudaError_t LaunchFmBackward(Matrix x, Matrix sums, Matrix output_gradient, Matrix x_gradient,
                             cudaStream_t stream);
cudaError_t LaunchEmbedForward(Matrix x, const float* vectors, Matrix y, cudaStream_t stream);
// scratch: of y_gradient.cols floats
cudaError_t LaunchEmbedBackward(Matrix x, const float* vectors, Matrix y_gradient,
                                Matrix x_gradient, float* vector_gradients, float* scratch,
                                cudaStream_t stream);

// steps.cu
cudaError_t LaunchRepeat(const StepRanges& ranges, Matrix x, Matrix y, cudaStream_t stream);
cudaError_t LaunchStepPool(const StepRanges& ranges, StepPooling pooling, Matrix x, Matrix y,
                           cudaStream_t stream);
cudaError_t LaunchStepPoolBackward(const StepRanges& ranges, StepPooling pooling, Matrix y_gradient,
                                   Matrix x_gradient, cudaStream_t stream);
cudaError_t LaunchPoolWeighted(const StepRanges& ranges, Matrix weights, Matrix x, Matrix y,
                               cudaStream_t stream);
cudaError_t LaunchPoolWeightedBackward(const StepRanges& ranges, Matrix weights, Matrix x,
                                       Matrix y_gradient, Matrix weights_gradient,
                                       Matrix x_gradient, cudaStream_t stream);
cudaError_t LaunchCompare(const StepRanges& ranges, Matrix queries, Matrix x, Matrix y,
                          cudaStream_t stream);
cudaError_t LaunchCompareBackward(const StepRanges& ranges, Matrix queries, Matrix x,
                                  Matrix y_gradient, Matrix query_gradients, bool adds,
                                  Matrix x_gradient, cudaStream_t stream);
cudaError_t LaunchStepSoftmaxForward(const StepRanges& ranges, bool without_last, Matrix x,
                                     Matrix y, cudaStream_t stream);
cudaError_t LaunchStepSoftmaxBackward(const StepRanges& ranges, Matrix y, Matrix y_gradient,
                                      Matrix x_gradient, cudaStream_t stream);
cudaError_t LaunchClearLast(const StepRanges& ranges, Matrix x, Matrix y, cudaStream_t stream);
cudaError_t LaunchStepDropout(const StepRanges& ranges, const DropoutMask& mask,
                              const SamplePlace* place, Matrix x, Matrix y, cudaStream_t stream);
cudaError_t LaunchAttentionForward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k,
                                   Matrix v, Matrix y, Matrix statistics, cudaStream_t stream);
cudaError_t LaunchAttentionBackward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k,
                                    Matrix v, Matrix y, Matrix statistics, Matrix y_gradient,
                                    Matrix q_gradient, Matrix k_gradient, Matrix v_gradient,
                                    cudaStream_t stream);
cudaError_t LaunchAddPositions(const StepRanges& ranges, DeviceSpan<const float> positions,
                               Matrix x, Matrix y, cudaStream_t stream);
// scratch: of gradients.size floats
cudaError_t LaunchPositionGradients(const StepRanges& ranges, Matrix y_gradient,
                                    DeviceSpan<float> gradients, float* scratch,
                                    cudaStream_t stream);

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_OPERATIONS_H_
