// What Configure makes of a server: its tables, and what checks and applies requests to them.
//
// Thread-safe but for `applier`, which one thread at a time may use. Fixed once made.
#ifndef THERMOCLINE_SERVER_CORE_SERVED_JOB_H_
#define THERMOCLINE_SERVER_CORE_SERVED_JOB_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "server/core/request_validation.h"
#include "server/core/server_config.h"
#include "server/core/step_applier.h"
#include "server/tables/table_set.h"

namespace thermocline {

class ServerStats;  // proto/parameter_server.proto

struct ServedJob {
  // REQUIRES: `job_config` is valid.
  // spills: as TableSet takes them.
  ServedJob(const ServerConfig& job_config, int apply_threads, std::vector<TableSpill> spills = {});

  // Errors: kNotFound.
  absl::StatusOr<TableSet::Entry*> FindTable(TableId table);

  void FillStats(ServerStats* stats) const;

  const ServerConfig config;
  const RequestValidation validation;
  TableSet tables;
  StepApplier applier;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_SERVED_JOB_H_
