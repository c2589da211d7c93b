// What this machine has for a job's processes.
#ifndef THERMOCLINE_DEPLOY_PLAN_MACHINE_H_
#define THERMOCLINE_DEPLOY_PLAN_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace thermocline {

struct Machine {
  uint64_t memory_bytes = 0;            // Or what a container's limit leaves of it; 0: not known.
  uint64_t available_memory_bytes = 0;  // The part of it that is not in use now.
  uint32_t cores = 0;
  uint64_t free_disk_bytes = 0;   // Where runs go; 0: not known.
  std::vector<std::string> gpus;  // Their models, as the driver names them.
  uint64_t gpu_memory_bytes = 0;  // The least of all GPUs'; 0: not known.
};

// `run_folder`: where the run directory will be; it need not exist. gpu_memory_bytes stays 0.
Machine ThisMachine(const std::string& run_folder);

// The memory of this machine's smallest GPU in bytes, which it asks nvidia-smi for; 0: not known.
uint64_t SmallestGpuMemory();
// The same of what nvidia-smi prints: a line of MiB for each GPU.
uint64_t SmallestGpuMemory(absl::string_view printed);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PLAN_MACHINE_H_
