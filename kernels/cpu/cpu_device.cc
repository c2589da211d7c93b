#include "kernels/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/thread_pool.h"
#include "common/math/row_update.h"
#include "common/math/table_spec.h"
#include "kernels/cpu/bf16_check.h"
#include "kernels/cpu/bf16_gemm.h"
#include "kernels/cpu/bf16_mlp.h"
#include "kernels/cpu/cpu_buffer.h"
#include "kernels/cpu/cpu_layers.h"
#include "kernels/cpu/cpu_mlp.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/cpu_steps.h"
#include "kernels/cpu/gemm.h"

namespace thermocline {
namespace {

constexpr int64_t kDenseBlocksPerCell = 64;

Bf16GemmFunction Bf16GemmFor(CpuIsaLimit isa) {
  return UsesBf16Instructions(isa) ? Bf16GemmAvx512 : Bf16GemmAvx2;
}

// Every operation has finished when its call returns.
class PastEvent : public DeviceEvent {
 public:
  absl::Status Wait() override { return absl::OkStatus(); }
};

// Replay calls the function again: a capture saves nothing on a CPU.
class CapturedFunction : public CapturedWork {
 public:
  explicit CapturedFunction(std::function<void()> work) : work_(std::move(work)) {}
  void Run() const { work_(); }

 private:
  const std::function<void()> work_;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : pool_(options.num_threads),
        gemm_(options.isa != CpuIsaLimit::kAvx2 && HasAvx512() ? GemmAvx512 : GemmAvx2),
        bf16_gemm_(Bf16GemmFor(options.isa)),
        bf16_scratch_(std::make_shared<Bf16Scratch>(options.num_threads)),
        layers_(&pool_),
        steps_(&pool_) {
    CHECK(CpuSupports(options.isa));
  }

  bool is_host_memory() const override { return true; }
  std::unique_ptr<DeviceBuffer> Allocate(size_t bytes) override {
    return std::make_unique<CpuBuffer>(bytes);
  }
  std::unique_ptr<DeviceBuffer> Grow(std::unique_ptr<DeviceBuffer> buffer, size_t kept_bytes,
                                     size_t bytes) override {
    static_cast<CpuBuffer*>(buffer.get())->Resize(kept_bytes, bytes);
    return buffer;
  }
  std::unique_ptr<DeviceBuffer> AllocateHost(size_t bytes) override { return Allocate(bytes); }
  void CopyToDevice(void* device, const void* host, size_t bytes, Stream) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
    copies().AddToDevice(bytes);
  }
  void CopyToHost(void* host, const void* device, size_t bytes, Stream) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
    copies().AddFromDevice(bytes);
  }
  std::unique_ptr<DeviceEvent> MakeEvent() override { return std::make_unique<PastEvent>(); }
  void Record(Stream, DeviceEvent*) override {}
  void WaitFor(Stream, const DeviceEvent&) override {}
  absl::Status Synchronize() override { return absl::OkStatus(); }

  std::unique_ptr<CapturedWork> Capture(std::function<void()> work) override {
    return std::make_unique<CapturedFunction>(std::move(work));
  }
  void Replay(CapturedWork* work) override { static_cast<CapturedFunction*>(work)->Run(); }

  std::unique_ptr<Mlp> CreateMlp(const MlpConfig& config) override {
    CHECK(config.precision != MlpPrecision::kTf32);
    if (config.precision == MlpPrecision::kBfloat16) {
      return std::make_unique<Bf16Mlp>(config, bf16_gemm_, &pool_, bf16_scratch_);
    }
    return std::make_unique<CpuMlp>(config, gemm_, &pool_);
  }
  LayerOperations& layers() override { return layers_; }
  StepOperations& steps() override { return steps_; }

