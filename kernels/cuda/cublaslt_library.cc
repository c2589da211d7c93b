#include <dlfcn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cuda_library_folder.h"
#include "kernels/cuda/cublaslt_gemm.h"

namespace thermocline {
namespace cuda {
namespace {

absl::StatusOr<CublasLtLibrary> Load() {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* handle = nullptr;
  std::string errors;
  for (const std::string& path : {name, absl::StrCat(THERMOCLINE_CUDA_LIBRARY_FOLDER "/", name)}) {
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", dlerror());
  }
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("cannot load cuBLASLt: ", errors));
  }
  CublasLtLibrary library;
#define THERMOCLINE_LOAD(function)                                                      \
  library.function = reinterpret_cast<decltype(&::function)>(dlsym(handle, #function)); \
  if (library.function == nullptr) {                                                    \
    return absl::FailedPreconditionError(                                               \
        absl::StrCat("cuBLASLt has no ", #function, ": ", dlerror()));                  \
  }
  THERMOCLINE_CUBLASLT_FUNCTIONS(THERMOCLINE_LOAD)
#undef THERMOCLINE_LOAD
  return library;
}

}  // namespace

absl::StatusOr<const CublasLtLibrary*> LoadCublasLt() {
  static const absl::StatusOr<CublasLtLibrary>* const library =
      new absl::StatusOr<CublasLtLibrary>(Load());
  if (!library->ok()) return library->status();
  return &**library;
}

}  // namespace cuda
}  // namespace thermocline
