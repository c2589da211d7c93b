// The device that a worker computes on, as its job says.
#ifndef THERMOCLINE_WORKER_TRAIN_WORKER_DEVICE_H_
#define THERMOCLINE_WORKER_TRAIN_WORKER_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device.h"
#include "proto/job.pb.h"

namespace thermocline {

struct WorkerDevice {
  std::unique_ptr<Device> device;
  std::string name;     // "CPU", or the name of the CUDA device; "CPU (GPU unused)": see warning
  std::string warning;  // why a GPU of this machine is not used; empty: nothing is unusual
};

// The device file of a GPU that the system's kernel has a driver for ("/dev/nvidia0"), whatever
// CUDA says of it; empty: there is none, or $CUDA_VISIBLE_DEVICES hides them all.
std::string FindGpuFile();

// What there is of CUDA; tests put something else in its place.
struct CudaDevices {
  std::function<std::string()> gpu_file = FindGpuFile;
  std::function<absl::StatusOr<std::vector<int>>()> usable = UsableCudaDevices;
  std::function<absl::StatusOr<CudaDeviceInfo>(const CudaDeviceOptions&)> info = GetCudaDeviceInfo;
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const CudaDeviceOptions&)> make =
      MakeCudaDevice;
};

// local_rank: this worker's rank among those of its host, which take the usable CUDA devices in
// turn. Where the job's device is AUTO and there is a GPU that can't be used, it is the CPU with a
// warning. Errors: kFailedPrecondition (the job asks for what this machine, or this build, doesn't
// have).
absl::StatusOr<WorkerDevice> MakeWorkerDevice(const Job& job, uint32_t local_rank,
                                              const CudaDevices& cuda = {});

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_WORKER_DEVICE_H_
