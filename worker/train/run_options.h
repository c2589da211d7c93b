// The options of a worker's parts, as its job says.
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

// How many threads plan a batch while others are computed: one where cores are few. A GPU, whose
// hosts have many, takes batches faster than one thread plans them. The job's workers may all be on
// this host.
int NumPlanningThreads(const Job& job);

// How many samples the largest batch has that is trained here. And what the model of this worker
// has room for: rank 0 alone evaluates. (A model has room for one sample at least.)
int64_t TrainBatch(const Job& job);
BatchRoom BatchRoomOf(const Job& job, const WorkerOptions& worker);

PsSessionOptions SessionOptions(const Job& job, const JobTables& tables,
                                const WorkerOptions& options);

// Whether this worker exchanges blocks with the job's others.
bool HasExchange(const Job& job, const WorkerOptions& worker);
ExchangeOptions ExchangeOptionsOf(const Job& job, const WorkerOptions& worker);

// places: where the model has each feature's vectors.
BatchPlanner MakePlanner(const JobTables& tables, uint32_t num_servers,
                         const std::vector<VectorPlace>& places);

RowSourceOptions UncachedOptions(const Job& job, const JobTables& tables);
// The options of a worker with `cache`; OpenStaticRows() adds the rows of a cache whose policy is
// STATIC. Errors: kInvalidArgument (the budget is too small).
absl::StatusOr<RowSourceOptions> CachedOptions(const Job& job, const JobTables& tables,
                                               const WorkerOptions& worker);

// The hot rows of a job with `fae`. `pack` outlives them. Errors: of HotRows::Make and
// CheckWriteBack.
absl::StatusOr<std::unique_ptr<HotRows>> MakeHotRows(const Job& job, const JobTables& tables,
                                                     const Pack& pack);

// The rows of a cache whose policy is STATIC.
struct StaticRows {
  std::shared_ptr<const Pack> pack;
  std::unique_ptr<HotRows> rows;
};
// Opens these rows and lays `options` out for them. They outlive what is made with `options`.
// Errors: Pack::Open's; kInvalidArgument (the budget is too small).
absl::StatusOr<StaticRows> OpenStaticRows(const Job& job, const JobTables& tables,
                                          RowSourceOptions* options);

// Checks that the host has as much memory as the layout asks for, where the device's memory is the
// host's. (Other devices fail when memory is allocated.) field: the job's field that says how much.
// Errors: kInvalidArgument.
absl::Status CheckHostMemory(const CacheLayout& layout, const char* field, const Device& device);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_RUN_OPTIONS_H_
