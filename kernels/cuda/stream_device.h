// The Device of this folder: launches of operations.h and products of a Gemm on two streams. The
// same code runs on a GPU (cuda_device.h) and on the emulation (emulation/emulated_device.h).
#ifndef THERMOCLINE_KERNELS_CUDA_STREAM_DEVICE_H_
#define THERMOCLINE_KERNELS_CUDA_STREAM_DEVICE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/cuda/first_error.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/device.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

// So much scratch is enough for most operations of most models: it seldom grows.
inline constexpr size_t kInitialScratchBytes = 6 << 20;

class StreamDevice : public Device {
 public:
  // REQUIRES: `gemm` was made for the GPU `ordinal`.
  StreamDevice(int ordinal, std::unique_ptr<Gemm> gemm,
               size_t initial_scratch_bytes = kInitialScratchBytes);
  ~StreamDevice() override;

  bool is_host_memory() const override { return false; }
  std::unique_ptr<DeviceBuffer> Allocate(size_t bytes) override;
  std::unique_ptr<DeviceBuffer> Grow(std::unique_ptr<DeviceBuffer> buffer, size_t kept_bytes,
                                     size_t bytes) override;
  std::unique_ptr<DeviceBuffer> AllocateHost(size_t bytes) override;
  void CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) override;
  void CopyToHost(void* host, const void* device, size_t bytes, Stream stream) override;
  std::unique_ptr<DeviceEvent> MakeEvent() override;
  void Record(Stream stream, DeviceEvent* event) override;
  void WaitFor(Stream stream, const DeviceEvent& event) override;
  absl::Status Synchronize() override;

  std::unique_ptr<CapturedWork> Capture(std::function<void()> work) override;
  void Replay(CapturedWork* work) override;
  DeviceFallbacks fallbacks() const override;

  std::unique_ptr<Mlp> CreateMlp(const MlpConfig& config) override;
  LayerOperations& layers() override;
  StepOperations& steps() override;
  void PoolForward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                   Matrix z) override;
  void PoolBackward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                    Matrix z_gradient) override;
  void SegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups) override;
  void SparseUpdate(absl::Span<const RowUpdateGroup> groups) override;
  void GatherRows(absl::Span<const RowCopy> copies) override;
  void ScatterRows(absl::Span<const RowCopy> copies) override;
  void InteractionForward(Matrix z, int32_t vectors, Matrix output) override;
  void InteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient,
                           Matrix z_gradient) override;
  void BceWithLogits(Matrix logits, DeviceSpan<const float> labels, DeviceSpan<const float> weights,
                     float scale, Matrix logits_gradient, DeviceSpan<double> loss_sum) override;
  void FindNonFinite(DeviceSpan<const float> values, DeviceSpan<int64_t> index) override;
  void DenseUpdate(const OptimizerConfig& optimizer, const UpdateScalars& scalars,
                   DeviceSpan<const float> gradients, DeviceSpan<float> weights,
                   DeviceSpan<float> state) override;

 private:
  class Dropped;
  class Buffer;
  class OrdinaryBuffer;
  class Event;
  class Graph;
  class Layers;  // stream_layers.cc
  class Steps;   // stream_steps.cc
  static std::unique_ptr<LayerOperations> MakeLayers(StreamDevice* device);
  static std::unique_ptr<StepOperations> MakeSteps(StreamDevice* device);

  // Makes this GPU the calling thread's current one. Returns false after an error: the caller then
  // does nothing.
  bool Begin();
  void Check(cudaError_t error, const char* operation) { error_.Record(error, operation); }
  cudaStream_t Get(Stream stream) const { return stream == Stream::kCompute ? compute_ : copy_; }
  bool IsAllocatedHost(const void* host) const;
  // Copies, and waits where the host's memory does not come from AllocateHost.
  void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const void* host,
            Stream stream);
  // Frees the memory of destroyed buffers, which waits for the device; within a capture, which
  // can't wait, it leaves that to a later call.
  void FreeDropped();
  // Returns memory for one operation's partial results, on the compute stream; null after an error.
  // It grows to the largest batch seen, which may wait for the device: in the first steps of a job,
  // if at all.
  void* Scratch(size_t bytes);
  void ReplaceScratch(size_t bytes);

  const int ordinal_;
  // setup_ clears new memory: Allocate waits for it, but not for queued operations.
  cudaStream_t compute_ = nullptr, copy_ = nullptr, setup_ = nullptr;
  FirstError error_;
  // The buffers share it, and may outlive the device.
  const std::shared_ptr<Dropped> dropped_;
  std::map<const char*, size_t> host_allocations_;  // Bytes by address.
  size_t scratch_bytes_ = 0;
  std::shared_ptr<DeviceBuffer> scratch_;
  // During a capture: collects the scratch that its operations use, which may be replaced later.
  std::vector<std::shared_ptr<DeviceBuffer>>* captured_scratch_ = nullptr;
  std::atomic<int64_t> failed_captures_{0};
  const std::unique_ptr<Gemm> gemm_;
  const std::unique_ptr<LayerOperations> layers_ = MakeLayers(this);
  const std::unique_ptr<StepOperations> steps_ = MakeSteps(this);
};

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_STREAM_DEVICE_H_
