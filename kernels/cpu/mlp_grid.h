// What the MLPs of this device share: their matrices in panels, and how their passes are divided
// among threads, on which no bit depends (gemm.h).
#ifndef THERMOCLINE_KERNELS_CPU_MLP_GRID_H_
#define THERMOCLINE_KERNELS_CPU_MLP_GRID_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_buffer.h"
#include "kernels/cpu/gemm.h"
#include "kernels/matrix.h"
#include "kernels/mlp.h"

namespace thermocline {

// The most samples in one block of the chained passes: a block's widest activations and a weight
// panel fit L2.
inline constexpr int64_t kBlockRows = 168;
// Samples of one step of the weight gradients' sum over the batch, and columns of one cell: the
// cell's gradient and the step's activations stay in L2.
inline constexpr int64_t kGradientChunk = kSegmentChunk;
inline constexpr int32_t kGradientRows = 4 * kGemmPanel;
inline constexpr int32_t kGradientColumns = 4 * kGemmPanel;

// The grid of a pass over the batch: blocks are whole tiles of rows, and enough of them that no
// thread waits long for the last. Each begins with an even row.
struct RowGrid {
  int64_t rows, tiles, cells;

  RowGrid(int64_t rows, int num_threads) : rows(rows) {
    tiles = (rows + kGemmRows - 1) / kGemmRows;
    cells = (rows + kBlockRows - 1) / kBlockRows;
    cells = (cells + num_threads - 1) / num_threads * num_threads;
    cells = std::min(cells, tiles);
  }
  int64_t Begin(int64_t cell) const { return std::min(cell * tiles / cells * kGemmRows, rows); }
};

// Bf16Mlp keeps two samples in a pair: blocks and chunks begin with even ones.
static_assert(kGemmRows % 2 == 0 && kBlockRows % kGemmRows == 0 && kGradientChunk % 2 == 0);

// A part of one layer's weight gradient; both firsts are multiples of kGemmPanel.
struct GradientCell {
  int layer = 0;
  int32_t first_row = 0, num_rows = 0;
  int32_t first_column = 0, num_columns = 0;
};

// The cells of all layers, the longest first, so that the threads finish at about the same time.
std::vector<GradientCell> GradientCellsOf(const std::vector<MlpLayer>& layers);

// The panels of several layers as one range of numbers.
//   panels[i]: how many layer i has
class PanelGrid {
 public:
  explicit PanelGrid(std::vector<int64_t> panels) : panels_(std::move(panels)) {}

  int64_t cells() const;
  // The layer of a cell, and the number of its panel there.
  std::pair<int, int64_t> Find(int64_t cell) const;

 private:
  const std::vector<int64_t> panels_;
};

// A matrix in panels of kGemmPanel columns (gemm.h), with memory of its own, zero at first.
template <typename T>
class PanelMatrix {
 public:
  void Allocate(int64_t rows, int64_t columns) {
    rows_ = rows;
    buffer_ = std::make_unique<CpuBuffer>(sizeof(T) * PackedElements(rows, columns));
  }
  PanelView<T> View() const { return PackedView(data(), rows_); }
  T* Panel(int64_t panel) const { return data() + panel * rows_ * kGemmPanel; }

 private:
  T* data() const { return static_cast<T*>(buffer_->data()); }

  std::unique_ptr<CpuBuffer> buffer_;
  int64_t rows_ = 0;
};

// A bit for each element of a matrix, with memory of its own.
class BitMatrix {
 public:
  void Allocate(int64_t rows, int64_t columns) {
    rows_ = rows;
    buffer_ = std::make_unique<CpuBuffer>(sizeof(uint64_t) * NumPanels(columns) * rows);
  }
  BitsView<uint64_t> View() const { return {static_cast<uint64_t*>(buffer_->data()), rows_}; }

 private:
  std::unique_ptr<CpuBuffer> buffer_;
  int64_t rows_ = 0;
};

inline PanelView<float> ViewOf(Matrix matrix) { return RowMajorView(matrix.floats(), matrix.ld); }

// Sets rows [begin, end) of `gradient` to zero where `output` isn't positive.
void ZeroWhereNotPositive(Matrix output, int64_t begin, int64_t end, Matrix gradient);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_MLP_GRID_H_
