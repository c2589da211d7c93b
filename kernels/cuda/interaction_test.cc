// Interactions and loss gradients on the device have the bits of the CPU's; the loss itself is a
// sum in another fixed order.
#include <cmath>
#include <string>

#include "kernels/cuda/testing/test_device.h"

namespace thermocline {
namespace {

class InteractionTest : public KernelsTest {
 protected:
  void Test(int32_t batch, int32_t vectors, int32_t dim, int64_t pad) {
    const int32_t columns = vectors * dim, outputs = dim + vectors * (vectors - 1) / 2;
    const int64_t ld = PaddedColumns(columns) + pad, output_ld = PaddedColumns(outputs) + pad;
    const std::vector<float> z = RandomFloats(&rng_, batch * ld);
    const std::vector<float> gradient = RandomFloats(&rng_, batch * output_ld);
    const std::vector<float> output(batch * output_ld, 77);
    const std::vector<float> z_gradient(batch * ld, 77);
    const std::string what = "batch " + std::to_string(batch) + ", " + std::to_string(vectors) +
                             " vectors of " + std::to_string(dim);
    ExpectSameBits(what + ", forward", [&](Device* device, Uploads* uploads) {
      float* const to = uploads->Put(output);
      device->InteractionForward(FloatMatrix(uploads->Put(z), batch, columns, ld), vectors,
                                 FloatMatrix(to, batch, outputs, output_ld));
      return uploads->Get(to, output.size());
    });
    ExpectSameBits(what + ", backward", [&](Device* device, Uploads* uploads) {
      float* const to = uploads->Put(z_gradient);
      device->InteractionBackward(FloatMatrix(uploads->Put(z), batch, columns, ld), vectors,
                                  FloatMatrix(uploads->Put(gradient), batch, outputs, output_ld),
                                  FloatMatrix(to, batch, columns, ld));
      return uploads->Get(to, z_gradient.size());
    });
  }
};

TEST_F(InteractionTest, ForwardAndBackward) {
  for (int32_t dim : {1, 8, 16, 17, 20, 64, 128}) {
    for (int32_t vectors : {1, 2, 7}) {
      Test(3, vectors, dim, 0);
      Test(2, vectors, dim, 1);
    }
  }
  Test(0, 4, 16, 0);
  Test(1, 27, 16, 0);
  Test(70, 27, 16, 0);
  Test(2, 100, 8, 0);
  Test(2, 27, 512, 0);  // Too large to be staged.
  Test(2, 27, 511, 0);
}

TEST_F(InteractionTest, KeepsZerosOfBothSigns) {
  const std::vector<float> z = {-0.0f, 1, 0, -1, -1, 0, 1, -0.0f};
  ExpectSameBits("zeros", [&](Device* device, Uploads* uploads) {
    float* const to = uploads->Put(std::vector<float>(8, 77));
    device->InteractionForward(FloatMatrix(uploads->Put(z), 1, 8), 4, FloatMatrix(to, 1, 8));
    return uploads->Get(to, 8);
  });
}

TEST_F(InteractionTest, BceWithLogits) {
  for (int32_t batch : {0, 1, 255, 256, 257, 70000}) {
    for (int64_t ld : {1, 8}) {
      const bool has_weights = ld == 8;
      std::vector<float> logits = RandomFloats(&rng_, batch * ld, 30);
      std::vector<float> labels(batch), weights(batch);
      for (float& weight : weights) weight = static_cast<float>(rng_() % 100) / 7;
      for (float& label : labels) label = rng_() % 3 == 0 ? 1.0f : 0.0f;
      if (batch > 100) {
        logits[7 * ld] = 800;
        logits[9 * ld] = -800;
        logits[11 * ld] = 0;
      }
      std::vector<double> losses;
      ExpectSameBits("gradients", [&](Device* device, Uploads* uploads) {
        float* const gradient = uploads->Put(std::vector<float>(batch * ld, 77));
        double* const loss = uploads->Put(std::vector<double>{77});
        device->BceWithLogits(FloatMatrix(uploads->Put(logits), batch, 1, ld),
                              uploads->PutSpan(labels),
                              has_weights ? uploads->PutSpan(weights) : DeviceSpan<const float>{},
                              1.0f / 64, FloatMatrix(gradient, batch, 1, ld), {loss, 1});
        losses.push_back(uploads->Get(loss, 1)[0]);
        return uploads->Get(gradient, batch * ld);
      });
      EXPECT_NEAR(losses[1], losses[0], 1e-12 * (1 + losses[0])) << "batch " << batch;
    }
  }
}

}  // namespace
}  // namespace thermocline
