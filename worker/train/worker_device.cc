#include "worker/train/worker_device.h"

#include <glob.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cpu/cpu_device.h"

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
  if (job.precision() == TF32) {
    return absl::FailedPreconditionError(
        absl::StrCat("precision is TF32, which needs a CUDA device: ", no_cuda.message()));
  }
  if (job.precision() == BFLOAT16) {
    if (const absl::Status same = CheckCpuBf16(options.isa); !same.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "precision is BFLOAT16, and ", same.message(),
          UsesBf16Instructions(options.isa)
              ? "; with cluster.cpu_isa AVX2 a worker does without bf16 instructions, and with "
                "precision FLOAT32 without products of bf16"
              : "; with precision FLOAT32 a worker does without products of bf16"));
    }
  }
  return WorkerDevice{MakeCpuDevice(options), "CPU", ""};
}

absl::StatusOr<WorkerDevice> MakeCuda(uint32_t local_rank, const CudaDevices& cuda) {
  ASSIGN_OR_RETURN(const std::vector<int> usable, cuda.usable());
  CudaDeviceOptions options;
  options.ordinal = usable[local_rank % usable.size()];
  ASSIGN_OR_RETURN(const CudaDeviceInfo info, cuda.info(options));
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, cuda.make(options));
  return WorkerDevice{
      std::move(device),
      usable.size() == 1 ? info.name : absl::StrCat(info.name, " (GPU ", options.ordinal, ")"), ""};
}

// Why there is a GPU that isn't used; empty: there is none, as far as this machine shows.
std::string WhyUnused(const absl::Status& no_cuda, const CudaDevices& cuda) {
  // CUDA itself says that there is a GPU.
  if (absl::IsFailedPrecondition(no_cuda)) return std::string(no_cuda.message());
  const std::string file = cuda.gpu_file();
  if (file.empty()) return "";
  return absl::StrCat(no_cuda.message(), ", but this machine has ", file);
}

}  // namespace

std::string FindGpuFile() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr && (*visible == '\0' || *visible == '-')) return "";
  glob_t files;
  std::string found;
  if (glob("/dev/nvidia[0-9]*", 0, nullptr, &files) == 0) found = files.gl_pathv[0];
  globfree(&files);
  return found;
}

absl::StatusOr<WorkerDevice> MakeWorkerDevice(const Job& job, uint32_t local_rank,
                                              const CudaDevices& cuda) {
  if (job.device() == Job::CPU) return MakeCpu(job, absl::OkStatus());
  absl::StatusOr<WorkerDevice> made = MakeCuda(local_rank, cuda);
  if (made.ok()) return made;
  const absl::Status no_cuda = made.status();
  const bool cpu_will_do = absl::IsNotFound(no_cuda) || absl::IsUnimplemented(no_cuda) ||
                           absl::IsFailedPrecondition(no_cuda);
  const std::string unused = WhyUnused(no_cuda, cuda);
  if (job.device() != Job::AUTO || !cpu_will_do) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device is ", Job::Device_Name(job.device()), ": ",
        cpu_will_do && !unused.empty() ? unused : std::string(no_cuda.message()),
        cpu_will_do ? "; device: CPU does without a GPU, and AUTO where there is none" : ""));
  }
  made = MakeCpu(job, no_cuda);
  if (made.ok() && !unused.empty()) {
    made->name = "CPU (GPU unused)";
    made->warning = absl::StrCat(
        "device is AUTO, and there is a GPU, but this worker computes on the CPU: ", unused);
  }
  return made;
}

}  // namespace thermocline
