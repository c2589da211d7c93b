// The device that a worker computes on, as its job says.
#ifndef THERMOCLINE_WORKER_WORKER_DEVICE_H_
#define THERMOCLINE_WORKER_WORKER_DEVICE_H_

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
  std::string name;     // "CPU", or the name of the CUDA device
  std::string warning;  // for the log; empty: nothing is unusual
};

// What there is of CUDA; tests put something else in its place.
struct CudaDevices {
  std::function<absl::StatusOr<int>()> count = CountCudaDevices;
  std::function<absl::StatusOr<std::vector<int>>()> usable = UsableCudaDevices;
  std::function<absl::StatusOr<CudaDeviceInfo>(const CudaDeviceOptions&)> info = GetCudaDeviceInfo;
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const CudaDeviceOptions&)> make =
      MakeCudaDevice;
};

// local_rank: of this worker among those of its host, which take its usable CUDA devices in
// turn.
// Errors: kFailedPrecondition (the job asks for what this machine, or this build, doesn't have).
absl::StatusOr<WorkerDevice> MakeWorkerDevice(const Job& job, uint32_t local_rank,
                                              const CudaDevices& cuda = {});

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_WORKER_DEVICE_H_
