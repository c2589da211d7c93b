#include "kernels/cuda/cublaslt_gemm.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace cuda {
namespace {

// NVIDIA advises so much for Hopper; other GPUs need less.
constexpr size_t kWorkspaceBytes = 32 << 20;

// The largest power of two that divides an address, up to what every array of an arena has
// (kernels/transfer.cc): an array's place in its arena must not change the algorithm, and so the
// bits.
uint32_t AlignmentOf(const void* pointer) {
  constexpr uintptr_t kMost = 64;
  const auto address = reinterpret_cast<uintptr_t>(pointer) | kMost;
  return static_cast<uint32_t>(address & -address);
}

// All that the choice of an algorithm depends on.
using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, bool,
                         bool, MlpPrecision, uint32_t, uint32_t, uint32_t>;

Shape ShapeOf(const GemmCall& c) {
  return Shape(c.m, c.n, c.k, c.lda, c.ldb, c.ldc, c.a_transposed, c.b_transposed,
               c.bias != nullptr, c.relu, c.precision, AlignmentOf(c.a), AlignmentOf(c.b),
               AlignmentOf(c.c));
}

cublasComputeType_t ComputeTypeOf(MlpPrecision precision) {
  switch (precision) {
    case MlpPrecision::kFloat32:
      return CUBLAS_COMPUTE_32F;
    case MlpPrecision::kTf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case MlpPrecision::kBfloat16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
  }
  CHECK(false);
}

// What the library does to the product.
cublasLtEpilogue_t EpilogueOf(const GemmCall& call) {
  if (call.bias == nullptr) return call.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
  return call.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
}

// The library's objects for one shape. It sees every row-major matrix as the transpose of a
// column-major one, so it computes c^T [n, m] = b^T a^T: its first operand is b, its second a.
struct Plan {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

class CublasLtGemm : public Gemm {
 public:
  explicit CublasLtGemm(const CublasLtLibrary* library) : lt_(*library) {}
  CublasLtGemm(const CublasLtGemm&) = delete;
  CublasLtGemm& operator=(const CublasLtGemm&) = delete;
  ~CublasLtGemm() override {
    for (auto& [shape, plan] : plans_) Destroy(&plan);
    if (handle_ != nullptr) lt_.cublasLtDestroy(handle_);
    static_cast<void>(cudaFree(workspace_));
  }

  absl::Status Init() {
    RETURN_IF_ERROR(Check(lt_.cublasLtCreate(&handle_), "cublasLtCreate"));
    if (cudaMalloc(&workspace_, kWorkspaceBytes) == cudaSuccess) return absl::OkStatus();
    static_cast<void>(cudaGetLastError());
    return absl::ResourceExhaustedError("no device memory for cuBLASLt's workspace");
  }

  absl::Status Run(const GemmCall& call, cudaStream_t stream) override {
    CHECK(call.m > 0 && call.n > 0 && call.k > 0);
    const Shape shape = ShapeOf(call);
    auto found = plans_.find(shape);
    if (found == plans_.end()) {
      Plan plan;
      absl::Status status = MakePlan(call, call.precision, &plan);
      // Some alignments have no algorithm in the lower precisions.
      if (!status.ok() && call.precision != MlpPrecision::kFloat32) {
        Destroy(&plan);
        status = MakePlan(call, MlpPrecision::kFloat32, &plan);
        if (status.ok()) num_full_precision_shapes_.fetch_add(1, std::memory_order_relaxed);
      }
      if (!status.ok()) {
        Destroy(&plan);
        return status;
      }
      found = plans_.emplace(shape, plan).first;
    }
    const Plan& plan = found->second;
    RETURN_IF_ERROR(SetBias(call, plan));
    const float one = 1, zero = 0;
    return Check(lt_.cublasLtMatmul(handle_, plan.description, &one, call.b, plan.first, call.a,
                                    plan.second, &zero, call.c, plan.result, call.c, plan.result,
                                    &plan.algorithm, workspace_, kWorkspaceBytes, stream),
                 "cublasLtMatmul");
  }

