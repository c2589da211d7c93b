// The servers of several workers: a push is applied when all workers' pushes of the step are there,
// merged in rank order, as real servers do. Answers come late.
#ifndef THERMOCLINE_WORKER_ROWS_TESTING_MERGING_SERVERS_H_
#define THERMOCLINE_WORKER_ROWS_TESTING_MERGING_SERVERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/math/table_spec.h"
#include "common/wire/messages.h"
#include "worker/rows/testing/row_source_trace.h"
#include "worker/session/transport.h"

namespace thermocline {

// What went over the wire for one step, in rows.
struct RowTraffic {
  int64_t gradients = 0;
  int64_t assigned = 0;
};

// Thread-safe. A request that a real server would refuse fails the test.
class MergingServers {
 public:
  struct Options {
    std::map<uint32_t, TableLayout> layouts;  // by id
    uint32_t num_servers = 1;
    uint32_t num_workers = 1;
    Step start_step{0};
    int64_t most_delay_us = 0;
  };
  // `scheduler` outlives it. All calls are over before it is destroyed.
  MergingServers(const Options& options, Scheduler* scheduler, uint64_t seed);

  std::unique_ptr<Transport> TransportOf(uint32_t rank);

  // A row as it was, or would have been at its first use, once the pushes of `step` were applied.
  ServerRow RowAfter(Step step, const TableKey& key);
  RowTraffic TrafficOf(Step step);
  // How many rows the pulls of training steps have read so far.
  int64_t rows_pulled();

 private:
  using PullDone = std::function<void(absl::StatusOr<wire::PullAnswer>)>;
  using PushDone = std::function<void(absl::StatusOr<wire::PushAnswer>)>;
  class Connection;
  struct Written {
    TableKey key;
    wire::PushKind kind = wire::PushKind::kGradient;
    uint32_t count = 0;
    Floats values;
  };
  struct WaitingPull {
    uint32_t rank = 0;
    PullCall call;
    PullDone done;
  };
  struct Server {
    Step applied;
    Rows rows;
    std::map<Step, Rows> rows_after;
    std::map<Step, std::vector<std::map<uint32_t, std::vector<Written>>>> pushes;  // [ranks][chunk]
    std::map<Step, std::vector<bool>> is_whole;                                    // [ranks]
    std::vector<WaitingPull> waiting;
  };

  void Pull(uint32_t rank, uint32_t server, const PullCall& call, PullDone done);
  void Push(uint32_t rank, uint32_t server, const PushCall& call, const PushDone& done);
  void Close(uint32_t rank);
  void After(std::function<void()> task);
  bool IsReady(const Server& server, const PullCall& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read(Server* server, const PullCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Apply(Server* server, Step step, float learning_rate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ServerRow& Find(const TableKey& key, Rows* rows) const;

  const Options options_;
  Scheduler* const scheduler_;
  absl::Mutex mutex_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  std::vector<Server> servers_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> is_closed_ ABSL_GUARDED_BY(mutex_);  // [ranks]
  std::map<Step, RowTraffic> traffic_ ABSL_GUARDED_BY(mutex_);
  int64_t rows_pulled_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_TESTING_MERGING_SERVERS_H_
