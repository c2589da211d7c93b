// One compute device: its memory and the composite batch operations that a training step is made
// of. Implementations: CpuDevice (cpu/cpu_device.h), which is the specification of every operation,
// and StreamDevice (cuda/stream_device.h), on an NVIDIA GPU.
//
// Operations run in the order they are called. They may return before the device has finished; data
// may be read on the host after Synchronize(), which also reports what went wrong. None allocates
// and none waits for the device; operands that lie on the host (spans of groups) are read before
// they return. Results of one device are bit-identical from run to run, on the CPU for any number
// of threads: sums have one canonical order, fixed by the shapes. Both devices give the same bits,
// but for matrix products and what is computed from them, which agree up to rounding.
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
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/math/sparse_optimizer.h"
#include "kernels/device_counts.h"
#include "kernels/layer_operations.h"
#include "kernels/matrix.h"
#include "kernels/mlp.h"
#include "kernels/step_operations.h"

namespace thermocline {

// A point on a stream to wait for, on the host or on another stream.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Waits on the host. Errors: as Device::Synchronize.
  virtual absl::Status Wait() = 0;
};

// Operations that Device::Capture has kept, to be run again.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
};

// Operations run on kCompute; copies between host and device on either.
enum class Stream { kCompute, kCopy };

class Device {
 public:
  virtual ~Device() = default;

  // Whether device memory is host memory (the CPU's is): the host may use it whenever the device
  // doesn't.
  virtual bool is_host_memory() const = 0;
  // Where too little memory is left, data() is null and Synchronize() returns the error; operations
  // called after that do nothing.
  virtual std::unique_ptr<DeviceBuffer> Allocate(size_t bytes) = 0;
  // Returns `buffer` with `bytes` bytes, perhaps at another address. Keeps the first `kept_bytes`;
  // the values of the others are undefined. Waits for the device, and never holds both buffers in
  // its memory. Errors: as Allocate.
  virtual std::unique_ptr<DeviceBuffer> Grow(std::unique_ptr<DeviceBuffer> buffer,
                                             size_t kept_bytes, size_t bytes) = 0;
  // Allocates host memory that the device copies from and to without delay.
  virtual std::unique_ptr<DeviceBuffer> AllocateHost(size_t bytes) = 0;
  // Copies run in the order of `stream`. They read or write memory of AllocateHost when the stream
  // reaches them, other host memory before the call returns.
  virtual void CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t bytes, Stream stream) = 0;

  virtual std::unique_ptr<DeviceEvent> MakeEvent() = 0;
  // Moves the event to where `stream` has run everything that it was given so far.
  virtual void Record(Stream stream, DeviceEvent* event) = 0;
  // Lets everything that `stream` is given from now on run after the event.
  virtual void WaitFor(Stream stream, const DeviceEvent& event) = 0;

  // Waits for all operations called so far. Returns the first error that any of them met, and
  // returns it once.
  virtual absl::Status Synchronize() = 0;

  // Keeps the operations that `work` calls, without running them, so that they can be given to the
  // device as one. REQUIRES: `work` calls operations only (no copies, events or waits), each time
  // the same ones with the same operands, which are there whenever the result is replayed.
  // Returns null where the device can't capture them; nothing was run then, and no error remains.
  virtual std::unique_ptr<CapturedWork> Capture(std::function<void()> work) = 0;
  virtual void Replay(CapturedWork* work) = 0;

  virtual DeviceFallbacks fallbacks() const { return {}; }  // So far. Any thread may call it.
  // Counts the bytes of CopyToDevice and CopyToHost, and those that stay uncopied because
  // is_host_memory().
  CopyCounter& copies() const { return copies_; }

  virtual std::unique_ptr<Mlp> CreateMlp(const MlpConfig& config) = 0;
  // What layers compute beside matrix products. The device owns it.
  virtual LayerOperations& layers() = 0;
  // What they compute on the steps of sequences. The device owns it.
  virtual StepOperations& steps() = 0;

  // Pools the rows of every feature f for each sample b into z[b, (first_vector + f) * dim ...]:
  //   sum (or mean) of rows[row_indices[j]], j in [offsets[b], offsets[b + 1]), in order,
  // each times weights[j] where there are weights. An empty bag gives zeros.
  virtual void PoolForward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                           Matrix z) = 0;  // [batch, (first_vector + features) * dim] float32

  // Turns the gradient of every bag into that of each of its lookups, in place: divided by the
  // bag's length for kMean, unchanged for kSum.
  virtual void PoolBackward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                            Matrix z_gradient) = 0;  // like z

  // Sums the gradients of the lookups of every segment u of each group:
  //   sums[u] = canonical sum of gradients[lookups[j]], j in [offsets[u], offsets[u + 1]),
  // each times weights[j] where there are weights.
  virtual void SegmentSum(Matrix gradients,  // [num_gradients, dim] float32
                          absl::Span<const SegmentGroup> groups) = 0;

  // Makes one optimizer update of each target that is a row of its group.
  virtual void SparseUpdate(absl::Span<const RowUpdateGroup> groups) = 0;
  // GatherRows sets packed[i] = scattered[rows[i]]; ScatterRows copies the other way.
  virtual void GatherRows(absl::Span<const RowCopy> copies) = 0;
  virtual void ScatterRows(absl::Span<const RowCopy> copies) = 0;

  // Pairwise dots of the `vectors` vectors of every sample, after a copy of the first:
  //   output[b] = [z[b, 0], dot(z[b, i], z[b, j]) for i in 1..vectors-1, for j < i]
  virtual void InteractionForward(Matrix z,            // [batch, vectors * dim] float32
                                  int32_t vectors,     // >= 1
                                  Matrix output) = 0;  // [batch, dim + vectors (vectors-1) / 2]
  virtual void InteractionBackward(Matrix z, int32_t vectors,
                                   Matrix output_gradient,  // like output
                                   Matrix z_gradient) = 0;  // like z

  // Binary cross entropy with logits, a sample weighted by w:
  //   loss_sum[0] = sum of w (log(1 + exp(x)) - y x);  gradient = (sigmoid(x) - y) * (w scale)
  virtual void BceWithLogits(Matrix logits,                     // [batch, 1] float32
                             DeviceSpan<const float> labels,    // [batch] 0 or 1
                             DeviceSpan<const float> weights,   // [batch], or none: each is 1
                             float scale,                       // 1 / samples of the global batch
                             Matrix logits_gradient,            // [batch, 1] float32
                             DeviceSpan<double> loss_sum) = 0;  // [1]

  // index[0] = the least i for which values[i] is not finite; values.size where there is none.
  virtual void FindNonFinite(DeviceSpan<const float> values, DeviceSpan<int64_t> index) = 0;

  // Makes one optimizer update of a flat arena, in blocks of kDenseBlockFloats (table_spec.h),
  // which are the rows of dense tables.
  virtual void DenseUpdate(const OptimizerConfig& optimizer, const UpdateScalars& scalars,
                           DeviceSpan<const float> gradients,  // [blocks, 256]
                           DeviceSpan<float> weights,          // [blocks, 256]
                           DeviceSpan<float> state) = 0;  // [blocks, StateFloats(optimizer, 256)]

 private:
  mutable CopyCounter copies_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_DEVICE_H_
