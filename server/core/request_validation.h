// Checks a request against the configuration: job and generation, tables, sizes, keys, values. It
// needs no other state, so it runs before any lock is taken and before a push is accepted.
//
// Thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_REQUEST_VALIDATION_H_
#define THERMOCLINE_SERVER_CORE_REQUEST_VALIDATION_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "common/wire/messages.h"
#include "server/core/server_config.h"

namespace thermocline {

class RequestValidation {
 public:
  // `config` outlives the object and is valid.
  explicit RequestValidation(const ServerConfig& config);

  // Errors: kFailedPrecondition (another job or generation).
  absl::Status CheckJob(const std::string& job_id, uint64_t generation) const;

  // Errors: as CheckJob; kInvalidArgument (rank, step or staleness out of range, ranges beyond the
  // keys, a key of another shard); kNotFound (unknown table).
  absl::Status CheckPull(const wire::PullRequest& request) const;

  // Errors: as CheckPull; kInvalidArgument (sizes that don't fit the table, the learning rate, row
  // limits that are not due, a gradient or a weight that is not finite, optimizer state that is
  // NaN; names table, key, count).
  absl::Status CheckPush(const wire::PushChunk& chunk) const;

 private:
  absl::StatusOr<const TableLayout*> FindTable(TableId table) const;
  absl::Status CheckKeys(const TableLayout& table, absl::Span<const Key> keys) const;
  absl::Status CheckRange(const wire::PushChunk& chunk, const wire::PushRange& range) const;
  absl::Status CheckRowLimits(const wire::PushChunk& chunk) const;
  // "server 1, rank 0, step 7: table 'C3', 120 keys: ..."
  absl::Status Invalid(const wire::Header& header, Step step, const std::string& what) const;

  const ServerConfig& config_;
  absl::flat_hash_map<TableId, const TableLayout*> tables_;
  // This server's partitions are [first_partition_, first_partition_ + num_partitions_).
  uint32_t first_partition_ = 0;
  uint32_t num_partitions_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_REQUEST_VALIDATION_H_
