// What the layers of a model compute on sequences: on the steps of a batch's samples, which stand
// one after the other. Implementations: CpuStepOperations (cpu/cpu_steps.h), which is the
// specification, and StreamDevice's (cuda/stream_steps.cc), on an NVIDIA GPU. A layer that works at
// each step by itself needs none of these: its matrices have a row for each step.
//
// They follow the rules of layer_operations.h. Sums over the steps of a sample go one after the
// other, but for softmax, where the steps of a sample are its 16 lanes and a tree (step index mod
// 16). Sums over samples, which are gradients of parameters, go in chunks of kSampleChunk samples.
//
// How many steps there are changes from batch to batch, and stands in device memory alone. Matrices
// of steps may have more rows, which is how captured work serves batches of several sizes: in the
// rows beyond the last step inputs are not read, and outputs are 0. An output may be an input of
// its own shape (the same memory), but for attention.
#ifndef THERMOCLINE_KERNELS_STEP_OPERATIONS_H_
#define THERMOCLINE_KERNELS_STEP_OPERATIONS_H_

#include <cstdint>

#include "kernels/layer_operations.h"
#include "kernels/matrix.h"

namespace thermocline {

// The steps of a batch: sample b has steps offsets[b] .. offsets[b + 1], and there are
// offsets[batch] steps.
struct StepRanges {
  DeviceSpan<const int32_t> offsets;  // [batch + 1]
  DeviceSpan<const int32_t> samples;  // [steps or more] samples[t] is the sample of step t.
};

enum class StepPooling { kSum, kMean, kLast };

// "Steps" in a shape means the batch's steps or more.
class StepOperations {
 public:
  virtual ~StepOperations() = default;

  // y[t] = x[samples[t]]. Its backward pass is the kSum of the gradient of y.
  virtual void Repeat(const StepRanges& ranges,
                      Matrix x,       // [batch, width]
                      Matrix y) = 0;  // [steps, width]

  // One row for each sample: the sum of its steps' rows, their mean, or the last of them; zeros for
  // a sample without steps.
  virtual void Pool(const StepRanges& ranges, StepPooling pooling,
                    Matrix x,       // [steps, width]
                    Matrix y) = 0;  // [batch, width]
  virtual void PoolBackward(const StepRanges& ranges, StepPooling pooling,
                            Matrix y_gradient,       // [batch, width]
                            Matrix x_gradient) = 0;  // [steps, width]

  // The same with weights: the sum of weights[t] * x[t].
  virtual void PoolWeighted(const StepRanges& ranges,
                            Matrix weights,  // [steps, 1]
                            Matrix x,        // [steps, width]
                            Matrix y) = 0;   // [batch, width]
  // A gradient whose data is null is not computed.
  virtual void PoolWeightedBackward(const StepRanges& ranges, Matrix weights, Matrix x,
                                    Matrix y_gradient, Matrix weights_gradient,
                                    Matrix x_gradient) = 0;

  // What tells how a step is like its sample's query q: y[t] = [q, x[t], q - x[t], q * x[t]].
  virtual void Compare(const StepRanges& ranges,
                       Matrix queries,  // [batch, width]
                       Matrix x,        // [steps, width]
                       Matrix y) = 0;   // [steps, 4 * width]
  // The gradient of y has four parts [a, b, c, d]:
  //   query_gradients = sum over the sample's steps of ((a + x d) + c)
  //   x_gradient = (x_gradient + b) + q d + (0 - c), first term first
  // adds: what is in x_gradient before counts, which leaves rows beyond the last step as they are;
  // else it is overwritten. A gradient whose data is null is not computed. No output overlaps an
  // input.
  virtual void CompareBackward(const StepRanges& ranges, Matrix queries, Matrix x,
                               Matrix y_gradient, Matrix query_gradients, bool adds,
                               Matrix x_gradient) = 0;

  // Softmax over the steps of each sample, column by column: y = exp(x - most) times 1 / sum, where
  // `most` is the sample's greatest x; an exponent below -87 counts as -87.
  // without_last: each sample's last step has the share 0 and does not count.
  virtual void SoftmaxForward(const StepRanges& ranges, bool without_last,
                              Matrix x,       // [steps, width]
                              Matrix y) = 0;  // [steps, width]
  // x_gradient = y (y_gradient - sum over the sample's steps of y y_gradient)
  virtual void SoftmaxBackward(const StepRanges& ranges, Matrix y, Matrix y_gradient,
                               Matrix x_gradient) = 0;

  // y = x, but 0 in each sample's last step. It is its own backward pass, on gradients.
  virtual void ClearLast(const StepRanges& ranges, Matrix x, Matrix y) = 0;

  // LayerOperations::Dropout, for the units of steps: which are kept depends on the sample's place
  // in the global batch, and on how many steps of the sample come after the step.
  virtual void Dropout(const StepRanges& ranges, const DropoutMask& mask,
                       DeviceSpan<const SamplePlace> place,  // [1]
                       Matrix x, Matrix y) = 0;

  // Multi-head attention among the steps of each sample (Vaswani et al. 2017, section 3.2). Head h
  // works on columns h * width / heads and following; of its columns alone, for steps t and s of
  // one sample:
  //   score(t, s) = dot(q[t], k[s]) * (1 / sqrt(width / heads))
  //   e(t, s) = exp(score(t, s) - most(t)), most(t) the greatest of score(t, .)
  //   y[t] = (sum over s of e(t, s) v[s]) * (1 / sum over s of e(t, s))
  // Dot products over a head's columns, and sums over steps, are chains of fused multiply-adds, one
  // after the other; the sum of e is in 16 lanes, as softmax's. No output overlaps an input.
  // REQUIRES: width is a multiple of heads
  virtual void AttentionForward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k,
                                Matrix v,  // [steps, width]
                                Matrix y,  // [steps, width]
                                // [steps, 2 * heads]: most(t) of each head; 1 / sum of e of each
                                Matrix statistics) = 0;
  // Computes e again, from the statistics of the forward pass.
  virtual void AttentionBackward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k,
                                 Matrix v, Matrix y, Matrix statistics, Matrix y_gradient,
                                 Matrix q_gradient, Matrix k_gradient, Matrix v_gradient) = 0;

  // y[t] = x[t] + positions[min(steps of its sample behind t, count - 1)]: the last step of each
  // sample has position 0.
  virtual void AddPositions(const StepRanges& ranges,
                            DeviceSpan<const float> positions,  // [count, width]
                            Matrix x,                           // [steps, width]
                            Matrix y) = 0;                      // [steps, width]
  // Overwrites the gradients of the positions.
  virtual void PositionGradients(const StepRanges& ranges, Matrix y_gradient,
                                 DeviceSpan<float> gradients) = 0;  // [count, width]
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_STEP_OPERATIONS_H_
