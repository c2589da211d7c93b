// What a worker's parts are made with, as its job says.
#ifndef THERMOCLINE_WORKER_TRAIN_RUN_OPTIONS_H_
#define THERMOCLINE_WORKER_TRAIN_RUN_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/resolved_job.h"
#include "kernels/device.h"
#include "proto/job.pb.h"
#include "worker/exchange/exchange.h"
#include "worker/fae/pack.h"
#include "worker/model/sparse_batch.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/row_source_options.h"
#include "worker/session/ps_session.h"
#include "worker/train/worker.h"

namespace thermocline {

// A batch is planned while others are computed: on one thread where cores are few. A GPU, whose
// hosts have many, takes batches faster than a thread plans them. The job's workers may all be on
// this host.
int NumPlanningThreads(const Job& job);

// Samples of the largest batch that is trained here, and of the largest that is computed.
int64_t TrainBatch(const Job& job);
int MaxBatch(const Job& job);

PsSessionOptions SessionOptions(const Job& job, const JobTables& tables,
                                const WorkerOptions& options);

// Whether this worker exchanges blocks with the job's others.
bool HasExchange(const Job& job, const WorkerOptions& worker);
ExchangeOptions ExchangeOptionsOf(const Job& job, const WorkerOptions& worker);

// places: where the model has each feature's vectors.
BatchPlanner MakePlanner(const JobTables& tables, uint32_t num_servers,
                         const std::vector<VectorPlace>& places);

RowSourceOptions UncachedOptions(const Job& job, const JobTables& tables);
// Of a worker with `cache`; one whose policy is STATIC lacks its rows. Errors: kInvalidArgument
// (the budget is too small).
absl::StatusOr<RowSourceOptions> CachedOptions(const Job& job, const JobTables& tables,
                                               const WorkerOptions& worker);

// The hot rows of a job with `fae`. `pack` outlives them. Errors: of HotRows::Make and
// CheckWriteBack.
absl::StatusOr<std::unique_ptr<HotRows>> MakeHotRows(const Job& job, const JobTables& tables,
                                                     const Pack& pack);

// The rows that a cache holds whose policy is STATIC.
struct StaticRows {
  std::shared_ptr<const Pack> pack;
  std::unique_ptr<HotRows> rows;
};
// Reads them, and lays `options` out for them; they outlive what is made of it. Errors: of
// Pack::Open; kInvalidArgument (the budget is too small).
absl::StatusOr<StaticRows> OpenStaticRows(const Job& job, const JobTables& tables,
                                          RowSourceOptions* options);

// A device whose memory is the host's has what the host has. (Others say so themselves when it is
// allocated.) field: of the job, that says how much. Errors: kInvalidArgument.
absl::Status CheckHostMemory(const CacheLayout& layout, const char* field, const Device& device);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_RUN_OPTIONS_H_
