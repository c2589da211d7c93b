#include "kernels/cuda/cuda_ceiling.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/cublaslt_gemm.h"
#include "kernels/cuda/launch.h"

namespace thermocline {
namespace {

constexpr size_t kCopyBytes = size_t{512} << 20;
constexpr int64_t kRandomFloats = 1 << 20;  // repeated to fill larger memory
constexpr int kRuns = 10;
constexpr int kTimesPerRun = 10;

absl::Status Check(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: ", cudaGetErrorString(error)));
}

// The least seconds of `work` on the default stream.
absl::StatusOr<double> LeastSeconds(const std::function<absl::Status()>& work) {
  cudaEvent_t begin, end;
  RETURN_IF_ERROR(Check(cudaEventCreate(&begin)));
  RETURN_IF_ERROR(Check(cudaEventCreate(&end)));
  double least = 1e30;
  for (int run = -1; run < kRuns; ++run) {  // The first warms up.
    RETURN_IF_ERROR(Check(cudaEventRecord(begin)));
    for (int i = 0; i < kTimesPerRun; ++i) RETURN_IF_ERROR(work());
    RETURN_IF_ERROR(Check(cudaEventRecord(end)));
    RETURN_IF_ERROR(Check(cudaEventSynchronize(end)));
    float milliseconds = 0;
    RETURN_IF_ERROR(Check(cudaEventElapsedTime(&milliseconds, begin, end)));
    if (run >= 0) least = std::min(least, 1e-3 * milliseconds / kTimesPerRun);
  }
  static_cast<void>(cudaEventDestroy(begin));
  static_cast<void>(cudaEventDestroy(end));
  return least;
}

// Memory of random values in [-1, 1), from a fixed seed: a GPU runs faster on zeros, which flip no
// bits and so leave it power for a higher clock, than on anything that training computes with.
std::unique_ptr<DeviceBuffer> Random(Device* device, int64_t floats) {
  std::vector<float> values(std::min(floats, kRandomFloats));
  std::mt19937 random(1);
  for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random);
  std::unique_ptr<DeviceBuffer> buffer = device->Allocate(sizeof(float) * floats);
  if (buffer->data() == nullptr) return buffer;
  for (int64_t begin = 0; begin < floats; begin += kRandomFloats) {
    device->CopyToDevice(buffer->floats() + begin, values.data(),
                         sizeof(float) * std::min(floats - begin, kRandomFloats), Stream::kCompute);
  }
  return buffer;
}

}  // namespace

absl::StatusOr<double> MeasureCudaCopy(const CudaDeviceOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeCudaDevice(options));
  const auto from = Random(device.get(), kCopyBytes / sizeof(float));
  const auto to = device->Allocate(kCopyBytes);
  RETURN_IF_ERROR(device->Synchronize());
  ASSIGN_OR_RETURN(const double seconds, LeastSeconds([&] {
                     return Check(cudaMemcpyAsync(to->data(), from->data(), kCopyBytes,
                                                  cudaMemcpyDeviceToDevice));
                   }));
  return 2.0 * kCopyBytes / seconds;
}

absl::StatusOr<double> MeasureCudaProducts(const CudaDeviceOptions& options,
                                           absl::Span<const ProductShape> shapes,
                                           MlpPrecision precision) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeCudaDevice(options));
  ASSIGN_OR_RETURN(const std::unique_ptr<cuda::Gemm> gemm, cuda::MakeCublasLtGemm());
  int64_t floats = 1;
  for (const ProductShape& s : shapes) {
    floats = std::max({floats, s.m * s.n, s.m * s.k, s.k * s.n});
  }
  const auto a = Random(device.get(), floats), b = Random(device.get(), floats);
  const auto c = device->Allocate(sizeof(float) * floats);
  RETURN_IF_ERROR(device->Synchronize());
  return LeastSeconds([&] {
    for (const ProductShape& s : shapes) {
      cuda::GemmCall call;
      call.m = s.m;
      call.n = s.n;
      call.k = s.k;
      call.a = a->floats();
      call.lda = s.k;
      call.b = b->floats();
      call.ldb = s.n;
      call.c = c->floats();
      call.ldc = s.n;
      call.precision = precision;
      RETURN_IF_ERROR(gemm->Run(call, nullptr));
    }
    return absl::OkStatus();
  });
}

}  // namespace thermocline
