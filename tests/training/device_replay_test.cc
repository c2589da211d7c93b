// A step's products reach a device as graphs, captured once for each of the few addresses of
// batches. Only speed depends on it, so no other test would notice its loss.
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/training/small_job.h"
#include "worker/train/progress.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

// Returns how many graphs were replayed in a run; each step has three.
int64_t GraphsOf(const Job& job) {
  WorkerOptions options;
  options.make_device = [](const Job&) -> absl::StatusOr<WorkerDevice> {
    return WorkerDevice{MakeEmulatedCudaDevice(), "emulated", ""};
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

// Batches come in two sizes of 1024 steps. Work is captured anew once, when buffers of steps grow.
TEST(DeviceReplayTest, MostStepsOfSequencesAreReplayed) {
  constexpr int kPasses = 6, kStepsOfPass = 12;
  const Job job = MakeSequenceJob(R"(
      layer { name: "each" input: "past" mlp { units: 4 } }
      layer { name: "mean" input: "each" pool { mode: MEAN } }
      layer { name: "top" input: ["numeric", "mean"] mlp { units: 8 } }
      task { input: "top" })",
                                  {absl::StrCat("train.passes=", kPasses)}, Histories::kGrowing);
  EXPECT_GT(GraphsOf(job), 3 * kPasses * kStepsOfPass / 2);
}

WorkerOptions OnDevice(bool refuses_captures) {
  WorkerOptions options;
  options.make_device = [refuses_captures](const Job&) -> absl::StatusOr<WorkerDevice> {
    EmulatedDeviceOptions device;
    device.refuses_captures = refuses_captures;
    return WorkerDevice{MakeEmulatedCudaDevice(device), "emulated", ""};
  };
  return options;
}

TEST(DeviceReplayTest, ADeviceThatRefusesCapturesTrainsTheSameBitsAndSaysSo) {
  const Job job = WithCache(MakeSmallJob("adagrad {}", {}), "1MiB", 4, 2);
  JobServers servers(job), others(job);
  const Outcome captured = RunWorkers(job, &servers, OnDevice(false));
  const int64_t before = NumEmulatedGraphLaunches();
  const Outcome refused = RunWorkers(job, &others, OnDevice(true));
  ASSERT_TRUE(refused.workers[0].ok()) << refused.workers[0].status();
  EXPECT_EQ(Hex(refused.digest), Hex(captured.digest));
  EXPECT_EQ(NumEmulatedGraphLaunches(), before);
  EXPECT_EQ(captured.workers[0]->stats.failed_captures(), 0u);
  EXPECT_GT(refused.workers[0]->stats.failed_captures(), 0u);
}

TEST(DeviceReplayTest, WhatADeviceCannotDoIsAWarningOnce) {
  EmulatedDeviceOptions options;
  options.refuses_captures = true;
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice(options);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  WorkerProgress progress("job", WorkerRank(0), ends[1]);
  WorkerProgress::Watched watched;
  watched.compute = device.get();
  watched.device = "CPU (GPU unused)";
  watched.device_warning = "the driver is too old";
  progress.Watch(watched);
  progress.OnReport({});
  EXPECT_EQ(device->Capture([] {}), nullptr);
  progress.OnReport({});
  progress.OnReport({});
  std::string lines(1 << 16, ' ');
  lines.resize(read(ends[0], lines.data(), lines.size()));
  std::vector<std::string> events;
  for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    events.push_back(nlohmann::json::parse(line)["event"]);
  }
  EXPECT_EQ(events, (std::vector<std::string>{"progress", "warning", "progress", "progress"}));
  EXPECT_EQ(progress.Stats().failed_captures(), 1u);
  EXPECT_EQ(progress.Stats().device_warning(), "the driver is too old");
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace thermocline
