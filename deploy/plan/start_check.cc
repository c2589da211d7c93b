// What `train` knows of a job's memory before it starts, without its data.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/cache_layout.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"
#include "deploy/plan/feature_estimates.h"
#include "deploy/plan/job_plan.h"
#include "deploy/report/format.h"

namespace thermocline {

std::string DescribeRisks(const Job& job) {
  const uint32_t staleness = job.train().staleness_steps();
  // One worker with a cache updates the rows itself; a trained model is past its first steps.
  const bool is_stale = job.cluster().workers() > 1 || !job.has_cache();
  if (staleness == 0 || !is_stale || job.train().learning_rate().warmup_steps() > 0 ||
      !job.init_from().empty()) {
    return "";
  }
  return absl::StrCat("warning: train.staleness_steps is ", staleness,
                      ", and train.learning_rate.warmup_steps is 0: the loss may run away in the "
                      "first steps; 100 steps of warm-up prevent that");
}

namespace {

// The error of each worker that divides its budget so.
absl::Status CheckCacheBudget(const Job& job, const JobTables& tables) {
  const int64_t workers = job.cluster().workers();
  const int64_t batch = (int64_t{job.train().batch_size()} + workers - 1) / workers;
  const CacheUse use = ExchangesBlocks(job) ? CacheUse::kShared : CacheUse::kOwned;
  ASSIGN_OR_RETURN(const uint64_t budget_bytes, ParseByteSize(job.cache().budget()));
  return LayOutCache(tables, batch, use, budget_bytes).status();
}

}  // namespace

absl::Status CheckStart(const Job& job, const Machine& machine, std::string* warning) {
  *warning = DescribeRisks(job);
  if (job.has_cache()) RETURN_IF_ERROR(CheckCacheBudget(job, ResolveTables(job)));
  if (machine.memory_bytes == 0) return absl::OkStatus();
  const uint64_t servers = NumServers(job.cluster()), workers = job.cluster().workers();
  const JobTables tables = ResolveTables(job);
  uint64_t certain = 0, budgets = 0;
  for (const DenseTable& tensor : tables.dense) {
    const uint64_t row_floats = tensor.layout.row_floats();
    // The servers' rows; each worker's weights, gradients and state.
    certain += tensor.num_blocks() * 4 * (row_floats + workers * (row_floats + kDenseBlockFloats));
  }
  if (certain > machine.memory_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the dense parameters of the model's layers take ", FormatBytes(certain), " of memory in ",
        servers, servers == 1 ? " server and " : " servers and ", workers,
        workers == 1 ? " worker; this machine has " : " workers; this machine has ",
        FormatBytes(machine.memory_bytes)));
  }
  const bool on_host = job.device() == Job::CPU || machine.gpus.empty();
  if (!job.has_worker() && on_host) {
    const ModelSpec model = DescribeModel(job);
    const auto samples = static_cast<int64_t>((job.train().batch_size() + workers - 1) / workers);
    const uint64_t activations =
        workers * model.ActivationBytes({samples, samples}, ComputeOn::kCpu);
    if (certain + activations > machine.memory_bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat("what the model's layers compute of a batch takes ",
                       FormatBytes(activations), " of memory; this machine has ",
                       FormatBytes(machine.memory_bytes), ". train.batch_size is ",
                       job.train().batch_size(), " (`thermocline plan` says what takes how much)"));
    }
    // Lists are full, and worker 0 evaluates.
    const std::vector<double> steps = StepsOfSample(tables, model.inputs.sequences.size(),
                                                    EmbeddedFeatures(job), /*figures=*/nullptr);
    const int64_t scored = std::max<int64_t>(samples, job.train().eval_batch_size());
    const uint64_t most =
        model.ActivationBytes({scored, samples}, ComputeOn::kCpu, steps) +
        (workers - 1) * model.ActivationBytes({samples, samples}, ComputeOn::kCpu, steps);
    if (certain + most > machine.memory_bytes) {
      absl::StrAppend(
          warning, warning->empty() ? "" : "\n",
          "warning: what the model's layers compute of a batch takes up to ", FormatBytes(most),
          " of memory", model.inputs.sequences.empty() ? "" : ", where lists have their max_length",
          "; this machine has ", FormatBytes(machine.memory_bytes), ". train.batch_size is ",
          job.train().batch_size(), ", train.eval_batch_size ", job.train().eval_batch_size(),
          " (`thermocline plan` says what takes how much)");
    }
    certain += activations;
  }
  for (const TableLayout& table : tables.sparse) budgets += servers * table.memory_budget_bytes;
  if (job.has_cache() && on_host)
    budgets += workers * ParseByteSize(job.cache().budget()).value_or(0);
  if (job.has_fae() && on_host) budgets += workers * ParseByteSize(job.fae().budget()).value_or(0);
  if (job.has_worker()) budgets += ParseByteSize(job.worker().memory()).value_or(0);
  if (certain + budgets > machine.memory_bytes) {
    absl::StrAppend(warning, warning->empty() ? "" : "\n",
                    "warning: the memory budgets of tables, cache or hot rows, and the ",
                    job.has_worker() ? "script (worker.memory)" : "dense parameters", " add up to ",
                    FormatBytes(certain + budgets), "; this machine has ",
                    FormatBytes(machine.memory_bytes),
                    " (`thermocline plan` says what takes how much)");
  }
  return absl::OkStatus();
}

}  // namespace thermocline
