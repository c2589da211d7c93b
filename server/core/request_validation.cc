#include "server/core/request_validation.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

// Whether [begin, begin + count) lies within `size`.
bool Within(size_t begin, size_t count, size_t size) {
  return begin <= size && count <= size - begin;
}

std::string Describe(const TableLayout& table, size_t num_keys) {
  return absl::StrCat("table '", table.name, "', ", num_keys, " keys: ");
}

}  // namespace

RequestValidation::RequestValidation(const ServerConfig& config) : config_(config) {
  for (const TableLayout& table : config.tables) tables_.emplace(table.id, &table);
  const auto partitions = ClusterMap(config.num_servers).PartitionRangeOf(config.server_index);
  first_partition_ = partitions.begin;
  num_partitions_ = partitions.end - partitions.begin;
}

absl::Status RequestValidation::CheckJob(const std::string& job_id, uint64_t generation) const {
  if (job_id != config_.job_id) {
    return absl::FailedPreconditionError(absl::StrCat("server ", config_.server_index.value(),
                                                      " serves job '", config_.job_id,
                                                      "', the request is of job '", job_id, "'"));
  }
  if (generation != config_.generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("server ", config_.server_index.value(), " is in generation ",
                     config_.generation, ", the request is of generation ", generation));
  }
  return absl::OkStatus();
}

absl::Status RequestValidation::CheckPull(const wire::PullRequest& request) const {
  const wire::Header& header = request.header;
  RETURN_IF_ERROR(CheckJob(header.job_id, header.generation));
  const auto invalid = [&](const auto&... what) {
    return Invalid(header, request.step, absl::StrCat("pull: ", what...));
  };
  if (request.step < Step(0)) return invalid("negative step");
  if (request.kind == wire::PullKind::kTrain) {
    if (header.rank.value() >= config_.num_workers) {
      return invalid("the job has ", config_.num_workers, " workers");
    }
    if (request.staleness_steps > config_.staleness_steps) {
      return invalid("staleness_steps ", request.staleness_steps, " is more than the job's ",
                     config_.staleness_steps);
    }
    if (request.after_step >= request.step) {
      return invalid("after_step ", request.after_step.value(), " is not before the step");
    }
  } else if (header.acked_through != kNoStep && header.rank.value() >= config_.num_workers) {
    return invalid("acked_through ", header.acked_through.value(), " of no worker");
  }
  if (request.count_rows &&
      (request.kind != wire::PullKind::kTrain || header.rank != WorkerRank(0) ||
       request.staleness_steps > 0 || !request.tables.empty())) {
    return invalid("only rank 0 counts rows, for training, in sync, and without keys");
  }
  for (const wire::KeyRange& range : request.tables) {
    ASSIGN_OR_RETURN(const TableLayout* table, FindTable(range.table));
    if (!Within(range.begin, range.count, request.keys.size())) {
      return invalid(Describe(*table, range.count), "the request has only ", request.keys.size());
    }
    const absl::Status keys = CheckKeys(*table, request.KeysOf(range));
    if (!keys.ok()) return invalid(std::string(keys.message()));
  }
  return absl::OkStatus();
}

