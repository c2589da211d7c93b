// The controller's side of the streams to the nodes (proto/node.proto), over gRPC.
#ifndef THERMOCLINE_DEPLOY_NODES_NODE_SERVICE_H_
#define THERMOCLINE_DEPLOY_NODES_NODE_SERVICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/timing.h"
#include "deploy/nodes/node_table.h"
#include "proto/node.grpc.pb.h"

namespace thermocline {

// Passes reports to the table and orders to the nodes; the table decides. A slow stream gets only
// the newest order, when it can take one again. Thread-safe.
class NodeService : public Controller::CallbackService {
 public:
  // `wake` is called on any thread when there may be something to take from the table.
  NodeService(NodeTable::Options options, std::function<void()> wake);
  // REQUIRES: its server has been shut down.
  ~NodeService() override = default;

  // Runs `use` with the table, and sends the orders that have changed.
  template <typename Use>
  auto WithTable(Use use) {
    absl::MutexLock lock(&mutex_);
    table_.OnTick(watch_.Elapsed());
    struct SendAfter {  // Sends after `use`, whatever that returns.
      NodeService* service;
      ~SendAfter() ABSL_NO_THREAD_SAFETY_ANALYSIS { service->SendChanges(); }
    } after{this};
    return use(&table_);
  }
  // Waits until the nodes have ended their streams, as they do with the job, at most for `timeout`.
  // Then refuses requests for logs, those that wait and later ones.
  void Close(absl::Duration timeout);

 private:
  class Stream;
  using LogAnswer = std::pair<grpc::ServerUnaryReactor*, LogLines*>;

  grpc::ServerBidiReactor<NodeReport, NodeOrder>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetLog(grpc::CallbackServerContext* context, const LogRequest* request,
                                   LogLines* reply) override;
  void SendChanges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerLogs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void()> wake_;
  const Stopwatch watch_;
  absl::Mutex mutex_;
  NodeTable table_ ABSL_GUARDED_BY(mutex_);
  std::set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  // The id of the last request for a log. It begins high, since agents may still answer requests of
  // an earlier controller.
  uint64_t last_log_ ABSL_GUARDED_BY(mutex_) =
      static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  std::map<uint64_t, LogAnswer> asked_logs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_NODE_SERVICE_H_
