#include "worker/worker_device.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_device.h"

namespace thermocline {
namespace {

CpuIsaLimit IsaLimit(const Cluster& cluster) {
  return cluster.cpu_isa() == AVX2     ? CpuIsaLimit::kAvx2
         : cluster.cpu_isa() == AVX512 ? CpuIsaLimit::kAvx512
                                       : CpuIsaLimit::kAuto;
}

// `no_cuda`: why it is not a CUDA device; OK where none was asked for.
absl::StatusOr<WorkerDevice> MakeCpu(const Job& job, const absl::Status& no_cuda) {
  CpuDeviceOptions options;
  options.num_threads = static_cast<int>(job.cluster().worker_threads());
  options.isa = IsaLimit(job.cluster());
  if (!CpuSupports(options.isa)) {
    return absl::FailedPreconditionError(
        "cluster.cpu_isa is AVX512, which this machine does not have; leave it out, or say AVX2");
  }
  if (job.dlrm().precision() != Dlrm::FLOAT32) {
    return absl::FailedPreconditionError(
        absl::StrCat("dlrm.precision is ", Dlrm::Precision_Name(job.dlrm().precision()),
                     ", which needs a CUDA device: ", no_cuda.message()));
  }
  return WorkerDevice{MakeCpuDevice(options), "CPU"};
}

absl::StatusOr<WorkerDevice> MakeCuda() {
  const CudaDeviceOptions options;
  ASSIGN_OR_RETURN(const CudaDeviceInfo info, GetCudaDeviceInfo(options));
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, MakeCudaDevice(options));
  return WorkerDevice{std::move(device), info.name};
}

}  // namespace

absl::StatusOr<WorkerDevice> MakeWorkerDevice(const Job& job) {
  if (job.device() == Job::CPU) return MakeCpu(job, absl::OkStatus());
  absl::StatusOr<WorkerDevice> cuda = MakeCuda();
  if (cuda.ok()) return cuda;
  const bool absent = absl::IsNotFound(cuda.status()) || absl::IsUnimplemented(cuda.status());
  if (job.device() == Job::AUTO && absent) return MakeCpu(job, cuda.status());
  return absl::FailedPreconditionError(
      absl::StrCat("device is ", Job::Device_Name(job.device()), ": ", cuda.status().message()));
}

}  // namespace thermocline
