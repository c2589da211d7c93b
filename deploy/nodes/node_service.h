// The controller's end of the streams to the nodes (proto/node.proto), over gRPC.
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

// Passes reports to the table and orders to the nodes; decides nothing. A stream that is slow gets
// the newest order when it takes one again. Thread-safe.
class NodeService : public Controller::CallbackService {
 public:
  // `wake` is called on any thread when there may be something to take from the table.
  NodeService(NodeTable::Options options, std::function<void()> wake);
  // REQUIRES: its server has been shut down.
  ~NodeService() override = default;

  // Runs `use` with the table and sends what has changed by it.
  template <typename Use>
  auto WithTable(Use use) {
    absl::MutexLock lock(&mutex_);
    table_.OnTick(watch_.Elapsed());
    struct SendAfter {  // After `use`, whatever it returns.
      NodeService* service;
      ~SendAfter() ABSL_NO_THREAD_SAFETY_ANALYSIS { service->SendChanges(); }
    } after{this};
    return use(&table_);
  }
  // Waits until all streams have ended, at most for `timeout`: nodes end theirs with the job. Then
  // refuses logs that have been asked for, and will be.
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
  // An agent may have answered another controller before.
  uint64_t last_log_ ABSL_GUARDED_BY(mutex_) =
      static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  std::map<uint64_t, LogAnswer> asked_logs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_NODE_SERVICE_H_
