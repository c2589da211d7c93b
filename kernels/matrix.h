// Device memory, and views of it. Views own nothing; on the CPU device they point to host memory.
#ifndef THERMOCLINE_KERNELS_MATRIX_H_
#define THERMOCLINE_KERNELS_MATRIX_H_

#include <cstdint>

namespace thermocline {

enum class DataType : uint8_t { kFloat32 };

// Leading dimensions of activations are multiples of this many elements; the padding holds zeros.
inline constexpr int kLeadingDimensionAlignment = 8;

constexpr int32_t PaddedColumns(int32_t columns) {
  return (columns + kLeadingDimensionAlignment - 1) / kLeadingDimensionAlignment *
         kLeadingDimensionAlignment;
}

// Device memory, zero at first. It may be destroyed on any thread; a GPU's memory is then freed by
// the thread that calls the device's operations, before it allocates more (stream_device.h).
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual void* data() = 0;
  float* floats() { return static_cast<float*>(data()); }
};

// Element (r, c) is at data[r * ld + c].
struct Matrix {
  void* data = nullptr;
  int32_t rows = 0;
  int32_t cols = 0;
  int64_t ld = 0;  // In elements. REQUIRES: ld >= cols
  DataType dtype = DataType::kFloat32;

  float* floats() const { return static_cast<float*>(data); }
  float* row(int64_t r) const { return floats() + r * ld; }
};

inline Matrix FloatMatrix(float* data, int32_t rows, int32_t cols, int64_t ld) {
  return Matrix{data, rows, cols, ld, DataType::kFloat32};
}
inline Matrix FloatMatrix(float* data, int32_t rows, int32_t cols) {
  return FloatMatrix(data, rows, cols, cols);
}

template <typename T>
struct DeviceSpan {
  T* data = nullptr;
  int64_t size = 0;

  bool empty() const { return size == 0; }
  T& operator[](int64_t i) const { return data[i]; }
  DeviceSpan<const T> AsConst() const { return {data, size}; }
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_MATRIX_H_
