// Matrix products of one thread, C = A B, on matrices stored in panels of columns; bf16_gemm.h has
// those whose factors are rounded to bf16.
//
// Every element of C is one chain of fused multiply-adds in ascending k, and so has the same bits
// whatever the instruction set, the blocking and the split of rows and columns over threads.
#ifndef THERMOCLINE_KERNELS_CPU_GEMM_H_
#define THERMOCLINE_KERNELS_CPU_GEMM_H_

#include <cstdint>
#include <type_traits>

namespace thermocline {

inline constexpr int kGemmPanel = 64;  // Columns of a panel.
inline constexpr int kGemmRows = 12;   // Rows of C that fill the widest tile.

constexpr int64_t NumPanels(int64_t columns) { return (columns + kGemmPanel - 1) / kGemmPanel; }

// Element (r, c) is at data[c / kGemmPanel * panel_stride + r * row_stride + c % kGemmPanel].
// In a packed view row_stride is kGemmPanel, so that each panel is contiguous; in a row-major view
// panel_stride is kGemmPanel.
template <typename T>
struct PanelView {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t panel_stride = 0;

  T* Row(int64_t r) const { return data + r * row_stride; }
  T* At(int64_t r, int64_t c) const {
    return data + c / kGemmPanel * panel_stride + r * row_stride + c % kGemmPanel;
  }
  PanelView FromRow(int64_t r) const { return {Row(r), row_stride, panel_stride}; }
  // REQUIRES: c % kGemmPanel == 0
  PanelView FromColumn(int64_t c) const { return {At(0, c), row_stride, panel_stride}; }
  PanelView<const T> AsConst() const { return {data, row_stride, panel_stride}; }
};

template <typename T>
PanelView<T> RowMajorView(T* data, int64_t ld) {
  return {data, ld, kGemmPanel};
}
// A view of panels of `rows` rows each, one after the other.
template <typename T>
PanelView<T> PackedView(T* data, int64_t rows) {
  return {data, kGemmPanel, rows * kGemmPanel};
}
constexpr int64_t PackedElements(int64_t rows, int64_t columns) {
  return NumPanels(columns) * rows * kGemmPanel;
}

// Packs one panel of b [k, n] (row-major): packed [k, kGemmPanel], zeros beyond column n.
void PackPanel(const float* b, int64_t ld, int64_t k, int64_t n, int64_t panel, float* packed);
// Packs one panel of the transpose of b [n, k]. T: float or uint32_t
template <typename T>
void PackPanelTransposed(const T* b, int64_t ld, int64_t k, int64_t n, int64_t panel, T* packed);

// A bit for each element of a matrix in packed panels: bit c of a row's word in panel p belongs to
// column 64 p + c.
template <typename Word>
struct BitsView {
  Word* data = nullptr;  // uint64_t
  int64_t rows = 0;      // Words of a panel.

  Word* At(int64_t r, int64_t panel) const { return data + panel * rows + r; }
  BitsView FromRow(int64_t r) const { return {data + r, rows}; }
  BitsView<const Word> AsConst() const { return {data, rows}; }
  // The byte of column c and the 7 after it; the next row's is 8 bytes further on.
  // REQUIRES: c % 8 == 0
  auto* ByteAt(int64_t r, int64_t c) const {
    using Byte = std::conditional_t<std::is_const_v<Word>, const char, char>;
    return reinterpret_cast<Byte*>(At(r, c / kGemmPanel)) + c % kGemmPanel / 8;
  }
};
static_assert(kGemmPanel == 64);

// A product whose factors are of type T.
template <typename T>
struct ProductCall {
  int64_t m = 0, n = 0, k = 0;
  PanelView<const T> a;  // [m, k]; or [k, m] where a_transposed
  bool a_transposed = false;
  PanelView<const T> b;  // [k, n], packed; zeros in the last panel beyond column n
  PanelView<float> c;    // [m, n]; nothing beyond column n is written
  // A chain begins with an element of `start`, which may be C itself, with bias[j], or with zero.
  PanelView<const float> start;  // [m, n] or null
  const float* bias = nullptr;   // [n] or null
  // An element of C is kept in the end where it is positive (relu), or where its bit of `keeps` is
  // set; it is zero elsewhere. With relu, `kept` gets the bits of those that are positive; beyond
  // column n it may get any.
  bool relu = false;
  BitsView<const uint64_t> keeps;  // [m, n] or null
  BitsView<uint64_t> kept;         // [m, n] or null
};
using GemmCall = ProductCall<float>;

using GemmFunction = void (*)(const GemmCall& call);
void GemmAvx2(const GemmCall& call);
void GemmAvx512(const GemmCall& call);

// Whether this machine can run GemmAvx512.
bool HasAvx512();

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_GEMM_H_
