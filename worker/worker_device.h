// The device that a worker computes on, as its job says.
#ifndef THERMOCLINE_WORKER_WORKER_DEVICE_H_
#define THERMOCLINE_WORKER_WORKER_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "proto/job.pb.h"

namespace thermocline {

struct WorkerDevice {
  std::unique_ptr<Device> device;
  std::string name;  // "CPU", or the name of the CUDA device
};

// Errors: kFailedPrecondition (the job asks for what this machine, or this build, doesn't have).
absl::StatusOr<WorkerDevice> MakeWorkerDevice(const Job& job);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_WORKER_DEVICE_H_
