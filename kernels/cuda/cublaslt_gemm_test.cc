// The calls of CublasLtGemm to the library, without a GPU: a fake cuBLASLt computes on the host
// what the real one's documentation says, on column-major matrices.
#include "kernels/cuda/cublaslt_gemm.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/random_values.h"

namespace {

struct Description {
  cublasComputeType_t compute;
  std::map<int, std::vector<char>> attributes;

  template <typename T>
  T Get(cublasLtMatmulDescAttributes_t attribute, T otherwise) const {
    const auto found = attributes.find(attribute);
    if (found != attributes.end()) std::memcpy(&otherwise, found->second.data(), sizeof(T));
    return otherwise;
  }
};

struct Layout {
  int64_t rows, columns, ld;
};

// The arguments of the last calls, and the number of live objects.
int heuristics_asked = 0, alive = 0;
bool refuses_low_precision = false;
std::map<int, uint64_t> preferences;
cublasComputeType_t last_compute;

cublasStatus_t Create(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(++alive);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t Destroy(cublasLtHandle_t) { return --alive, CUBLAS_STATUS_SUCCESS; }
const char* StatusString(cublasStatus_t) { return "in the library's words"; }

cublasStatus_t DescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, {}});
  return ++alive, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t DescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<Description*>(desc);
  return --alive, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t DescSet(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                       const void* value, size_t bytes) {
  const char* const begin = static_cast<const char*>(value);
  reinterpret_cast<Description*>(desc)->attributes[attribute].assign(begin, begin + bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t LayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                            uint64_t columns, int64_t ld) {
  EXPECT_EQ(type, CUDA_R_32F);
  EXPECT_GE(ld, static_cast<int64_t>(rows));
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
  return ++alive, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t LayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return --alive, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t PreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(++alive);
  preferences.clear();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t PreferenceDestroy(cublasLtMatmulPreference_t) {
  return --alive, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t PreferenceSet(cublasLtMatmulPreference_t,
                             cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                             size_t bytes) {
  // The sizes that the library's header gives.
  EXPECT_EQ(bytes, attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8u : 4u);
  std::memcpy(&preferences[attribute], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t,
                         cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                         cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t[],
                         int* found) {
  ++heuristics_asked;
  const bool low = reinterpret_cast<Description*>(desc)->compute != CUBLAS_COMPUTE_32F;
  *found = low && refuses_low_precision ? 0 : 1;
  return *found == 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// D = epilogue(alpha op(A) op(B) + beta C), column-major; a bias has an element for every row of D.
cublasStatus_t Matmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                      cublasLtMatrixLayout_t a_layout, const void* b,
                      cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                      cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  const auto& description = *reinterpret_cast<Description*>(desc);
  const auto& la = *reinterpret_cast<Layout*>(a_layout);
  const auto& lb = *reinterpret_cast<Layout*>(b_layout);
  const auto& ld = *reinterpret_cast<Layout*>(d_layout);
  EXPECT_EQ(c, d);
  EXPECT_EQ(c_layout, d_layout);
  EXPECT_EQ(*static_cast<const float*>(alpha), 1);
  EXPECT_EQ(*static_cast<const float*>(beta), 0);
  const bool ta = description.Get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T;
  const bool tb = description.Get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
  const auto epilogue = description.Get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  const float* const bias =
      description.Get(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const float*>(nullptr));
  last_compute = description.compute;
  const int64_t inner = ta ? la.rows : la.columns;
  EXPECT_EQ(inner, tb ? lb.columns : lb.rows);
  EXPECT_EQ(ld.rows, ta ? la.columns : la.rows);
  EXPECT_EQ(ld.columns, tb ? lb.rows : lb.columns);
  const auto at = [](const void* data, const Layout& layout, int64_t r, int64_t col) {
    return static_cast<const float*>(data)[r + col * layout.ld];
  };
  for (int64_t r = 0; r < ld.rows; ++r) {
    for (int64_t col = 0; col < ld.columns; ++col) {
      const bool adds =
          epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
      float sum = adds ? bias[r] : 0;
      for (int64_t k = 0; k < inner; ++k) {
        sum +=
            (ta ? at(a, la, k, r) : at(a, la, r, k)) * (tb ? at(b, lb, col, k) : at(b, lb, k, col));
      }
      const bool clips =
          epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
      if (clips) sum = std::max(sum, 0.0f);
      static_cast<float*>(d)[r + col * ld.ld] = sum;
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

// The part of the CUDA runtime that it needs; there is no GPU.
extern "C" {
cudaError_t CUDARTAPI cudaMalloc(void** memory, size_t) {
  *memory = &alive;
  return cudaSuccess;
}
cudaError_t CUDARTAPI cudaFree(void*) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaGetLastError() { return cudaSuccess; }
}

namespace thermocline {
namespace cuda {

absl::StatusOr<const CublasLtLibrary*> LoadCublasLt() {
  static const CublasLtLibrary library = {
      Create,        Destroy,      StatusString, Matmul,           Heuristic,
      DescCreate,    DescDestroy,  DescSet,      PreferenceCreate, PreferenceDestroy,
      PreferenceSet, LayoutCreate, LayoutDestroy};
  return &library;
}

namespace {

class CublasLtGemmTest : public testing::Test {
 protected:
  // Integers, so that every order gives the same.
  std::vector<float> Integers(int64_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = static_cast<float>(rng_() % 7) - 3;
    return v;
  }

  void Test(GemmCall call, int64_t pad) {
    const bool ta = call.a_transposed, tb = call.b_transposed;
    call.lda = (ta ? call.m : call.k) + pad;
    call.ldb = (tb ? call.k : call.n) + pad;
    call.ldc = call.n + pad;
    // Matrices are the last columns of wider ones.
    const std::vector<float> wide_a = Integers((ta ? call.k : call.m) * call.lda);
    const std::vector<float> wide_b = Integers((tb ? call.n : call.k) * call.ldb);
    const std::vector<float> bias = Integers(call.n);
    const float* const a = wide_a.data() + pad;
    const float* const b = wide_b.data() + pad;
    std::vector<float> c(call.m * call.ldc, 99), expected = c;
    const bool has_bias = call.bias != nullptr;
    for (int64_t i = 0; i < call.m; ++i) {
      for (int64_t j = 0; j < call.n; ++j) {
        float sum = has_bias ? bias[j] : 0;
        for (int64_t k = 0; k < call.k; ++k) {
          sum += (ta ? a[k * call.lda + i] : a[i * call.lda + k]) *
                 (tb ? b[j * call.ldb + k] : b[k * call.ldb + j]);
        }
        expected[i * call.ldc + pad + j] = call.relu ? std::max(sum, 0.0f) : sum;
      }
    }
    call.a = a;
    call.b = b;
    call.c = c.data() + pad;
    if (has_bias) call.bias = bias.data();
    const absl::Status status = gemm_->Run(call, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(c, expected) << call.m << " " << call.n << " " << call.k << " " << ta << tb;
  }

  std::mt19937_64 rng_{TestSeed()};
  std::unique_ptr<Gemm> gemm_ = *MakeCublasLtGemm();
};

TEST_F(CublasLtGemmTest, ProductsOfRowMajorMatrices) {
  const float any = 0;
  for (int64_t m : {1, 5}) {
    for (int64_t n : {1, 3, 8}) {
      for (int64_t k : {1, 4, 7}) {
        for (int64_t pad : {0, 3}) {
          for (int transposed = 0; transposed < 3; ++transposed) {
            GemmCall call;
            call.m = m;
            call.n = n;
            call.k = k;
            call.a_transposed = transposed == 1;
            call.b_transposed = transposed == 2;
            for (bool relu : {false, true}) {
              call.relu = relu;
              call.bias = nullptr;
              Test(call, pad);
              call.bias = &any;
              Test(call, pad);
            }
          }
        }
      }
    }
  }
}

TEST_F(CublasLtGemmTest, AsksOncePerShapeAndTellsAlignments) {
  alignas(256) float a[64] = {}, b[64] = {}, c[64] = {};
  GemmCall call;
  call.m = call.n = call.k = call.lda = call.ldb = call.ldc = 4;
  call.a = a;
  call.b = b + 1;
  call.c = c + 4;
  const int before = heuristics_asked;
  for (int repeat = 0; repeat < 3; ++repeat) ASSERT_TRUE(gemm_->Run(call, nullptr).ok());
  EXPECT_EQ(heuristics_asked, before + 1);
  // The library's first operand is b.
  EXPECT_EQ(preferences[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], 4u);
  EXPECT_EQ(preferences[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES], 64u);
  EXPECT_EQ(preferences[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES], 16u);
  call.b = b;
  ASSERT_TRUE(gemm_->Run(call, nullptr).ok());
  EXPECT_EQ(heuristics_asked, before + 2);
  // Arrays of an arena begin at multiples of 64 bytes: which one must not matter.
  call.a = a + 16;
  ASSERT_TRUE(gemm_->Run(call, nullptr).ok());
  EXPECT_EQ(heuristics_asked, before + 2);
}

TEST_F(CublasLtGemmTest, FallsBackToFullPrecision) {
  GemmCall call;
  call.m = call.n = call.k = 2;
  call.precision = MlpPrecision::kTf32;
  Test(call, 0);
  EXPECT_EQ(last_compute, CUBLAS_COMPUTE_32F_FAST_TF32);
  call.precision = MlpPrecision::kBfloat16;
  Test(call, 0);
  EXPECT_EQ(last_compute, CUBLAS_COMPUTE_32F_FAST_16BF);
  EXPECT_EQ(gemm_->num_full_precision_shapes(), 0);
  refuses_low_precision = true;
  Test(call, 1);
  EXPECT_EQ(last_compute, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(gemm_->num_full_precision_shapes(), 1) << "and that is said";
  // A shape that was asked for in full precision is not counted.
  call.precision = MlpPrecision::kFloat32;
  Test(call, 1);
  EXPECT_EQ(gemm_->num_full_precision_shapes(), 1);
  refuses_low_precision = false;
}

TEST_F(CublasLtGemmTest, GivesEverythingBack) {
  Test(GemmCall{2, 2, 2}, 0);
  gemm_.reset();
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace cuda
}  // namespace thermocline
