#include "kernels/cuda/stream_device.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/math/table_spec.h"
#include "kernels/cuda/cuda_mlp.h"
#include "kernels/cuda/operations.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

// A wait looks so many times, some ten microseconds, before it lets its thread sleep: being woken
// takes as long.
constexpr int kLooksBeforeSleep = 16;

struct DroppedMemory {
  void* data = nullptr;
  bool is_host_memory = false;  // of cudaHostAlloc, else of cudaMalloc
};

// Ignores errors: an earlier operation met the same error, and the device reports it.
void Free(int ordinal, absl::Span<const DroppedMemory> dropped) {
  if (dropped.empty() || cudaSetDevice(ordinal) != cudaSuccess) return;
  static_cast<void>(cudaDeviceSynchronize());  // What was queued may use the memory.
  for (const DroppedMemory& memory : dropped) {
    static_cast<void>(memory.is_host_memory ? cudaFreeHost(memory.data) : cudaFree(memory.data));
  }
}

}  // namespace

// The memory of buffers that were destroyed. To free it waits for the whole device, which would
// spoil a graph that the device's thread is capturing; and a buffer may be destroyed on any thread,
// at any time. So a buffer only drops its memory here, and the device's thread frees it when it
// next allocates or synchronizes outside of a capture. Once the device is destroyed nothing is
// captured any more, and a buffer's memory is freed where the buffer is destroyed.
//
// Thread-safe.
class StreamDevice::Dropped {
 public:
  explicit Dropped(int ordinal) : ordinal_(ordinal) {}

  void Add(const DroppedMemory& memory) {
    if (memory.data == nullptr) return;
    {
      absl::MutexLock lock(&mutex_);
      if (has_device_) return memory_.push_back(memory);
    }
    Free(ordinal_, {memory});
  }
  // All that was added and not taken yet, for the caller to free.
  std::vector<DroppedMemory> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(memory_, {});
  }
  // The same, for the last time.
  std::vector<DroppedMemory> TakeLast() {
    absl::MutexLock lock(&mutex_);
    has_device_ = false;
    return std::exchange(memory_, {});
  }

 private:
  const int ordinal_;
  absl::Mutex mutex_;
  bool has_device_ ABSL_GUARDED_BY(mutex_) = true;
  std::vector<DroppedMemory> memory_ ABSL_GUARDED_BY(mutex_);
};

class StreamDevice::Buffer : public DeviceBuffer {
 public:
  Buffer(std::shared_ptr<Dropped> dropped, const DroppedMemory& memory)
      : dropped_(std::move(dropped)), memory_(memory) {}
  ~Buffer() override { dropped_->Add(memory_); }
  void* data() override { return memory_.data; }

 private:
  const std::shared_ptr<Dropped> dropped_;
  const DroppedMemory memory_;
};

// See AllocateHost.
class StreamDevice::OrdinaryBuffer : public DeviceBuffer {
 public:
  explicit OrdinaryBuffer(size_t bytes) : data_(std::calloc(bytes, 1)) { CHECK(data_ != nullptr); }
  ~OrdinaryBuffer() override { std::free(data_); }
  void* data() override { return data_; }

 private:
  void* const data_;
};

class StreamDevice::Event : public DeviceEvent {
 public:
  explicit Event(StreamDevice* device) : device_(device) {
    if (!device_->Begin()) return;
    device_->Check(
        cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
        "making an event");
  }
  ~Event() override {
    if (event_ != nullptr && cudaSetDevice(device_->ordinal_) == cudaSuccess) {
      static_cast<void>(cudaEventDestroy(event_));
    }
  }
  absl::Status Wait() override {
    if (event_ == nullptr) return device_->error_.Take();
    // Waits after an error, too: the host may be about to reuse memory.
    device_->Check(cudaSetDevice(device_->ordinal_), "choosing the device");
    if (!IsReached()) device_->Check(cudaEventSynchronize(event_), "waiting for an event");
    return device_->error_.Take();
  }
  cudaEvent_t get() const { return event_; }

 private:
  bool IsReached() const {
    for (int look = 0; look < kLooksBeforeSleep; ++look) {
      const cudaError_t state = cudaEventQuery(event_);
      if (state == cudaSuccess) return true;
      if (state != cudaErrorNotReady) return false;
    }
    // Clears cudaErrorNotReady, which the next launch would report.
    static_cast<void>(cudaGetLastError());
    return false;
  }

  StreamDevice* const device_;
  cudaEvent_t event_ = nullptr;
};

