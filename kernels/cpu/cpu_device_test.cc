#include "kernels/cpu/cpu_device.h"

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/math/table_spec.h"
#include "gtest/gtest.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

TEST(CpuDeviceTest, MemoryIsZeroAndCopies) {
  const std::unique_ptr<Device> device = MakeCpuDevice({1, CpuIsaLimit::kAuto});
  for (size_t floats : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    const std::unique_ptr<DeviceBuffer> buffer = device->Allocate(floats * sizeof(float));
    std::vector<float> host(floats, 7);
    device->CopyToHost(host.data(), buffer->data(), floats * sizeof(float), Stream::kCompute);
    EXPECT_EQ(host, std::vector<float>(floats, 0.0f));
    host[floats - 1] = 3;
    device->CopyToDevice(buffer->data(), host.data(), floats * sizeof(float), Stream::kCompute);
    EXPECT_EQ(buffer->floats()[floats - 1], 3);
  }
  EXPECT_TRUE(device->Synchronize().ok());
}

// Blocks of a dense arena are rows of a dense table: the same update, whatever the threads.
TEST(CpuDeviceTest, DenseUpdateIsTheRowUpdateOfEveryBlock) {
  std::mt19937_64 rng(TestSeed());
  const int64_t blocks = 150;
  for (OptimizerKind kind : kAllOptimizerKinds) {
    OptimizerConfig config;
    config.kind = kind;
    const int64_t state_floats = StateFloats(config, kDenseBlockFloats);
    const UpdateScalars scalars = ScalarsForStep(config, 0.1f, Step(3));
    const std::vector<float> gradients = RandomFloats(&rng, blocks * kDenseBlockFloats);
    const std::vector<float> weights = RandomFloats(&rng, blocks * kDenseBlockFloats);
    std::vector<float> state(blocks * state_floats, 0.5f);
    std::vector<float> expected_weights = weights, expected_state = state;
    for (int64_t b = 0; b < blocks; ++b) {
      UpdateRow(scalars, &gradients[b * kDenseBlockFloats], /*lookups=*/0,
                &expected_weights[b * kDenseBlockFloats], expected_state.data() + b * state_floats,
                kDenseBlockFloats);
    }
    for (int threads : {1, 2, 4}) {
      const std::unique_ptr<Device> device = MakeCpuDevice({threads, CpuIsaLimit::kAuto});
      std::vector<float> w = weights, s = state;
      device->DenseUpdate(config, scalars, {gradients.data(), blocks * kDenseBlockFloats},
                          {w.data(), blocks * kDenseBlockFloats},
                          {s.data(), blocks * state_floats});
      EXPECT_EQ(std::memcmp(w.data(), expected_weights.data(), w.size() * sizeof(float)), 0);
      EXPECT_EQ(s, expected_state);
      EXPECT_NE(w, weights);
    }
  }
}

TEST(CpuDeviceTest, BceFillsLossAndGradient) {
  const std::unique_ptr<Device> device = MakeCpuDevice({2, CpuIsaLimit::kAuto});
  std::vector<float> logits = {0, 0, 0}, labels = {1, 0, 1}, gradient(3, 77);
  double loss = 77;
  device->BceWithLogits(FloatMatrix(logits.data(), 3, 1), {labels.data(), 3}, {}, 0.5f,
                        FloatMatrix(gradient.data(), 3, 1), {&loss, 1});
  EXPECT_NEAR(loss, 3 * 0.6931471805599453, 1e-12);
  EXPECT_EQ(gradient, std::vector<float>({-0.25f, 0.25f, -0.25f}));
  // Weighted, and divided by the number of samples all the same.
  const std::vector<float> weights = {2, 0, 0.5f};
  device->BceWithLogits(FloatMatrix(logits.data(), 3, 1), {labels.data(), 3}, {weights.data(), 3},
                        0.5f, FloatMatrix(gradient.data(), 3, 1), {&loss, 1});
  EXPECT_NEAR(loss, 2.5 * 0.6931471805599453, 1e-12);
  EXPECT_EQ(gradient, std::vector<float>({-0.5f, 0, -0.125f}));
}

}  // namespace
}  // namespace thermocline
