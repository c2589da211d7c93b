#include "kernels/cpu/mlp_grid.h"

#include <numeric>

namespace thermocline {

std::vector<GradientCell> GradientCellsOf(const std::vector<MlpLayer>& layers) {
  std::vector<GradientCell> cells;
  for (size_t i = 0; i < layers.size(); ++i) {
    const MlpLayer& layer = layers[i];
    // Rows are split evenly, in whole panels.
    const int32_t parts = (layer.in + kGradientRows - 1) / kGradientRows;
    const int64_t panels = NumPanels(layer.in);
    for (int32_t column = 0; column < layer.out; column += kGradientColumns) {
      for (int32_t part = 0; part < parts; ++part) {
        const auto row = static_cast<int32_t>(part * panels / parts * kGemmPanel);
        const auto end = static_cast<int32_t>((part + 1) * panels / parts * kGemmPanel);
        cells.push_back({static_cast<int>(i), row, std::min(end, layer.in) - row, column,
                         std::min(kGradientColumns, layer.out - column)});
      }
    }
  }
  std::stable_sort(cells.begin(), cells.end(), [](const GradientCell& a, const GradientCell& b) {
    return int64_t{a.num_rows} * a.num_columns > int64_t{b.num_rows} * b.num_columns;
  });
  return cells;
}

int64_t PanelGrid::cells() const {
  return std::accumulate(panels_.begin(), panels_.end(), int64_t{0});
}

std::pair<int, int64_t> PanelGrid::Find(int64_t cell) const {
  int layer = 0;
  for (; cell >= panels_[layer]; ++layer) cell -= panels_[layer];
  return {layer, cell};
}

void ZeroWhereNotPositive(Matrix output, int64_t begin, int64_t end, Matrix gradient) {
  for (int64_t r = begin; r < end; ++r) {
    for (int32_t j = 0; j < output.cols; ++j) {
      if (!(output.row(r)[j] > 0)) gradient.row(r)[j] = 0;
    }
  }
}

}  // namespace thermocline
