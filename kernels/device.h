// One compute device: its memory and the composite batch operations that a training step is made
// of. Implementation: CpuDevice (cpu/cpu_device.h), which is the specification of every operation.
//
// Operations run in the order they are called. They may return before the device has finished; data
// may be read on the host after Synchronize(), which also reports what went wrong. None allocates
// and none waits for the device. Results are bit-identical from run to run and for any number of
// threads: sums have one canonical order, fixed by the shapes.
//
// Canonical sums: a sum over lookups goes in chunks of 256 in sample order, each summed in order,
// partials added in order. A dot product of embeddings has 16 lanes (lane = index mod 16), then a
// tree.
//
// Not thread-safe: one thread calls a device's operations.
#ifndef THERMOCLINE_KERNELS_DEVICE_H_
#define THERMOCLINE_KERNELS_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/sparse_optimizer.h"
#include "kernels/matrix.h"

namespace thermocline {

enum class PoolingMode { kSum, kMean };

// Lookups in one chunk of a canonical sum.
inline constexpr int kSegmentChunk = 256;

// Device memory, zero at first; freed with the object.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual void* data() = 0;
  float* floats() { return static_cast<float*>(data()); }
};

// One feature's lookups and the rows they read.
// REQUIRES: offsets[0] == 0, nondecreasing; 0 <= slots[j] < rows.rows
struct PoolInput {
  PoolingMode mode = PoolingMode::kSum;
  Matrix rows;                        // [num_rows, dim] float32
  DeviceSpan<const int32_t> slots;    // [lookups]
  DeviceSpan<const int32_t> offsets;  // [batch + 1]; empty: every bag is one lookup
};

// One table's lookups, grouped by unique key.
struct SegmentGroup {
  DeviceSpan<const int32_t> lookups;  // [lookups] rows of the gradients
  DeviceSpan<const int32_t> offsets;  // [segments + 1]
  Matrix sums;                        // [segments, dim] float32
};

struct MlpConfig {
  std::vector<int32_t> widths;  // [input, layer 0, layer 1, ...], all positive
  bool relu_after_last = false;
  bool input_gradient = false;  // Whether BackwardData writes the gradient of the input.
  int32_t max_batch = 0;
  // Where the parameters of layer i stand in the flat parameter and gradient arenas, in floats.
  std::vector<int64_t> weight_offsets;  // [layers] of [in, out] row-major, no padding
  std::vector<int64_t> bias_offsets;    // [layers] of [out]
};

// A stack of fully connected layers, y = relu(x W + b), with its activations of one batch.
// The calls of one batch come in the order Forward, BackwardData, BackwardParameters; arguments
// named alike are the same in all of them. Forward alone is inference.
class Mlp {
 public:
  virtual ~Mlp() = default;

  virtual void Forward(DeviceSpan<const float> parameters,  // the arena
                       Matrix input,                        // [batch, widths[0]] float32
                       Matrix output) = 0;                  // [batch, widths.back()] float32

  // Overwrites `output_gradient` (it becomes the gradient before the last ReLU).
  virtual void BackwardData(DeviceSpan<const float> parameters,
                            Matrix output,               // as Forward wrote it
                            Matrix output_gradient,      // [batch, widths.back()]
                            Matrix input_gradient) = 0;  // [batch, widths[0]], if configured

  // Overwrites the gradients of this MLP's parameters; touches no other part of the arena.
  virtual void BackwardParameters(Matrix input,
                                  Matrix output_gradient,  // as BackwardData left it
                                  DeviceSpan<float> gradients) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::unique_ptr<DeviceBuffer> Allocate(size_t bytes) = 0;
  virtual void CopyToDevice(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t bytes) = 0;

  // Waits for all operations called so far. The first error any of them met, once.
  virtual absl::Status Synchronize() = 0;

  virtual std::unique_ptr<Mlp> CreateMlp(const MlpConfig& config) = 0;

  // For every feature f, pooled per sample into z[:, (first_vector + f) * dim ...]:
  //   sum (or mean) of rows[slots[j]], j in [offsets[b], offsets[b + 1]), in order.
  // An empty bag gives zeros.
  virtual void PoolForward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                           Matrix z) = 0;  // [batch, (first_vector + features) * dim] float32

  // Turns the gradient of every bag into that of each of its lookups, in place: divided by the
  // bag's length for kMean, unchanged for kSum.
  virtual void PoolBackward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                            Matrix z_gradient) = 0;  // like z

  // For every group: sums[u] = canonical sum of gradients[lookups[j]], j in [offsets[u], offsets[u
  // + 1]).
  virtual void SegmentSum(Matrix gradients,  // [num_gradients, dim] float32
                          absl::Span<const SegmentGroup> groups) = 0;

  // Pairwise dots of the `vectors` vectors of every sample, after a copy of the first:
  //   output[b] = [z[b, 0], dot(z[b, i], z[b, j]) for i in 1..vectors-1, for j < i, zeros]
  virtual void InteractionForward(Matrix z,            // [batch, vectors * dim] float32
                                  int32_t vectors,     // >= 1
                                  Matrix output) = 0;  // [batch, dim + vectors (vectors-1) / 2]
  virtual void InteractionBackward(Matrix z, int32_t vectors,
                                   Matrix output_gradient,  // like output
                                   Matrix z_gradient) = 0;  // like z

  // Binary cross entropy with logits:
  //   loss_sum[0] = sum of log(1 + exp(x)) - y x;  gradient = (sigmoid(x) - y) * scale
  virtual void BceWithLogits(Matrix logits,                     // [batch, 1] float32
                             DeviceSpan<const float> labels,    // [batch] 0 or 1
                             float scale,                       // 1 / samples of the global batch
                             Matrix logits_gradient,            // [batch, 1] float32
                             DeviceSpan<double> loss_sum) = 0;  // [1]

  // One optimizer update of a flat arena, in blocks of kDenseBlockFloats (table_spec.h), which are
  // the rows of dense tables.
  virtual void DenseUpdate(const OptimizerConfig& optimizer, const UpdateScalars& scalars,
                           DeviceSpan<const float> gradients,  // [blocks, 256]
                           DeviceSpan<float> weights,          // [blocks, 256]
                           DeviceSpan<float> slots) = 0;  // [blocks, SlotFloats(optimizer, 256)]
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_DEVICE_H_
