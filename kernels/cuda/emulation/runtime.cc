#include "kernels/cuda/emulation/runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace thermocline {
namespace emulated_cuda {
namespace {

std::atomic<int64_t> graph_launches{0}, host_allocations{0}, spinning_waits{0};

// Allocations end at an inaccessible page, as nearly as this allows.
constexpr size_t kAlignment = 16;
// One in so many calls lets a stream run at once.
constexpr int kHastyCalls = 8;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

struct Allocation {
  char* pages = nullptr;  // of device memory
  size_t page_bytes = 0;  // without the page that guards the end
  size_t bytes = 0;
};

}  // namespace

struct Machine;

struct Item {
  std::function<void()> run;         // a kernel or a copy (of the allocation `only`), or
  EmulatedEvent* reached = nullptr;  // a record of this event, or
  EmulatedEvent* awaited = nullptr;  // a wait for its record number `record`
  uint64_t record = 0;
  const Allocation* only = nullptr;
};

struct EmulatedGraph {
  std::vector<Item> items;
  bool is_spoilt = false;  // its capture
};

struct EmulatedStream {
  Machine* machine = nullptr;
  std::deque<Item> items;
  std::unique_ptr<EmulatedGraph> capture;  // null: none under way
};

struct EmulatedEvent {
  EmulatedStream* stream = nullptr;  // of the last record
  uint64_t recorded = 0, reached = 0;
  bool lets_sleep = false;
};

// One emulated device.
struct Machine {
  size_t free_bytes = 0;
  std::mt19937_64 random;
  std::map<char*, Allocation> allocations;  // by the first byte that the program may use
  std::map<char*, size_t> host_allocations;
  std::vector<EmulatedStream*> streams;
  int working = 0;
  bool lets_sleep = false;  // cudaDeviceScheduleBlockingSync
  bool refuses_captures = false;
  cudaError_t last_error = cudaSuccess;

  // The allocation that [memory, memory + bytes) lies in; null: none.
  const Allocation* Find(const void* memory, size_t bytes) const {
    const auto next = allocations.upper_bound(static_cast<char*>(const_cast<void*>(memory)));
    if (next == allocations.begin()) return nullptr;
    const auto& [begin, allocation] = *std::prev(next);
    const bool within = static_cast<const char*>(memory) + bytes <= begin + allocation.bytes;
    return within ? &allocation : nullptr;
  }
  // Whether it touches none.
  bool IsHost(const void* memory, size_t bytes) const {
    const char* const begin = static_cast<const char*>(memory);
    return std::none_of(allocations.begin(), allocations.end(), [&](const auto& entry) {
      return begin < entry.second.pages + entry.second.page_bytes &&
             entry.second.pages < begin + bytes;
    });
  }

  void Protect(const Allocation& allocation, int protection) {
    CHECK_EQ(mprotect(allocation.pages, allocation.page_bytes, protection), 0);
  }
  // All of the device's memory can be touched from the first BeginWork to the last EndWork.
  void BeginWork() {
    if (working++ > 0) return;
    for (const auto& [begin, allocation] : allocations) Protect(allocation, PROT_READ | PROT_WRITE);
  }
  void EndWork() {
    if (--working > 0) return;
    for (const auto& [begin, allocation] : allocations) Protect(allocation, PROT_NONE);
  }