// Work that was captured, ready to be launched.
class StreamDevice::Graph : public CapturedWork {
 public:
  explicit Graph(int ordinal) : ordinal_(ordinal) {}
  ~Graph() override {
    if (graph_ != nullptr && cudaSetDevice(ordinal_) == cudaSuccess) {
      static_cast<void>(cudaGraphExecDestroy(graph_));
    }
  }

  cudaGraphExec_t graph_ = nullptr;
  std::vector<std::shared_ptr<DeviceBuffer>> scratch_;

 private:
  const int ordinal_;
};

StreamDevice::StreamDevice(int ordinal, std::unique_ptr<Gemm> gemm, size_t initial_scratch_bytes)
    : ordinal_(ordinal), dropped_(std::make_shared<Dropped>(ordinal)), gemm_(std::move(gemm)) {
  // A thread that waits for a stream or the device sleeps; the others need the processors.
  if (Begin() && cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // Then it spins.
  }
  for (cudaStream_t* stream : {&compute_, &copy_, &setup_}) {
    if (Begin()) {
      Check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "making a stream");
    }
  }
  ReplaceScratch(initial_scratch_bytes);
}

StreamDevice::~StreamDevice() {
  if (cudaSetDevice(ordinal_) != cudaSuccess) return;
  static_cast<void>(cudaDeviceSynchronize());
  for (cudaStream_t stream : {compute_, copy_, setup_}) {
    if (stream != nullptr) static_cast<void>(cudaStreamDestroy(stream));
  }
  Free(ordinal_, dropped_->TakeLast());
}

bool StreamDevice::Begin() {
  if (!error_.ok()) return false;
  Check(cudaSetDevice(ordinal_), "choosing the device");
  return error_.ok();
}

void StreamDevice::FreeDropped() {
  const bool captures = captured_scratch_ != nullptr;
  if (captures) return;
  const std::vector<DroppedMemory> dropped = dropped_->Take();
  for (const DroppedMemory& memory : dropped) {
    if (memory.is_host_memory) host_allocations_.erase(static_cast<const char*>(memory.data));
  }
  Free(ordinal_, dropped);
}

std::unique_ptr<DeviceBuffer> StreamDevice::Allocate(size_t bytes) {
  void* data = nullptr;
  const size_t at_least_one = std::max<size_t>(bytes, 1);
  FreeDropped();
  if (Begin()) Check(cudaMalloc(&data, at_least_one), "allocating device memory");
  if (data != nullptr) {
    Check(cudaMemsetAsync(data, 0, at_least_one, setup_), "clearing device memory");
    Check(cudaStreamSynchronize(setup_), "clearing device memory");
  }
  return std::make_unique<Buffer>(dropped_, DroppedMemory{data, /*is_host_memory=*/false});
}

// By way of the host: there may be no room for two.
std::unique_ptr<DeviceBuffer> StreamDevice::Grow(std::unique_ptr<DeviceBuffer> buffer,
                                                 size_t kept_bytes, size_t bytes) {
  const std::unique_ptr<char[]> kept(new char[std::max<size_t>(kept_bytes, 1)]);
  CopyToHost(kept.get(), buffer->data(), kept_bytes, Stream::kCompute);
  buffer.reset();
  buffer = Allocate(bytes);
  if (buffer->data() != nullptr) {
    CopyToDevice(buffer->data(), kept.get(), kept_bytes, Stream::kCompute);
  }
  return buffer;
}

std::unique_ptr<DeviceBuffer> StreamDevice::AllocateHost(size_t bytes) {
  void* data = nullptr;
  const size_t at_least_one = std::max<size_t>(bytes, 1);
  FreeDropped();
  if (Begin()) {
    Check(cudaHostAlloc(&data, at_least_one, cudaHostAllocDefault), "allocating pinned memory");
  }
  // Returns memory even after an error, for callers that fill it before they see the error; the
  // device copies nothing from or to it any more.
  if (data == nullptr) return std::make_unique<OrdinaryBuffer>(at_least_one);
  std::fill_n(static_cast<char*>(data), at_least_one, 0);
  host_allocations_[static_cast<const char*>(data)] = at_least_one;
  return std::make_unique<Buffer>(dropped_, DroppedMemory{data, /*is_host_memory=*/true});
}

bool StreamDevice::IsAllocatedHost(const void* host) const {
  const auto next = host_allocations_.upper_bound(static_cast<const char*>(host));
  if (next == host_allocations_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(next);
  return static_cast<const char*>(host) < begin + bytes;
}

void StreamDevice::Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                        const void* host, Stream stream) {
  if (bytes == 0 || !Begin()) return;
  if (kind == cudaMemcpyHostToDevice) {
    copies().AddToDevice(bytes);
  } else {
    copies().AddFromDevice(bytes);
  }
  Check(cudaMemcpyAsync(to, from, bytes, kind, Get(stream)), "copying between host and device");
  // CUDA's documentation does not say whether a copy of pageable memory has finished when the call
  // returns ("may be asynchronous"), so this waits.
  if (!IsAllocatedHost(host)) {
    Check(cudaStreamSynchronize(Get(stream)), "copying between host and device");
  }
}

