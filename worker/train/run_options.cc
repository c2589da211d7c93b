#include "worker/train/run_options.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/job/resolved_job.h"

namespace thermocline {
namespace {

// Rows that are newer than the servers' are at most so many bytes a server.
constexpr uint64_t kMaxUnwrittenBytes = uint64_t{1} << 30;

std::vector<TableId> TableIds(const JobTables& tables) {
  std::vector<TableId> ids;
  for (const TableLayout& table : tables.sparse) ids.push_back(table.id);
  return ids;
}

}  // namespace

int NumPlanningThreads(const Job& job) {
  const int workers = static_cast<int>(job.cluster().workers());
  return std::clamp(HardwareThreads() / 4 / workers, 1, 8);
}

int64_t TrainBatch(const Job& job) {
  const int64_t workers = job.cluster().workers();
  return (int64_t{job.train().batch_size()} + workers - 1) / workers;
}

BatchRoom BatchRoomOf(const Job& job, const WorkerOptions& worker) {
  const int64_t trained = worker.eval_only ? 0 : TrainBatch(job);
  const int64_t scored = worker.rank == WorkerRank(0) ? job.train().eval_batch_size() : 1;
  return {std::max(trained, scored), trained};
}

PsSessionOptions SessionOptions(const Job& job, const JobTables& tables,
                                const WorkerOptions& options) {
  PsSessionOptions session;
  session.job_id = options.job_id;
  session.generation = options.generation;
  session.rank = options.rank;
  session.num_servers = NumServers(job.cluster());
  session.staleness_steps = job.train().staleness_steps();
  session.tables = tables.AllLayouts();
  session.start_step = options.start_step;
  session.max_chunk_bytes =
      std::min<size_t>(session.max_chunk_bytes, job.cluster().max_message_bytes());
  session.give_up_us = int64_t{job.cluster().rpc_timeout_s()} * 1'000'000;
  session.jitter_seed = options.rank.value();
  session.on_notice = [](const std::string& line) { LogLine(line); };
  return session;
}

bool HasExchange(const Job& job, const WorkerOptions& worker) {
  return ExchangesBlocks(job) && !worker.eval_only && worker.make_exchange;
}

ExchangeOptions ExchangeOptionsOf(const Job& job, const WorkerOptions& worker) {
  ExchangeOptions options;
  options.rank = worker.rank;
  options.num_ranks = job.cluster().workers();
  options.start_step = worker.start_step;
  options.phases = job.has_cache() ? kAllPhases : job.has_fae() ? kHotPhases : kDensePhases;
  options.window_steps = static_cast<int>(job.cache().window_steps());
  options.max_chunk_bytes =
      std::min<size_t>(options.max_chunk_bytes, job.cluster().max_message_bytes());
  return options;
}

BatchPlanner MakePlanner(const JobTables& tables, uint32_t num_servers,
                         const std::vector<VectorPlace>& places) {
  std::vector<int32_t> feature_tables;
  for (const FeatureSpec& feature : tables.features) feature_tables.push_back(feature.table_index);
  return BatchPlanner(TableIds(tables), std::move(feature_tables), ClusterMap(num_servers), places);
}

RowSourceOptions UncachedOptions(const Job& job, const JobTables& tables) {
  RowSourceOptions options;
  options.num_servers = NumServers(job.cluster());
  options.num_workers = job.cluster().workers();
  options.staleness_steps = job.train().staleness_steps();
  options.tables = tables.sparse;
  return options;
}

absl::StatusOr<RowSourceOptions> CachedOptions(const Job& job, const JobTables& tables,
                                               const WorkerOptions& worker) {
  RowSourceOptions options = UncachedOptions(job, tables);
  // A checkpoint's push fits into a server's room, beside the dense parameters and what else waits
  // there.
  ASSIGN_OR_RETURN(uint64_t room_bytes, ParseByteSize(job.cluster().max_pending_size()));
  room_bytes -= std::min(room_bytes, DensePushBytes(job));
  options.max_unwritten_bytes =
      worker.max_unwritten_bytes.value_or(std::min(kMaxUnwrittenBytes, room_bytes / 4));
  options.held = HasExchange(job, worker) ? HeldSet::kSharedCache : HeldSet::kCache;
  ASSIGN_OR_RETURN(const uint64_t budget_bytes, ParseByteSize(job.cache().budget()));
  const CacheUse use = options.held == HeldSet::kSharedCache ? CacheUse::kShared : CacheUse::kOwned;
  ASSIGN_OR_RETURN(options.layout, LayOutCache(tables, TrainBatch(job), use, budget_bytes));
  options.window_steps = static_cast<int>(job.cache().window_steps());
  options.prefetch_steps = static_cast<int>(PrefetchSteps(job.cache()));
  return options;
}

absl::StatusOr<std::unique_ptr<HotRows>> MakeHotRows(const Job& job, const JobTables& tables,
                                                     const Pack& pack) {
  ASSIGN_OR_RETURN(const uint64_t budget_bytes, ParseByteSize(job.fae().budget()));
  ASSIGN_OR_RETURN(std::unique_ptr<HotRows> rows,
                   HotRows::Make(tables, pack.hot_set(), budget_bytes, "fae.budget"));
  ASSIGN_OR_RETURN(const uint64_t room_bytes, ParseByteSize(job.cluster().max_pending_size()));
  RETURN_IF_ERROR(rows->CheckWriteBack(ClusterMap(NumServers(job.cluster())), room_bytes,
                                       DensePushBytes(job), "fae.budget"));
  return rows;
}

absl::StatusOr<StaticRows> OpenStaticRows(const Job& job, const JobTables& tables,
                                          RowSourceOptions* options) {
  StaticRows opened;
  ASSIGN_OR_RETURN(opened.pack, Pack::Open(job));
  ASSIGN_OR_RETURN(const uint64_t row_bytes,
                   StaticRowBytes(tables, TrainBatch(job), options->layout.budget_bytes));
  ASSIGN_OR_RETURN(opened.rows, HotRows::Make(tables, opened.pack->hot_set(), row_bytes,
                                              "cache.budget without the rows of one batch"));
  for (size_t g = 0; g < options->layout.groups.size(); ++g) {
    options->layout.groups[g].capacity = opened.rows->layout().groups[g].capacity;
  }
  options->held = HeldSet::kStatic;
  options->fixed_rows = opened.rows.get();
  return opened;
}

absl::Status CheckHostMemory(const CacheLayout& layout, const char* field, const Device& device) {
  if (!device.is_host_memory()) return absl::OkStatus();
  const uint64_t host_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                              static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  if (layout.budget_bytes <= host_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", layout.budget_bytes,
                                                 " bytes; this machine has ", host_bytes,
                                                 " bytes of memory"));
}

}  // namespace thermocline
