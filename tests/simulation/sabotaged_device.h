// A CPU device that reads rows as they were before their last update, where a fault says so: like a
// device whose operations ran in another order than they were queued in.
#ifndef THERMOCLINE_TESTS_SIMULATION_SABOTAGED_DEVICE_H_
#define THERMOCLINE_TESTS_SIMULATION_SABOTAGED_DEVICE_H_

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "tests/simulation/saboteur.h"

namespace thermocline {

class SabotagedDevice : public Device {
 public:
  // What a gather of rows is for: rows that leave the slab, and those that are sent to the ranks
  // that read them, are gathered while a step receives its rows; rows that are written to the
  // servers while it is pushed.
  enum class Reads { kEvicted, kSent, kWritten };

  // `saboteur` outlives it.
  explicit SabotagedDevice(const Saboteur* saboteur)
      : saboteur_(*saboteur), real_(MakeCpuDevice({/*num_threads=*/1})) {}

  // The step at hand receives its rows, or is pushed, from now on.
  void BeginReceive() { reads_ = Reads::kEvicted; }
  void BeginPush() { reads_ = Reads::kWritten; }

  void SparseUpdate(absl::Span<const RowUpdateGroup> groups) override;
  void GatherRows(absl::Span<const RowCopy> copies) override;
  void ScatterRows(absl::Span<const RowCopy> copies) override;

  bool is_host_memory() const override { return true; }
  std::unique_ptr<DeviceBuffer> Allocate(size_t bytes) override { return real_->Allocate(bytes); }
  std::unique_ptr<DeviceBuffer> Grow(std::unique_ptr<DeviceBuffer> buffer, size_t kept_bytes,
                                     size_t bytes) override {
    return real_->Grow(std::move(buffer), kept_bytes, bytes);
  }
  std::unique_ptr<DeviceBuffer> AllocateHost(size_t bytes) override {
    return real_->AllocateHost(bytes);
  }
  void CopyToDevice(void* device, const void* host, size_t bytes, Stream stream) override {
    real_->CopyToDevice(device, host, bytes, stream);
  }
  void CopyToHost(void* host, const void* device, size_t bytes, Stream stream) override {
    real_->CopyToHost(host, device, bytes, stream);
  }
  std::unique_ptr<DeviceEvent> MakeEvent() override { return real_->MakeEvent(); }
  void Record(Stream stream, DeviceEvent* event) override { real_->Record(stream, event); }
  void WaitFor(Stream stream, const DeviceEvent& event) override { real_->WaitFor(stream, event); }
  absl::Status Synchronize() override { return real_->Synchronize(); }
  std::unique_ptr<CapturedWork> Capture(std::function<void()> work) override {
    return real_->Capture(std::move(work));
  }
  void Replay(CapturedWork* work) override { real_->Replay(work); }
  std::unique_ptr<Mlp> CreateMlp(const MlpConfig& config) override {
    return real_->CreateMlp(config);
  }
  LayerOperations& layers() override { return real_->layers(); }
  StepOperations& steps() override { return real_->steps(); }
  void PoolForward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                   Matrix z) override {
    real_->PoolForward(features, dim, first_vector, z);
  }
  void PoolBackward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                    Matrix z_gradient) override {
    real_->PoolBackward(features, dim, first_vector, z_gradient);
  }
  void SegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups) override {
    real_->SegmentSum(gradients, groups);
  }
  void InteractionForward(Matrix z, int32_t vectors, Matrix output) override {
    real_->InteractionForward(z, vectors, output);
  }
  void InteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient,
                           Matrix z_gradient) override {
    real_->InteractionBackward(z, vectors, output_gradient, z_gradient);
  }
  void BceWithLogits(Matrix logits, DeviceSpan<const float> labels, DeviceSpan<const float> weights,
                     float scale, Matrix logits_gradient, DeviceSpan<double> loss_sum) override {
    real_->BceWithLogits(logits, labels, weights, scale, logits_gradient, loss_sum);
  }
  void FindNonFinite(DeviceSpan<const float> values, DeviceSpan<int64_t> index) override {
    real_->FindNonFinite(values, index);
  }
  void DenseUpdate(const OptimizerConfig& optimizer, const UpdateScalars& scalars,
                   DeviceSpan<const float> gradients, DeviceSpan<float> weights,
                   DeviceSpan<float> state) override {
    real_->DenseUpdate(optimizer, scalars, gradients, weights, state);
  }

 private:
  // A slab of rows before its last update.
  struct Before {
    int32_t rows = 0;
    std::vector<float> floats;  // [rows, ld]
  };

  bool ReadsBefore() const;
  // The same copies, between `packed` and the rows before the last update.
  std::vector<RowCopy> OfBefore(absl::Span<const RowCopy> copies);

  const Saboteur& saboteur_;
  const std::unique_ptr<Device> real_;
  Reads reads_ = Reads::kEvicted;
  std::map<const void*, Before> before_;  // By the slab's memory.
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SABOTAGED_DEVICE_H_
