#include "kernels/mlp.h"

#include "common/base/check.h"

namespace thermocline {

std::vector<MlpLayer> LayersOf(const MlpConfig& config) {
  CHECK_GE(config.widths.size(), size_t{2});
  const size_t num_layers = config.widths.size() - 1;
  CHECK_EQ(config.weight_offsets.size(), num_layers);
  CHECK_EQ(config.bias_offsets.size(), num_layers);
  std::vector<MlpLayer> layers(num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    MlpLayer& layer = layers[i];
    layer.in = config.widths[i];
    layer.out = config.widths[i + 1];
    CHECK_GT(layer.in, 0);
    CHECK_GT(layer.out, 0);
    layer.relu = i + 1 < num_layers || config.relu_after_last;
    layer.input_gradient = i > 0 || config.input_gradient;
    layer.weight_offset = config.weight_offsets[i];
    layer.bias_offset = config.bias_offsets[i];
  }
  return layers;
}

}  // namespace thermocline
