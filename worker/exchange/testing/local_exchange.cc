#include "worker/exchange/testing/local_exchange.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/task_queue.h"

namespace thermocline {
namespace {

// Delivers events in the order in which they come, on one thread.
class Network {
 public:
  explicit Network(uint32_t num_ranks) : ends_(num_ranks) {}

  void Join(uint32_t rank, ExchangeEvents* events) {
    absl::MutexLock lock(&mutex_);
    ends_[rank].events = events;
  }

  // No event comes to the rank any more; streams to it break.
  void Leave(uint32_t rank) {
    absl::MutexLock lock(&mutex_);
    ends_[rank].events = nullptr;
    for (const auto& [from, attempt] : ends_[rank].streams) QueueClosed(from, rank, attempt);
    ends_[rank].streams.clear();
    const auto is_quiet = [this, rank]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return running_ != &ends_[rank];
    };
    mutex_.Await(absl::Condition(&is_quiet));
  }

  void Open(uint32_t from, uint32_t to, uint64_t attempt) {
    absl::MutexLock lock(&mutex_);
    if (ends_[to].events == nullptr) return QueueClosed(from, to, attempt);
    ends_[to].streams[from] = attempt;
    Queue(to,
          [from, attempt](ExchangeEvents& events) { events.OnOpened(WorkerRank(from), attempt); });
  }

  void Send(uint32_t from, uint32_t to, uint64_t attempt, const BlockChunk& chunk,
            std::shared_ptr<const BlockBytes> bytes) {
    absl::MutexLock lock(&mutex_);
    Queue(to, [from, attempt, chunk, bytes = std::move(bytes)](ExchangeEvents& events) {
      events.OnChunk(WorkerRank(from), attempt, chunk);
    });
    Queue(from, [to, attempt](ExchangeEvents& events) { events.OnSent(WorkerRank(to), attempt); });
  }

  void SendReceipt(uint32_t from, uint32_t to, uint64_t attempt, const Receipt& receipt) {
    absl::MutexLock lock(&mutex_);
    Queue(to, [from, attempt, receipt](ExchangeEvents& events) {
      events.OnReceipt(WorkerRank(from), attempt, receipt);
    });
  }

 private:
  struct End {
    ExchangeEvents* events = nullptr;      // Null: not there.
    std::map<uint32_t, uint64_t> streams;  // Open ones to it: attempt by sender.
  };
  using Event = std::function<void(ExchangeEvents&)>;

  void QueueClosed(uint32_t from, uint32_t to, uint64_t attempt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Queue(from, [to, attempt](ExchangeEvents& events) {
      events.OnClosed(WorkerRank(to), attempt, absl::UnavailableError("the rank is not there"));
    });
  }

  void Queue(uint32_t rank, Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_.Run([this, rank, event = std::move(event)] {
      ExchangeEvents* events;
      {
        absl::MutexLock lock(&mutex_);
        events = ends_[rank].events;
        if (events == nullptr) return;
        running_ = &ends_[rank];
      }
      event(*events);
      absl::MutexLock lock(&mutex_);
      running_ = nullptr;
    });
  }

  absl::Mutex mutex_;
  std::vector<End> ends_ ABSL_GUARDED_BY(mutex_);         // [num_ranks]
  const End* running_ ABSL_GUARDED_BY(mutex_) = nullptr;  // The end whose event runs now.
  TaskQueue queue_{1};
};

class LocalTransport final : public ExchangeTransport {
 public:
  LocalTransport(uint32_t rank, std::shared_ptr<Network> network)
      : rank_(rank), network_(std::move(network)) {}

  void Start(ExchangeEvents* events) override { network_->Join(rank_, events); }
  void Open(WorkerRank to, uint64_t attempt) override {
    network_->Open(rank_, to.value(), attempt);
  }
  void Send(WorkerRank to, uint64_t attempt, const BlockChunk& chunk,
            std::shared_ptr<const BlockBytes> bytes) override {
    network_->Send(rank_, to.value(), attempt, chunk, std::move(bytes));
  }
  void SendReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) override {
    network_->SendReceipt(rank_, to.value(), attempt, receipt);
  }
  void Close() override { network_->Leave(rank_); }

 private:
  const uint32_t rank_;
  const std::shared_ptr<Network> network_;
};

}  // namespace

std::vector<std::unique_ptr<Exchange>> MakeLocalExchanges(uint32_t num_ranks,
                                                          ExchangeOptions options,
                                                          Scheduler* scheduler,
                                                          const HooksOf& hooks_of) {
  const auto network = std::make_shared<Network>(num_ranks);
  options.num_ranks = num_ranks;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    options.rank = WorkerRank(rank);
    exchanges.push_back(
        std::make_unique<Exchange>(options, hooks_of ? hooks_of(options.rank) : ExchangeHooks{},
                                   std::make_unique<LocalTransport>(rank, network), scheduler));
  }
  return exchanges;
}

}  // namespace thermocline
