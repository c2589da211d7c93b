// A device that runs out of memory at any point of a run: the job ends with an error that says so,
// and never crashes. And memory that a run keeps, since it takes long to allocate.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/disk/disk.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/training/small_job.h"
#include "worker/fae/packing.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

WorkerOptions OnDeviceOf(size_t bytes) {
  WorkerOptions options;
  options.make_device = [bytes](const Job&) -> absl::StatusOr<WorkerDevice> {
    EmulatedDeviceOptions device;
    device.memory_bytes = bytes;
    return WorkerDevice{MakeEmulatedCudaDevice(device), "small"};
  };
  return options;
}

absl::Status RunWithMemory(const Job& job, size_t bytes) {
  return StatusOfRun(job, OnDeviceOf(bytes));
}

// With hot and cold batches, which are packed.
Job MakeFaeJob(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(),
                   {"fae={budget:'64KiB'}", "train.batch_size=20", "calibration.sample_share=1",
                    "calibration.whole_table=0B",
                    absl::StrCat("calibration.directory=", testing::TempDir(), "/hot")});
  Job job = MakeSmallJob("adagrad {}", overrides);
  job.mutable_fae()->set_budget("24KiB");  // Less than a job file may say: there are few rows.
  PosixDisk disk;
  PackingOptions packing;
  packing.disk = &disk;
  const auto pack = FindOrMakePack(job, packing);
  EXPECT_TRUE(pack.ok()) << pack.status();
  EXPECT_GE((*pack)["batches"]["hot"], 5) << *pack;
  EXPECT_GE((*pack)["batches"]["cold"], 5) << *pack;
  return job;
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

TEST(DeviceMemoryTest, TooLittleForMoreStepsNamesTheirSequence) {
  const Job job = MakeSequenceJob("bst { heads: 2 deep: 16 }", {}, Histories::kGrowing);
  bool is_named = false;
  for (size_t kib = 4200; kib <= 40'000 && !is_named; kib += 200) {
    const absl::Status status = RunWithMemory(job, kib << 10);
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << kib << " KiB: " << status;
    is_named = absl::StrContains(status.message(), "steps of sequence 'past' takes ");
  }
  EXPECT_TRUE(is_named);
}

TEST(DeviceMemoryTest, TooLittleForHotRowsNamesTheirBudget) {
  const Job job = MakeFaeJob({});
  int named_at_start = 0;
  for (size_t kib = 4000; kib <= 8000 && named_at_start == 0; kib += 100) {
    const absl::Status status = RunWithMemory(job, kib << 10);
    named_at_start += absl::StrContains(status.message(), "for the hot rows (fae.budget)");
    EXPECT_FALSE(absl::StrContains(status.message(), "cache.budget")) << status;
  }
  EXPECT_GT(named_at_start, 0);
}

// Contexts, what hot rows are loaded and written back through, and the contexts of the rows that
// are scored.
TEST(DeviceMemoryTest, ChangesBetweenHotAndColdBatchesKeepTheirPinnedMemory) {
  const auto train = [](int passes, uint64_t* changes) {
    const Job job =
        MakeFaeJob({"fae.schedule.rate=20", "fae.schedule.min_rate=20", "fae.schedule.max_rate=20",
                    "fae.schedule.scored_rows=80", absl::StrCat("train.passes=", passes)});
    JobServers servers(job);
    const int64_t before = NumEmulatedHostAllocations();
    const Outcome outcome = RunWorkers(job, &servers, OnDeviceOf(size_t{1} << 30));
    EXPECT_TRUE(outcome.workers[0].ok()) << outcome.workers[0].status();
    *changes = outcome.workers[0]->stats.hot().changes();
    return NumEmulatedHostAllocations() - before;
  };
  uint64_t changes_of_one = 0, changes_of_eight = 0;
  const int64_t of_one = train(1, &changes_of_one);
  const int64_t of_eight = train(8, &changes_of_eight);
  ASSERT_GE(changes_of_eight, 7 * changes_of_one);
  ASSERT_GE(changes_of_one, 8u);
  // How many contexts are in use at a time is up to the threads.
  EXPECT_LT(of_eight, of_one + static_cast<int64_t>(changes_of_eight - changes_of_one));
}

}  // namespace
}  // namespace thermocline
