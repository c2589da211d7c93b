#include "kernels/cuda/emulation/block.h"

#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace thermocline {
namespace emulated_cuda {
namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = 64 << 10;

enum class State { kRunning, kAtBlockBarrier, kAtWarpBarrier, kFinished };

// A thread of the blocks: runs the thread function of one block, then waits for the next block.
struct Thread {
  context::fiber fiber;      // where it goes on
  context::fiber scheduler;  // where the scheduler goes on
  State state = State::kFinished;
  uint32_t exchanged[2] = {};  // by the parity of the exchange
  int exchanges = 0;
};

// Runs one block at a time. Its fibers are kept from block to block and from launch to launch.
class Scheduler {
 public:
  void RunBlock(int num_threads, size_t shared_bytes, const std::function<void()>& function) {
    function_ = &function;
    // Quiet NaNs, as floats and as doubles, so that reads of unwritten memory show.
    shared_.assign((shared_bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t), ~uint64_t{0});
    while (static_cast<int>(threads_.size()) < num_threads) AddThread();
    num_threads_ = num_threads;
    for (int t = 0; t < num_threads; ++t) {
      threads_[t]->state = State::kRunning;
      threads_[t]->exchanges = 0;
    }
    while (true) {
      for (int warp = 0; warp < num_threads; warp += kWarpSize) RunWarp(warp);
      int finished = 0;
      for (int t = 0; t < num_threads; ++t) {
        finished += threads_[t]->state == State::kFinished;
        if (threads_[t]->state == State::kAtBlockBarrier) threads_[t]->state = State::kRunning;
      }
      if (finished == num_threads) return;
      CHECK_EQ(finished, 0);  // Some thread has returned before a barrier at which others wait.
    }
  }

  void* shared() { return shared_.data(); }

  void SyncThreads() { Switch(State::kAtBlockBarrier); }

  uint32_t Exchange(uint32_t bits, int source) {
    Thread& self = *threads_[threadIdx.x];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize * kWarpSize;
    // Two places, by turns: no thread is two exchanges ahead of one that has yet to read.
    const int parity = self.exchanges++ % 2;
    self.exchanged[parity] = bits;
    Switch(State::kAtWarpBarrier);
    CHECK_LT(warp + source, num_threads_);
    return threads_[warp + source]->exchanged[parity];
  }

 private:
  void AddThread() {
    threads_.push_back(std::make_unique<Thread>());
    Thread* const thread = threads_.back().get();
    thread->fiber =
        context::fiber(std::allocator_arg, context::fixedsize_stack(kStackBytes),
                       [this, thread](context::fiber&& scheduler) {  // NOLINT: boost's signature
                         thread->scheduler = std::move(scheduler);
                         while (true) {
                           (*function_)();
                           Switch(State::kFinished, thread);
                         }
                         return std::move(thread->scheduler);
                       });
  }

  void Switch(State state) { Switch(state, threads_[threadIdx.x].get()); }
  static void Switch(State state, Thread* thread) {
    thread->state = state;
    thread->scheduler = std::move(thread->scheduler).resume();
  }

  // Runs the threads of a warp until all are at the block's barrier or have finished.
  void RunWarp(int first) {
    const int end = first + kWarpSize < num_threads_ ? first + kWarpSize : num_threads_;
    while (true) {
      int at_warp_barrier = 0;
      for (int t = first; t < end; ++t) {
        if (threads_[t]->state == State::kRunning) {
          threadIdx.x = static_cast<unsigned>(t);
          threads_[t]->fiber = std::move(threads_[t]->fiber).resume();
        }
        at_warp_barrier += threads_[t]->state == State::kAtWarpBarrier;
      }
      if (at_warp_barrier == 0) return;
      CHECK_EQ(at_warp_barrier, end - first);  // Some threads of the warp don't take part.
      for (int t = first; t < end; ++t) threads_[t]->state = State::kRunning;
    }
  }

  const std::function<void()>* function_ = nullptr;
  int num_threads_ = 0;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<uint64_t> shared_;
};

Scheduler& ThisThreadsScheduler() {
  thread_local Scheduler scheduler;
  return scheduler;
}

}  // namespace

void RunGridWithBarriers(unsigned blocks, int threads, size_t shared_bytes,
                         const std::function<void()>& thread) {
  gridDim.x = blocks;
  blockDim.x = static_cast<unsigned>(threads);
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    ThisThreadsScheduler().RunBlock(threads, shared_bytes, thread);
  }
}

void* SharedMemory() { return ThisThreadsScheduler().shared(); }

void __syncthreads() { ThisThreadsScheduler().SyncThreads(); }

uint32_t Exchange(uint32_t bits, int source) {
  return ThisThreadsScheduler().Exchange(bits, source);
}

}  // namespace emulated_cuda
}  // namespace thermocline
