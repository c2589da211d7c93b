#include "kernels/cuda/emulation/emulated_device.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gpu_driver.h"
#include "kernels/cuda/stream_device.h"

namespace thermocline {
namespace emulated_cuda {
namespace {

EmulatedDriverOptions& Driver() {
  static EmulatedDriverOptions* const driver = new EmulatedDriverOptions;
  return *driver;
}

// A factor as tensor cores take it: to the nearest value with so many bits of mantissa, ties to
// even.
float Rounded(float value, MlpPrecision precision) {
  if (precision == MlpPrecision::kFloat32) return value;
  const int dropped_bits = precision == MlpPrecision::kTf32 ? 13 : 16;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits += (1u << (dropped_bits - 1)) - 1 + (bits >> dropped_bits & 1);
  bits = bits >> dropped_bits << dropped_bits;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Products are added so many at a time: k is padded with zeros to a multiple of it.
constexpr int64_t kUnrolled = 4;

// A factor, rounded and not transposed any more: [rows, columns], of which as much as [from_rows,
// from_columns] is there and the rest zero.
std::vector<float> Factor(const float* from, int64_t ld, bool transposed, int64_t from_rows,
                          int64_t from_columns, int64_t rows, int64_t columns,
                          MlpPrecision precision) {
  std::vector<float> to(rows * columns);
  for (int64_t r = 0; r < from_rows; ++r) {
    for (int64_t c = 0; c < from_columns; ++c) {
      to[r * columns + c] = Rounded(transposed ? from[c * ld + r] : from[r * ld + c], precision);
    }
  }
  return to;
}

void Multiply(const GemmCall& call) {
  const int64_t n = call.n, k = CeilDiv(call.k, kUnrolled) * kUnrolled;
  const std::vector<float> a =
      Factor(call.a, call.lda, call.a_transposed, call.m, call.k, call.m, k, call.precision);
  const std::vector<float> b =
      Factor(call.b, call.ldb, call.b_transposed, call.k, n, k, n, call.precision);
  std::vector<float> sums(n);
  for (int64_t i = 0; i < call.m; ++i) {
    float* const row = sums.data();
    std::fill_n(row, n, 0.0f);
    for (int64_t p = 0; p < k; p += kUnrolled) {
      const float* const x = &a[i * k + p];
      const float* const y = &b[p * n];
      for (int64_t j = 0; j < n; ++j) {
        row[j] += x[0] * y[j] + x[1] * y[n + j] + (x[2] * y[2 * n + j] + x[3] * y[3 * n + j]);
      }
    }
    float* const to = call.c + i * call.ldc;
    for (int64_t j = 0; j < n; ++j) {
      const float value = call.bias == nullptr ? row[j] : row[j] + call.bias[j];
      to[j] = call.relu && !(value > 0) ? 0.0f : value;
    }
  }
}

// Plain loops over factors rounded to the call's precision.
class EmulatedGemm : public Gemm {
 public:
  absl::Status Run(const GemmCall& call, cudaStream_t stream) override {
    CHECK(call.m > 0 && call.n > 0 && call.k > 0);
    Enqueue(stream, [call] { Multiply(call); });
    return absl::OkStatus();
  }
};

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  const EmulatedDriverOptions& driver = Driver();
  if (driver.driver_version < driver.runtime_version) return cudaErrorInsufficientDriver;
  *count = static_cast<int>(driver.compute_capabilities.size());
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Driver().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = Driver().runtime_version;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  const std::vector<int>& gpus = Driver().compute_capabilities;
  if (ordinal < 0 || ordinal >= static_cast<int>(gpus.size())) return cudaErrorInvalidDevice;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? gpus[ordinal] / 10 : gpus[ordinal] % 10;
  return cudaSuccess;
}

}  // namespace emulated_cuda

absl::StatusOr<int> CountEmulatedGpus(const EmulatedDriverOptions& options) {
  emulated_cuda::Driver() = options;
  return emulated_cuda::CountGpus();
}

absl::StatusOr<std::vector<int>> UsableEmulatedGpus(const EmulatedDriverOptions& options) {
  emulated_cuda::Driver() = options;
  return emulated_cuda::UsableGpus();
}

std::unique_ptr<Device> MakeEmulatedCudaDevice(const EmulatedDeviceOptions& options) {
  const int ordinal = emulated_cuda::MakeEmulatedDevice(options.memory_bytes, options.seed,
                                                        options.refuses_captures);
  return std::make_unique<emulated_cuda::StreamDevice>(
      ordinal, std::make_unique<emulated_cuda::EmulatedGemm>(),
      options.initial_scratch_bytes.value_or(emulated_cuda::kInitialScratchBytes));
}

int64_t NumEmulatedGraphLaunches() { return emulated_cuda::NumGraphLaunches(); }
int64_t NumEmulatedHostAllocations() { return emulated_cuda::NumHostAllocations(); }
int64_t NumEmulatedSpinningWaits() { return emulated_cuda::NumSpinningWaits(); }

}  // namespace thermocline
