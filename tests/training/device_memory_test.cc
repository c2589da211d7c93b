// A device that runs out of memory at any point of a run: the job ends with an error that says so,
// and never crashes.
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/training/small_job.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

absl::Status RunWithMemory(const Job& job, size_t bytes) {
  WorkerOptions options;
  options.make_device = [bytes](const Job&) -> absl::StatusOr<WorkerDevice> {
    EmulatedDeviceOptions device;
    device.memory_bytes = bytes;
    return WorkerDevice{MakeEmulatedCudaDevice(device), "small"};
  };
  return StatusOfRun(job, options);
}

TEST(DeviceMemoryTest, TooLittleIsAnErrorWhereverItShows) {
  for (const char* budget : {"", "64KiB", "1MiB"}) {
    Job job = MakeSmallJob("adagrad {}", {});
    if (*budget != '\0') job = WithCache(job, budget, 4, 2);
    int failed = 0, ran = 0, named_at_start = 0;
    // In steps smaller than what a run allocates at a time.
    for (size_t kib = 4200; kib <= 40'000 && ran < 2; kib += 100) {
      SCOPED_TRACE(absl::StrCat("budget '", budget, "', ", kib, " KiB"));
      const absl::Status status = RunWithMemory(job, kib << 10);
      if (status.ok()) {
        ++ran;
        continue;
      }
      ++failed;
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      named_at_start += absl::StrContains(status.message(), "for the cache's rows (cache.budget)");
      EXPECT_EQ(ran, 0) << "with less memory it ran";
    }
    EXPECT_GT(failed, 0);
    EXPECT_GT(ran, 0);
    EXPECT_GT(named_at_start, 0);
  }
}

}  // namespace
}  // namespace thermocline