void StreamDevice::CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) {
  Copy(device, host, bytes, cudaMemcpyHostToDevice, host, stream);
}

void StreamDevice::CopyToHost(void* host, const void* device, size_t bytes, Stream stream) {
  Copy(host, device, bytes, cudaMemcpyDeviceToHost, host, stream);
}

std::unique_ptr<DeviceEvent> StreamDevice::MakeEvent() { return std::make_unique<Event>(this); }

void StreamDevice::Record(Stream stream, DeviceEvent* event) {
  const cudaEvent_t cuda_event = static_cast<Event*>(event)->get();
  if (!Begin()) return;
  Check(cudaEventRecord(cuda_event, Get(stream)), "recording an event");
}

void StreamDevice::WaitFor(Stream stream, const DeviceEvent& event) {
  const cudaEvent_t cuda_event = static_cast<const Event&>(event).get();
  if (!Begin()) return;
  Check(cudaStreamWaitEvent(Get(stream), cuda_event, 0), "waiting for an event");
}

absl::Status StreamDevice::Synchronize() {
  Check(cudaSetDevice(ordinal_), "choosing the device");
  for (cudaStream_t stream : {compute_, copy_}) {
    if (stream != nullptr) Check(cudaStreamSynchronize(stream), "waiting for the device");
  }
  FreeDropped();
  return error_.Take();
}

void StreamDevice::ReplaceScratch(size_t bytes) {
  scratch_.reset();
  scratch_ = Allocate(bytes);
  scratch_bytes_ = scratch_->data() == nullptr ? 0 : bytes;
}

void* StreamDevice::Scratch(size_t bytes) {
  if (bytes > scratch_bytes_) ReplaceScratch(bytes + bytes / 2);
  if (captured_scratch_ != nullptr) captured_scratch_->push_back(scratch_);
  return scratch_->data();
}

std::unique_ptr<CapturedWork> StreamDevice::Capture(std::function<void()> work) {
  if (!Begin()) return nullptr;
  FreeDropped();  // A capture may need the memory, and can't free it.
  auto captured = std::make_unique<Graph>(ordinal_);
  cudaGraph_t graph = nullptr;
  // Relaxed: meanwhile scratch may grow, and cuBLASLt may allocate for a new shape.
  Check(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeRelaxed), "beginning a capture");
  if (error_.ok()) {
    captured_scratch_ = &captured->scratch_;
    work();
    captured_scratch_ = nullptr;
    Check(cudaStreamEndCapture(compute_, &graph), "ending a capture");
  }
  if (error_.ok()) {
    Check(cudaGraphInstantiate(&captured->graph_, graph, 0), "making a graph of a capture");
  }
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  if (error_.ok()) return captured;
  // Nothing was run: an error of the work itself comes again when it runs without a capture.
  static_cast<void>(error_.Take());
  failed_captures_.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void StreamDevice::Replay(CapturedWork* work) {
  if (Begin())
    Check(cudaGraphLaunch(static_cast<Graph*>(work)->graph_, compute_), "launching a graph");
}

DeviceFallbacks StreamDevice::fallbacks() const {
  return {failed_captures_.load(std::memory_order_relaxed), gemm_->num_full_precision_shapes()};
}

std::unique_ptr<Mlp> StreamDevice::CreateMlp(const MlpConfig& config) {
  return std::make_unique<CudaMlp>(config, MlpContext{this, gemm_.get(), &error_, compute_});
}

LayerOperations& StreamDevice::layers() { return *layers_; }

StepOperations& StreamDevice::steps() { return *steps_; }

void StreamDevice::PoolForward(absl::Span<const PoolInput> features, int32_t dim,
                               int32_t first_vector, Matrix z) {
  for (const PoolInput& feature : features) {
    CHECK(feature.offsets.empty() ? feature.row_indices.size == z.rows
                                  : feature.offsets.size == z.rows + int64_t{1});
    CHECK(HasValidWeights(feature));
  }
  if (!Begin()) return;
  Check(LaunchPoolForward(features, dim, first_vector, z, compute_), "PoolForward");
}

