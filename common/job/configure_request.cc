#include "common/job/configure_request.h"

#include "common/job/job_tables.h"
#include "common/math/table_spec.h"
#include "common/wire/messages.h"

namespace thermocline {

ConfigureRequest MakeConfigureRequest(const Job& resolved, const std::string& job_id,
                                      uint64_t generation, ServerIndex index) {
  ConfigureRequest request;
  request.set_protocol_version(wire::kProtocolVersion);
  request.set_job_id(job_id);
  request.set_generation(generation);
  request.set_server_index(index.value());
  request.set_num_servers(resolved.cluster().servers());
  request.set_num_workers(resolved.cluster().workers());
  request.set_seed(resolved.seed());
  request.set_staleness_steps(resolved.train().staleness_steps());
  request.set_durability(resolved.cluster().durability());
  if (resolved.has_checkpoint()) {
    const CheckpointPolicy& policy = resolved.checkpoint();
    request.set_checkpoint_directory(policy.directory());
    request.set_checkpoint_every_steps(policy.every_steps());
    request.set_checkpoint_full_every(policy.full_every());
  }
  for (const TableLayout& layout : ResolveTables(resolved).AllLayouts()) {
    *request.add_tables() = TableLayoutToProto(layout);
  }
  return request;
}

}  // namespace thermocline
