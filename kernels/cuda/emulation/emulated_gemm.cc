#include "kernels/cuda/emulation/emulated_gemm.h"

#include <algorithm>
#include <vector>

#include "common/check.h"

namespace thermocline {
namespace emulated_cuda {
namespace {

void Multiply(const GemmCall& call) {
  std::vector<float> transposed;  // b as [k, n]
  const float* b = call.b;
  int64_t ldb = call.ldb;
  if (call.b_transposed) {
    transposed.resize(call.k * call.n);
    for (int64_t j = 0; j < call.n; ++j) {
      for (int64_t p = 0; p < call.k; ++p) transposed[p * call.n + j] = call.b[j * call.ldb + p];
    }
    b = transposed.data();
    ldb = call.n;
  }
  std::vector<float> row(call.n);
  for (int64_t i = 0; i < call.m; ++i) {
    std::fill(row.begin(), row.end(), 0.0f);
    for (int64_t p = 0; p < call.k; ++p) {
      const float scale = call.a_transposed ? call.a[p * call.lda + i] : call.a[i * call.lda + p];
      const float* const from = b + p * ldb;
      for (int64_t j = 0; j < call.n; ++j) row[j] += scale * from[j];
    }
    float* const to = call.c + i * call.ldc;
    for (int64_t j = 0; j < call.n; ++j) {
      const float value = call.bias == nullptr ? row[j] : row[j] + call.bias[j];
      to[j] = call.relu && !(value > 0) ? 0.0f : value;
    }
  }
}

}  // namespace

absl::Status EmulatedGemm::Run(const GemmCall& call, cudaStream_t stream) {
  CHECK(call.m > 0 && call.n > 0 && call.k > 0);
  CHECK(!call.relu || call.bias != nullptr);
  Enqueue(stream, [call] { Multiply(call); });
  return absl::OkStatus();
}

}  // namespace emulated_cuda
}  // namespace thermocline