void StreamDevice::PoolBackward(absl::Span<const PoolInput> features, int32_t dim,
                                int32_t first_vector, Matrix z_gradient) {
  if (!Begin()) return;
  Check(LaunchPoolBackward(features, dim, first_vector, z_gradient, compute_), "PoolBackward");
}

void StreamDevice::SegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups) {
  for (const SegmentGroup& group : groups) {
    CHECK_EQ(group.offsets.size, group.sums.rows + int64_t{1});
    CHECK(group.weights.empty() || group.weights.size == group.lookups.size);
  }
  if (!Begin()) return;
  void* const scratch = Scratch(sizeof(float) * SegmentSumScratchFloats(groups, gradients.cols));
  if (scratch == nullptr) return;
  Check(LaunchSegmentSum(gradients, groups, static_cast<float*>(scratch), compute_), "SegmentSum");
}

void StreamDevice::SparseUpdate(absl::Span<const RowUpdateGroup> groups) {
  for (const RowUpdateGroup& group : groups) CHECK(IsValid(group));
  if (Begin()) Check(LaunchSparseUpdate(groups, compute_), "SparseUpdate");
}

void StreamDevice::GatherRows(absl::Span<const RowCopy> copies) {
  for (const RowCopy& copy : copies) CHECK_EQ(copy.rows.size, int64_t{copy.packed.rows});
  if (Begin()) Check(LaunchGatherRows(copies, compute_), "GatherRows");
}

void StreamDevice::ScatterRows(absl::Span<const RowCopy> copies) {
  for (const RowCopy& copy : copies) CHECK_EQ(copy.rows.size, int64_t{copy.packed.rows});
  if (Begin()) Check(LaunchScatterRows(copies, compute_), "ScatterRows");
}

void StreamDevice::InteractionForward(Matrix z, int32_t vectors, Matrix output) {
  CHECK_EQ(output.cols, z.cols / vectors + vectors * (vectors - 1) / 2);
  if (Begin()) Check(LaunchInteractionForward(z, vectors, output, compute_), "InteractionForward");
}

void StreamDevice::InteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient,
                                       Matrix z_gradient) {
  CHECK_EQ(output_gradient.cols, z.cols / vectors + vectors * (vectors - 1) / 2);
  if (!Begin()) return;
  Check(LaunchInteractionBackward(z, vectors, output_gradient, z_gradient, compute_),
        "InteractionBackward");
}

void StreamDevice::BceWithLogits(Matrix logits, DeviceSpan<const float> labels,
                                 DeviceSpan<const float> weights, float scale,
                                 Matrix logits_gradient, DeviceSpan<double> loss_sum) {
  CHECK_EQ(labels.size, logits.rows);
  CHECK(weights.empty() || weights.size == labels.size);
  if (!Begin()) return;
  void* const scratch = Scratch(sizeof(double) * BceScratchDoubles(logits.rows));
  if (scratch == nullptr) return;
  Check(
      LaunchBceWithLogits(logits, labels.data, weights.empty() ? nullptr : weights.data, scale,
                          logits_gradient, loss_sum.data, static_cast<double*>(scratch), compute_),
      "BceWithLogits");
}

void StreamDevice::FindNonFinite(DeviceSpan<const float> values, DeviceSpan<int64_t> index) {
  if (Begin()) Check(LaunchFindNonFinite(values, index.data, compute_), "FindNonFinite");
}

void StreamDevice::DenseUpdate(const OptimizerConfig& optimizer, const UpdateScalars& scalars,
                               DeviceSpan<const float> gradients, DeviceSpan<float> weights,
                               DeviceSpan<float> state) {
  const int64_t blocks = weights.size / kDenseBlockFloats;
  const int32_t state_floats = StateFloats(optimizer, kDenseBlockFloats);
  CHECK_EQ(weights.size, blocks * kDenseBlockFloats);
  CHECK_EQ(gradients.size, weights.size);
  CHECK_EQ(state.size, blocks * state_floats);
  if (!Begin()) return;
  float* scale = nullptr;
  if (optimizer.clip_global_norm > 0) {
    // The scale stands behind the blocks' sums.
    auto* const squares = static_cast<float*>(Scratch(sizeof(float) * (blocks + 1)));
    if (squares == nullptr) return;
    scale = squares + blocks;
    Check(LaunchGlobalClipScale(scalars, optimizer.clip_global_norm, blocks, kDenseBlockFloats,
                                gradients.data, squares, scale, compute_),
          "DenseUpdate");
  }
  Check(LaunchDenseUpdate(scalars, blocks, kDenseBlockFloats, state_floats, gradients.data, scale,
                          weights.data, state.data, compute_),
        "DenseUpdate");
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
