// A worker's own RPCs: its stats.
#ifndef THERMOCLINE_WORKER_WORKER_SERVICE_H_
#define THERMOCLINE_WORKER_WORKER_SERVICE_H_

#include "proto/parameter_server.grpc.pb.h"
#include "worker/progress.h"

namespace thermocline {

class WorkerService : public Worker::Service {
 public:
  // `progress` outlives the service.
  explicit WorkerService(const WorkerProgress* progress) : progress_(progress) {}

  grpc::Status GetStats(grpc::ServerContext*, const GetStatsRequest*, WorkerStats* stats) override {
    *stats = progress_->Stats();
    return grpc::Status::OK;
  }

 private:
  const WorkerProgress* const progress_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_WORKER_SERVICE_H_