  void PoolForward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                   Matrix z) override {
    CpuPoolForward(features, dim, first_vector, z, &pool_);
  }
  void PoolBackward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                    Matrix z_gradient) override {
    CpuPoolBackward(features, dim, first_vector, z_gradient, &pool_);
  }
  void SegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups) override {
    CpuSegmentSum(gradients, groups, &pool_);
  }

  void SparseUpdate(absl::Span<const RowUpdateGroup> groups) override {
    CpuSparseUpdate(groups, &pool_);
  }
  void GatherRows(absl::Span<const RowCopy> copies) override { CpuGatherRows(copies, &pool_); }
  void ScatterRows(absl::Span<const RowCopy> copies) override { CpuScatterRows(copies, &pool_); }

  void InteractionForward(Matrix z, int32_t vectors, Matrix output) override {
    CpuInteractionForward(z, vectors, output, &pool_);
  }
  void InteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient,
                           Matrix z_gradient) override {
    CpuInteractionBackward(z, vectors, output_gradient, z_gradient, &pool_);
  }

  void BceWithLogits(Matrix logits, DeviceSpan<const float> labels, DeviceSpan<const float> weights,
                     float scale, Matrix logits_gradient, DeviceSpan<double> loss_sum) override {
    CHECK_EQ(labels.size, logits.rows);
    CHECK(weights.empty() || weights.size == labels.size);
    loss_sum[0] = CpuBceWithLogits(logits.floats(), logits.ld, labels.data,
                                   weights.empty() ? nullptr : weights.data, labels.size, scale,
                                   logits_gradient.floats(), logits_gradient.ld);
  }

  void FindNonFinite(DeviceSpan<const float> values, DeviceSpan<int64_t> index) override {
    const absl::Span<const float> all = absl::MakeConstSpan(values.data, values.size);
    index[0] = static_cast<int64_t>(thermocline::FindNonFinite(all));
  }

  void DenseUpdate(const OptimizerConfig& optimizer, const UpdateScalars& scalars,
                   DeviceSpan<const float> gradients, DeviceSpan<float> weights,
                   DeviceSpan<float> state) override {
    const int64_t blocks = weights.size / kDenseBlockFloats;
    const int64_t state_floats = StateFloats(optimizer, kDenseBlockFloats);
    CHECK_EQ(weights.size, blocks * kDenseBlockFloats);
    CHECK_EQ(gradients.size, weights.size);
    CHECK_EQ(state.size, blocks * state_floats);
    const RowUpdate update = SelectRowUpdate(scalars);
    const RowScalars of_row = scalars;
    const bool scales = optimizer.clip_global_norm > 0;
    const float scale = scales ? GlobalScale(optimizer, scalars, gradients, blocks) : 1.0f;
    ForEachDenseBlock(blocks, [&](int64_t b) {
      const float* const gradient = gradients.data + b * kDenseBlockFloats;
      float* const weight = weights.data + b * kDenseBlockFloats;
      float* const of_block = state.data + b * state_floats;
      if (scales) {
        UpdateScaled(scalars, scale, gradient, weight, of_block, kDenseBlockFloats);
      } else {
        update(of_row, gradient, /*lookups=*/0, weight, of_block, kDenseBlockFloats);
      }
    });
  }

 private:
  template <typename Visit>
  void ForEachDenseBlock(int64_t blocks, Visit visit) {
    pool_.ParallelFor((blocks + kDenseBlocksPerCell - 1) / kDenseBlocksPerCell,
                      [&](int64_t cell, int) {
                        const int64_t end = std::min((cell + 1) * kDenseBlocksPerCell, blocks);
                        for (int64_t b = cell * kDenseBlocksPerCell; b < end; ++b) visit(b);
                      });
  }

  float GlobalScale(const OptimizerConfig& optimizer, const UpdateScalars& scalars,
                    DeviceSpan<const float> gradients, int64_t blocks) {
    block_squares_.resize(blocks);
    ForEachDenseBlock(blocks, [&](int64_t b) {
      const float* const gradient = gradients.data + b * kDenseBlockFloats;
      block_squares_[b] =
          SumOfSquaresOf(kDenseBlockFloats, [&](int i) { return ClipValue(scalars, gradient[i]); });
    });
    double lanes[kGlobalLanes] = {};
    for (int64_t b = 0; b < blocks; ++b) lanes[b % kGlobalLanes] += block_squares_[b];
    for (int half = kGlobalLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return GlobalClipScale(optimizer.clip_global_norm, lanes[0]);
  }

  ThreadPool pool_;
  const GemmFunction gemm_;
  const Bf16GemmFunction bf16_gemm_;
  const std::shared_ptr<Bf16Scratch> bf16_scratch_;
  CpuLayerOperations layers_;
  CpuStepOperations steps_;
  std::vector<float> block_squares_;  // [blocks] Of the last DenseUpdate with clip_global_norm.
};

}  // namespace

bool CpuSupports(CpuIsaLimit isa) { return isa != CpuIsaLimit::kAvx512 || HasAvx512(); }

bool UsesBf16Instructions(CpuIsaLimit isa) { return isa != CpuIsaLimit::kAvx2 && HasAvx512Bf16(); }

absl::Status CheckCpuBf16(CpuIsaLimit isa) { return CheckBf16Gemm(Bf16GemmFor(isa)); }

std::unique_ptr<Device> MakeCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace thermocline