  // Runs a stream, until `event` has reached `record` or to its end; others as far as it waits.
  void Run(EmulatedStream* stream, const EmulatedEvent* event, uint64_t record) {
    bool works = false;
    while (!stream->items.empty() && (event == nullptr || event->reached < record)) {
      const Item item = std::move(stream->items.front());
      stream->items.pop_front();
      if (item.awaited != nullptr && item.awaited->reached < item.record) {
        Run(item.awaited->stream, item.awaited, item.record);
      }
      if (item.reached != nullptr) item.reached->reached = item.record;
      if (!item.run) continue;
      if (item.only == nullptr && !works) {
        works = true;
        BeginWork();
      }
      if (working == 0) Protect(*item.only, PROT_READ | PROT_WRITE);
      item.run();
      if (working == 0) Protect(*item.only, PROT_NONE);
    }
    if (works) EndWork();
  }
  // Spoils the captures under way, for an operation that is refused during one. Returns whether
  // there is one.
  bool SpoilsCapture() {
    bool captures = false;
    for (EmulatedStream* stream : streams) {
      if (stream->capture != nullptr) captures = stream->capture->is_spoilt = true;
    }
    return captures;
  }
  void RunAll() {
    for (EmulatedStream* stream : streams) Run(stream, nullptr, 0);
  }

  cudaError_t Add(EmulatedStream* stream, Item item) {
    if (stream->capture != nullptr) {
      if (!item.run) return last_error = cudaErrorStreamCaptureUnsupported;
      stream->capture->items.push_back(std::move(item));
      return cudaSuccess;
    }
    stream->items.push_back(std::move(item));
    if (random() % kHastyCalls == 0) Run(streams[random() % streams.size()], nullptr, 0);
    return cudaSuccess;
  }
};

namespace {

struct Machines {
  std::mutex mutex;
  std::vector<std::unique_ptr<Machine>> all;  // Kept: buffers may outlive their device.
};

Machines& AllMachines() {
  static Machines* const machines = new Machines;
  return *machines;
}

thread_local Machine* current = nullptr;

Machine& Current() {
  CHECK(current != nullptr);  // No cudaSetDevice on this host thread.
  return *current;
}

// An error is returned, and kept for cudaGetLastError too.
cudaError_t Fail(cudaError_t error) {
  Current().last_error = error;
  return error;
}

}  // namespace

int64_t NumGraphLaunches() { return graph_launches; }
int64_t NumHostAllocations() { return host_allocations; }
int64_t NumSpinningWaits() { return spinning_waits; }

int MakeEmulatedDevice(size_t memory_bytes, uint64_t seed, bool refuses_captures) {
  Machines& machines = AllMachines();
  const std::lock_guard<std::mutex> lock(machines.mutex);
  machines.all.push_back(std::make_unique<Machine>());
  machines.all.back()->free_bytes = memory_bytes;
  machines.all.back()->random.seed(seed);
  machines.all.back()->refuses_captures = refuses_captures;
  return static_cast<int>(machines.all.size()) - 1;
}

cudaError_t cudaSetDevice(int ordinal) {
  Machines& machines = AllMachines();
  const std::lock_guard<std::mutex> lock(machines.mutex);
  if (ordinal < 0 || ordinal >= static_cast<int>(machines.all.size())) {
    return cudaErrorInvalidDevice;
  }
  current = machines.all[ordinal].get();
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  Current().lets_sleep = (flags & cudaDeviceScheduleBlockingSync) != 0;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
  }
  return "unknown error";
}

