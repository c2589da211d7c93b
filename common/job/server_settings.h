// What a server gets of its job at its start, beside what Configure brings.
#ifndef THERMOCLINE_COMMON_JOB_SERVER_SETTINGS_H_
#define THERMOCLINE_COMMON_JOB_SERVER_SETTINGS_H_

#include <cstdint>
#include <string>

#include "proto/job.pb.h"

namespace thermocline {

// The launcher gives them to thermocline-server by flags, and a worker to its embedded server as
// they are. Both take all members apart, so that one more does not compile where it is not given.
struct ServerSettings {
  int apply_threads = 0, handler_threads = 0;
  uint64_t max_pending_bytes = 0;
  uint32_t max_held_pulls = 0;
  int max_message_bytes = 0;
  std::string init_root;  // "": the job begins with no checkpoint.
};

// REQUIRES: a job that LoadJob returned.
ServerSettings ServerSettingsOf(const Job& resolved);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_SERVER_SETTINGS_H_