absl::Status RequestValidation::CheckPush(const wire::PushChunk& chunk) const {
  const wire::Header& header = chunk.header;
  RETURN_IF_ERROR(CheckJob(header.job_id, header.generation));
  const auto invalid = [&](const auto&... what) {
    return Invalid(header, chunk.step, absl::StrCat("push: ", what...));
  };
  if (header.rank.value() >= config_.num_workers) {
    return invalid("the job has ", config_.num_workers, " workers");
  }
  if (chunk.step < Step(0)) return invalid("negative step");
  if (chunk.step > kLastStep) return invalid("steps end at ", kLastStep.value());
  if (!std::isfinite(chunk.learning_rate)) return invalid("learning rate ", chunk.learning_rate);
  if (chunk.counts.size() != chunk.keys.size()) {
    return invalid(chunk.keys.size(), " keys with ", chunk.counts.size(), " counts");
  }
  const absl::Status limits = CheckRowLimits(chunk);
  if (!limits.ok()) return invalid(std::string(limits.message()));
  for (const wire::PushRange& range : chunk.tables) {
    const absl::Status status = CheckRange(chunk, range);
    if (absl::IsInvalidArgument(status)) return invalid(std::string(status.message()));
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// Rank 0's last chunk has one for every table whose rows were counted after the step before: what
// is forgotten must not depend on a server.
absl::Status RequestValidation::CheckRowLimits(const wire::PushChunk& chunk) const {
  const bool has_limits = chunk.header.rank == WorkerRank(0) && chunk.chunk + 1 == chunk.num_chunks;
  size_t due = 0;
  for (const TableLayout& table : config_.tables) {
    if (!has_limits || !table.CountsAfter(chunk.step - 1)) continue;
    ++due;
    const auto is_of_table = [&](const wire::RowLimit& limit) { return limit.table == table.id; };
    const auto limit = std::find_if(chunk.row_limits.begin(), chunk.row_limits.end(), is_of_table);
    if (limit == chunk.row_limits.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("table '", table.name, "' lacks the row limit that is due"));
    }
    if (int64_t{limit->oldest_kept} > chunk.step.value() + 1) {
      return absl::InvalidArgumentError(absl::StrCat("table '", table.name, "': the row limit ",
                                                     limit->oldest_kept, " is of a later step"));
    }
  }
  if (due == chunk.row_limits.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(chunk.row_limits.size(), " row limits, where ", due, " are due"));
}

absl::Status RequestValidation::CheckRange(const wire::PushChunk& chunk,
                                           const wire::PushRange& range) const {
  ASSIGN_OR_RETURN(const TableLayout* table, FindTable(range.table));
  const auto invalid = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(*table, range.count), what...));
  };
  if (static_cast<uint32_t>(range.kind) >= wire::kNumPushKinds) {
    return invalid("unknown kind ", static_cast<int>(range.kind));
  }
  const bool assign = range.kind == wire::PushKind::kAssign;
  const bool count = range.kind == wire::PushKind::kCount;
  const size_t width = count ? 0 : assign ? table->row_floats() : table->dim;
  if (!Within(range.begin, range.count, chunk.keys.size()) ||
      !Within(range.value_begin, range.value_floats, chunk.values.size())) {
    return invalid("the chunk has only ", chunk.keys.size(), " keys and ", chunk.values.size(),
                   " values");
  }
  if (range.value_floats != range.count * width) {
    return invalid(range.value_floats, " values where ",
                   count    ? "a key without a gradient has "
                   : assign ? "a row has "
                            : "a gradient has ",
                   width);
  }
  const absl::Span<const Key> keys = chunk.KeysOf(range);
  RETURN_IF_ERROR(CheckKeys(*table, keys));
  const absl::Span<const float> values = chunk.ValuesOf(range);
  const size_t bad = FindBadInRows(values, table->dim, width);
  if (bad < values.size()) {
    return invalid(assign ? "row" : "gradient", " of key ", keys[bad / width], " holds ",
                   values[bad]);
  }
  return absl::OkStatus();
}

absl::StatusOr<const TableLayout*> RequestValidation::FindTable(TableId table) const {
  const auto it = tables_.find(table);
  if (it != tables_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat("server ", config_.server_index.value(),
                                          " has no table with id ", table.value()));
}

absl::Status RequestValidation::CheckKeys(const TableLayout& table,
                                          absl::Span<const Key> keys) const {
  if (num_partitions_ == kNumPartitions) return absl::OkStatus();
  const uint64_t salt = TableSalt(table.id);
  bool all_ours = true;
  for (const Key key : keys)
    all_ours &= PartitionOfHash(KeyHash(salt, key)) - first_partition_ < num_partitions_;
  if (all_ours) return absl::OkStatus();
  for (const Key key : keys) {
    if (PartitionOfHash(KeyHash(salt, key)) - first_partition_ < num_partitions_) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(table, keys.size()), "key ", key, " is not of this shard"));
  }
  return absl::OkStatus();
}

absl::Status RequestValidation::Invalid(const wire::Header& header, Step step,
                                        const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat("server ", config_.server_index.value(), ", rank ",
                                                 header.rank.value(), ", step ", step.value(), ": ",
                                                 what));
}

}  // namespace thermocline
