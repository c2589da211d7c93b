// The ranges that a profiler sees of a training run: this program is its own profiler.
#include <nvtx3/nvToolsExt.h>

#include <set>
#include <string>
#include <vector>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/training/small_job.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

ABSL_CONST_INIT absl::Mutex mutex(absl::kConstInit);
std::set<std::string>* names = nullptr;
thread_local int depth = 0;
int unbalanced = 0;

int NVTX_API Push(const char* name) {
  absl::MutexLock lock(&mutex);
  if (names == nullptr) names = new std::set<std::string>;
  names->insert(name);
  return depth++;
}
int NVTX_API Pop() {
  absl::MutexLock lock(&mutex);
  unbalanced += depth == 0 ? 1 : 0;
  return --depth;
}

int NVTX_API Attach(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) {
    return 0;
  }
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&Push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&Pop);
  return 1;
}

TEST(TraceTest, AProfilerSeesTheStagesOfAStep) {
  InitializeInjectionNvtx2_fnptr = Attach;  // NVTX looks at it once, at its first range.
  const Job job = WithCache(MakeSmallJob("adagrad {}", {}), "64KiB", 4, 2);
  JobServers servers(job);
  WorkerOptions options;
  options.make_device = [](const Job&) -> absl::StatusOr<WorkerDevice> {
    return WorkerDevice{MakeEmulatedCudaDevice(), "emulation", ""};
  };
  const Outcome outcome = RunWorkers(job, &servers, options);
  ASSERT_TRUE(outcome.workers[0].ok()) << outcome.workers[0].status();
  absl::MutexLock lock(&mutex);
  ASSERT_NE(names, nullptr) << "no range at all";
  for (const char* stage :
       {"read", "plan", "plan cache", "wait for data", "fetch", "wait for rows", "upload",
        "forward", "backward to embeddings", "update rows", "wait for device", "push embeddings",
        "backward dense", "dense update", "push dense"}) {
    EXPECT_EQ(names->count(stage), 1u) << stage;
  }
  EXPECT_EQ(unbalanced, 0);
  EXPECT_EQ(depth, 0);
}

}  // namespace
}  // namespace thermocline
