// The first error of a device. Operations check ok() before they begin, so that nothing runs
// between an error and the call that returns it.
#ifndef THERMOCLINE_KERNELS_CUDA_FIRST_ERROR_H_
#define THERMOCLINE_KERNELS_CUDA_FIRST_ERROR_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/launch.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

class FirstError {
 public:
  bool ok() const { return status_.ok(); }

  void Record(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Record(cudaError_t error, absl::string_view operation) {
    if (error == cudaSuccess) return;
    // Clears CUDA's last error too, which the next launch would report.
    static_cast<void>(cudaGetLastError());
    const absl::StatusCode code = error == cudaErrorMemoryAllocation
                                      ? absl::StatusCode::kResourceExhausted
                                      : absl::StatusCode::kInternal;
    Record(absl::Status(code, absl::StrCat("CUDA: ", operation, ": ", cudaGetErrorString(error))));
  }

  // The first error since the last Take, if there was one.
  absl::Status Take() { return std::exchange(status_, absl::OkStatus()); }

 private:
  absl::Status status_;
};

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_FIRST_ERROR_H_
