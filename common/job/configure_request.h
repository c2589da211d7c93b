// What makes a server the owner of its shard of a job: the launcher sends it, and each worker sends
// it again to learn that its servers hold the tables it expects.
#ifndef THERMOCLINE_COMMON_JOB_CONFIGURE_REQUEST_H_
#define THERMOCLINE_COMMON_JOB_CONFIGURE_REQUEST_H_

#include <cstdint>
#include <string>

#include "common/base/ids.h"
#include "proto/job.pb.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// REQUIRES: a job that LoadJob returned; index < job.cluster.servers
ConfigureRequest MakeConfigureRequest(const Job& resolved, const std::string& job_id,
                                      uint64_t generation, ServerIndex index);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_CONFIGURE_REQUEST_H_
