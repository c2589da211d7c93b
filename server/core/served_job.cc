#include "server/core/served_job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

ServedJob::ServedJob(const ServerConfig& job_config, int apply_threads,
                     std::vector<TableSpill> spills)
    : config(job_config),
      validation(config),
      tables(config.tables, config.seed, std::move(spills)),
      applier(&tables, apply_threads) {}

absl::StatusOr<TableSet::Entry*> ServedJob::FindTable(TableId table) {
  const size_t position = tables.Find(table);
  if (position < tables.size()) return &tables.at(position);
  return absl::NotFoundError(absl::StrCat("server ", config.server_index.value(),
                                          " has no table with id ", table.value()));
}

void ServedJob::FillStats(ServerStats* stats) const {
  applier.apply_timer().CopyTo("apply", stats->add_stages());
  applier.merge_timer().CopyTo("merge", stats->add_stages());
  stats->set_job_id(config.job_id);
  stats->set_generation(config.generation);
  stats->set_server_index(config.server_index.value());
  stats->set_num_servers(config.num_servers);
  tables.FillStats(stats);
}

}  // namespace thermocline
