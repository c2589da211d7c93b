// A step's products reach a device as graphs, captured once for each of the few places that batches
// come to lie in. Nothing but speed depends on it, so it would be lost without a word.
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/training/small_job.h"
#include "worker/worker.h"

namespace thermocline {
namespace {

// Graphs replayed in a run, of three for each step.
int64_t GraphsOf(const Job& job) {
  WorkerOptions options;
  options.make_device = [](const Job&) -> absl::StatusOr<WorkerDevice> {
    return WorkerDevice{MakeEmulatedCudaDevice(), "emulated"};
  };
  const int64_t before = NumEmulatedGraphLaunches();
  const absl::Status status = StatusOfRun(job, options);
  EXPECT_TRUE(status.ok()) << status;
  return NumEmulatedGraphLaunches() - before;
}

TEST(DeviceReplayTest, MostStepsAreReplayed) {
  constexpr int kPasses = 10, kStepsOfPass = 12;
  const Job job = MakeSmallJob("adagrad {}", {absl::StrCat("train.passes=", kPasses)});
  EXPECT_GT(GraphsOf(job), 3 * kPasses * kStepsOfPass / 2);
  for (const int prefetch : {0, 2, 14}) {
    SCOPED_TRACE(absl::StrCat("prefetch ", prefetch));
    EXPECT_GT(GraphsOf(WithCache(job, "1MiB", 16, prefetch)), 3 * kPasses * kStepsOfPass / 2);
  }
}

}  // namespace
}  // namespace thermocline
