#include "common/job/server_settings.h"

#include "common/base/check.h"
#include "common/base/text.h"

namespace thermocline {

ServerSettings ServerSettingsOf(const Job& resolved) {
  const Cluster& cluster = resolved.cluster();
  const auto pending = ParseByteSize(cluster.max_pending_size());
  CHECK(pending.ok());  // LoadJob checked it
  return {static_cast<int>(cluster.server_threads()),
          static_cast<int>(cluster.handler_threads()),
          *pending,
          cluster.max_held_pulls(),
          static_cast<int>(cluster.max_message_bytes()),
          resolved.init().directory()};
}

}  // namespace thermocline
