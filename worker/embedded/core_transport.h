// Transport to a server of this process: what gRPC's handlers do (server/rpc), without messages.
// Rows are gathered from the tables straight into the places that the worker gave, and a push is
// copied once, into the chunk that the server accepts.
#ifndef THERMOCLINE_WORKER_EMBEDDED_CORE_TRANSPORT_H_
#define THERMOCLINE_WORKER_EMBEDDED_CORE_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/task_queue.h"
#include "server/core/server_core.h"
#include "server/rpc/call_counts.h"
#include "worker/session/transport.h"

namespace thermocline {

// Thread-safe.
class CoreTransport final : public Transport {
 public:
  struct Options {
    // So many threads take pushes, apply them, and gather rows; as many more answer READs, and
    // pulls whose rows may be on the disk. At least 2, so that one takes pushes while another
    // applies a step.
    int threads = 2;
    // Count the calls; outlive the transport.
    MethodStats* pulls = nullptr;
    MethodStats* reads = nullptr;
    MethodStats* pushes = nullptr;
  };

  // REQUIRES: `core` outlives the transport, and is the only server: index 0.
  CoreTransport(ServerCore* core, const Options& options);
  // Ends the calls under way as Close does, and waits until every `done` has returned.
  ~CoreTransport() override;

  // `done` runs on a thread of the transport's, or of the core's (server_core.h), and must not
  // block. No call is lost here, so a deadline only limits how long a pull is held. Errors name
  // method, step and keys: the server's own, kCancelled (closed), kInternal (a place has the wrong
  // size for its rows).
  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override;
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override;
  // Pushes that the core has are accepted all the same.
  void Close() override;

 private:
  struct PullUnderWay;

  // Counts a call under way. False: the transport is closed.
  bool Begin();
  // pull: null of a push
  void End(PullUnderWay* pull = nullptr);
  bool IsClosed() const;
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return under_way_ == 0; }

  TaskQueue* ThreadsOf(const PullCall& call);
  void Ask(const std::shared_ptr<PullUnderWay>& pull, int64_t deadline_us);
  void Finish(PullUnderWay* pull, absl::StatusOr<wire::PullAnswer> answer);
  absl::Status Gather(const PullCall& call) const;
  void Take(const PushCall& call, std::function<void(absl::StatusOr<wire::PushAnswer>)> done);

  ServerCore* const core_;
  const Options options_;
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;  // Calls whose `done` is to return.
  absl::flat_hash_set<PullTicket> held_ ABSL_GUARDED_BY(mutex_);  // Pulls that the core may hold.
  // Last: their tasks use what is above. The threads of `readers_` may wait for a disk, and delay
  // no push.
  TaskQueue readers_;
  TaskQueue tasks_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EMBEDDED_CORE_TRANSPORT_H_