  int64_t num_full_precision_shapes() const override {
    return num_full_precision_shapes_.load(std::memory_order_relaxed);
  }

 private:
  absl::Status Check(cublasStatus_t status, absl::string_view function) const {
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(function, ": ", lt_.cublasLtGetStatusString(status)));
  }

  template <typename T>
  absl::Status Set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                   T value) const {
    return Check(lt_.cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute");
  }

  absl::Status SetBias(const GemmCall& call, const Plan& plan) const {
    if (call.bias == nullptr) return absl::OkStatus();
    return Set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
               static_cast<const void*>(call.bias));
  }

  absl::Status MakePlan(const GemmCall& call, MlpPrecision precision, Plan* plan) const {
    RETURN_IF_ERROR(Check(
        lt_.cublasLtMatmulDescCreate(&plan->description, ComputeTypeOf(precision), CUDA_R_32F),
        "cublasLtMatmulDescCreate"));
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    RETURN_IF_ERROR(
        Set(plan->description, CUBLASLT_MATMUL_DESC_TRANSA, operation(call.b_transposed)));
    RETURN_IF_ERROR(
        Set(plan->description, CUBLASLT_MATMUL_DESC_TRANSB, operation(call.a_transposed)));
    RETURN_IF_ERROR(Set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(call)));
    RETURN_IF_ERROR(SetBias(call, *plan));
    // Column-major: the rows and columns as stored; `transposed` operands are stored transposed.
    const auto layout = [this](cublasLtMatrixLayout_t* to, int64_t rows, int64_t columns,
                               int64_t ld) {
      return Check(lt_.cublasLtMatrixLayoutCreate(to, CUDA_R_32F, static_cast<uint64_t>(rows),
                                                  static_cast<uint64_t>(columns), ld),
                   "cublasLtMatrixLayoutCreate");
    };
    const bool ta = call.a_transposed, tb = call.b_transposed;
    RETURN_IF_ERROR(layout(&plan->first, tb ? call.k : call.n, tb ? call.n : call.k, call.ldb));
    RETURN_IF_ERROR(layout(&plan->second, ta ? call.m : call.k, ta ? call.k : call.m, call.lda));
    RETURN_IF_ERROR(layout(&plan->result, call.n, call.m, call.ldc));
    return ChooseAlgorithm(call, plan);
  }

  absl::Status ChooseAlgorithm(const GemmCall& call, Plan* plan) const {
    cublasLtMatmulPreference_t preference = nullptr;
    RETURN_IF_ERROR(
        Check(lt_.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
    // Failures of these show in the heuristic's answer.
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      lt_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(call.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(call.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(call.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(call.c));
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    const cublasStatus_t status = lt_.cublasLtMatmulAlgoGetHeuristic(
        handle_, plan->description, plan->first, plan->second, plan->result, plan->result,
        preference, 1, &result, &found);
    lt_.cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && found > 0) {
      plan->algorithm = result.algo;
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("cuBLASLt has no algorithm for ", call.m, " x ", call.n,
                                            " x ", call.k, ": ",
                                            lt_.cublasLtGetStatusString(status)));
  }

  void Destroy(Plan* plan) const {
    for (cublasLtMatrixLayout_t layout : {plan->first, plan->second, plan->result}) {
      if (layout != nullptr) lt_.cublasLtMatrixLayoutDestroy(layout);
    }
    if (plan->description != nullptr) lt_.cublasLtMatmulDescDestroy(plan->description);
    *plan = Plan();
  }

  const CublasLtLibrary& lt_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Shape, Plan> plans_;
  std::atomic<int64_t> num_full_precision_shapes_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasLtGemm() {
  ASSIGN_OR_RETURN(const CublasLtLibrary* const library, LoadCublasLt());
  auto gemm = std::make_unique<CublasLtGemm>(library);
  RETURN_IF_ERROR(gemm->Init());
  return std::unique_ptr<Gemm>(std::move(gemm));
}

}  // namespace cuda
}  // namespace thermocline