cudaError_t cudaGetLastError() { return std::exchange(Current().last_error, cudaSuccess); }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  Machine& machine = Current();
  if (bytes > machine.free_bytes) return Fail(cudaErrorMemoryAllocation);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.page_bytes = std::max(RoundUp(bytes, page), page);
  void* const pages = mmap(nullptr, allocation.page_bytes + page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return Fail(cudaErrorMemoryAllocation);
  std::memset(pages, 0xff, allocation.page_bytes);
  mprotect(pages, allocation.page_bytes + page, PROT_NONE);
  allocation.pages = static_cast<char*>(pages);
  char* const begin = allocation.pages + allocation.page_bytes - RoundUp(bytes, kAlignment);
  machine.allocations[begin] = allocation;
  machine.free_bytes -= bytes;
  *memory = begin;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  Machine& machine = Current();
  if (machine.SpoilsCapture()) return Fail(cudaErrorStreamCaptureUnsupported);
  const auto found = machine.allocations.find(static_cast<char*>(memory));
  if (found == machine.allocations.end()) return Fail(cudaErrorInvalidValue);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  munmap(found->second.pages, found->second.page_bytes + page);
  machine.free_bytes += found->second.bytes;
  machine.allocations.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::malloc(std::max<size_t>(bytes, 1));
  if (*memory == nullptr) return Fail(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xff, bytes);
  ++host_allocations;
  Current().host_allocations[static_cast<char*>(*memory)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (Current().SpoilsCapture()) return Fail(cudaErrorStreamCaptureUnsupported);
  if (Current().host_allocations.erase(static_cast<char*>(memory)) == 0) {
    return Fail(cudaErrorInvalidValue);
  }
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Machine& machine = *stream->machine;
  const bool to_device = kind == cudaMemcpyHostToDevice;
  const Allocation* const allocation = machine.Find(to_device ? to : from, bytes);
  if (allocation == nullptr || !machine.IsHost(to_device ? from : to, bytes)) {
    return Fail(cudaErrorInvalidValue);
  }
  return machine.Add(stream, {[to, from, bytes] { std::memcpy(to, from, bytes); }, nullptr, nullptr,
                              0, allocation});
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const Allocation* const allocation = stream->machine->Find(to, bytes);
  if (allocation == nullptr) return Fail(cudaErrorInvalidValue);
  return stream->machine->Add(stream, {[to, value, bytes] { std::memset(to, value, bytes); },
                                       nullptr, nullptr, 0, allocation});
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new EmulatedStream{&Current(), {}, nullptr};
  Current().streams.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Machine& machine = *stream->machine;
  machine.Run(stream, nullptr, 0);
  machine.streams.erase(std::find(machine.streams.begin(), machine.streams.end(), stream));
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->capture != nullptr) return Fail(cudaErrorStreamCaptureUnsupported);
  spinning_waits += stream->machine->lets_sleep ? 0 : 1;
  stream->machine->Run(stream, nullptr, 0);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return stream->machine->Add(stream, {{}, nullptr, event, event->recorded, nullptr});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new EmulatedEvent{nullptr, 0, 0, (flags & cudaEventBlockingSync) != 0};
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Current().RunAll();  // What is queued may name it.
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  return stream->machine->Add(stream, {{}, event, nullptr, ++event->recorded, nullptr});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->reached < event->recorded ? Fail(cudaErrorNotReady) : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  spinning_waits += event->lets_sleep ? 0 : 1;
  if (event->reached < event->recorded) {
    event->stream->machine->Run(event->stream, event, event->recorded);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (Current().SpoilsCapture()) return Fail(cudaErrorStreamCaptureUnsupported);
  spinning_waits += Current().lets_sleep ? 0 : 1;
  Current().RunAll();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capture != nullptr || stream->machine->refuses_captures) {
    return Fail(cudaErrorStreamCaptureUnsupported);
  }
  stream->capture = std::make_unique<EmulatedGraph>();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::unique_ptr<EmulatedGraph> capture = std::move(stream->capture);
  if (capture == nullptr) return Fail(cudaErrorInvalidValue);
  if (capture->is_spoilt) return Fail(cudaErrorStreamCaptureInvalidated);
  *graph = new EmulatedGraph(*capture);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned) {
  *executable = new EmulatedGraph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const Item& item : executable->items) stream->machine->Add(stream, item);
  ++graph_launches;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return cudaGraphDestroy(executable);
}

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  stream->machine->Add(stream, {std::move(work), nullptr, nullptr, 0, nullptr});
}

bool ShapeIsValid(unsigned blocks, int threads, size_t shared_bytes) {
  constexpr int kMaxThreads = 1024;
  constexpr size_t kMaxSharedBytes = 48 << 10;
  if (blocks > 0 && threads > 0 && threads <= kMaxThreads && shared_bytes <= kMaxSharedBytes) {
    return true;
  }
  Fail(cudaErrorInvalidConfiguration);
  return false;
}

}  // namespace emulated_cuda
}  // namespace thermocline
