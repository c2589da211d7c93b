// Notices a job in which nothing advances any more. A worker that hangs keeps all others waiting,
// and no process fails.
#ifndef THERMOCLINE_DEPLOY_JOB_STALL_WATCH_H_
#define THERMOCLINE_DEPLOY_JOB_STALL_WATCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "deploy/report/stats_table.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// What a server has done so far: pushes accepted, keys pulled, rows loaded from a checkpoint,
// chunks of pushes replayed from its log. While any number changes, the server advances.
using ServerWork = std::array<uint64_t, 4>;
ServerWork WorkOf(const ServerStats& stats);

// A job advances when a server accepts a push, answers a pull, or recovers further, and when a
// worker advances in work that servers don't see (WorkerPhase.advances). Not thread-safe.
class StallWatch {
 public:
  // Counts from time 0 on.
  explicit StallWatch(size_t num_servers);

  // Takes reports at `now`: of all servers, by index, and of the workers that were asked. A process
  // that doesn't answer hasn't advanced.
  // REQUIRES: servers.size() == num_servers
  void Look(const std::vector<ServerReport>& servers, const std::vector<WorkerReport>& workers,
            absl::Duration now);

  // The time of the last look at which something had advanced.
  absl::Duration last_advance() const { return last_advance_; }

  // The furthest step that any server has reported as applied.
  Step reached() const { return reached_; }

  // Servers, by index, that didn't answer the last look, have no room for their push log, or
  // refused requests since the look before it.
  std::vector<size_t> ServersWaitedFor() const;
  // What the job waits for by the last look: ServersWaitedFor, and Behind(ranks) of the running
  // workers `ranks`. Where workers report their waits, names the first of them.
  //   "server 0 at 127.0.0.1:4000 does not answer: ..."
  //   "server 0 at 127.0.0.1:4000 has no room: 7 requests were refused since the look before"
  //   "worker 1 is waited for: its last push is of step 41"
  //   "worker 0 is waited for: it has pushed nothing; it is counting lines"
  //   "worker 2 is waited for: worker 0 has waited 61s for the gradients of step 41 of worker 2
  //    (broken pipe); its last push is of step 40; it is training"
  std::string WhoIsWaitedFor(absl::Span<const uint32_t> ranks) const;
  // The workers among `ranks` that all others wait for in the end. The workers' waits form chains,
  // and the wait that began first is the end of each. If it is for a worker, returns that worker.
  // If it is for a server that can go on, or no worker waits, returns the workers with the oldest
  // pushes. If it is for a server that can't, returns none.
  std::vector<uint32_t> Behind(absl::Span<const uint32_t> ranks) const;
  // The first wait for a block of `rank`: "worker 0 waited for the gradients of step 41"; "": there
  // is none.
  std::string WaitFor(uint32_t rank) const;

 private:
  struct Wait {
    uint32_t rank = 0;  // The worker that waits.
    WorkerWait what;
  };
  // The wait that began first, for a block of worker `of` if that is given. Null: there is none.
  const Wait* FirstWait(std::optional<uint32_t> of = std::nullopt) const;
  // False where ReasonToWaitFor(server) has a reason, or the server recovers.
  bool CanGoOn(uint32_t server) const;
  // Why the job waits for the server, as it follows "server 0 at ..."; "": it does not.
  std::string ReasonToWaitFor(size_t server) const;
  // The last step that all answering servers accepted from a worker; -1: there is none.
  int64_t AcceptedThrough(uint32_t rank) const;

  std::vector<ServerWork> seen_;          // [num_servers]
  std::vector<ServerReport> answers_;     // [num_servers] at the last look
  std::vector<uint64_t> refused_;         // [num_servers] requests since the start
  std::vector<uint64_t> refused_lately_;  // [num_servers] requests between the last two looks
  std::map<uint32_t, uint64_t> seen_of_workers_;  // WorkerPhase.advances, by rank
  std::vector<Wait> waits_;                       // At the last look, the oldest first.
  std::map<uint32_t, WorkerPhase> phases_;        // Workers that answered the last look, by rank.
  absl::Duration last_advance_;
  Step reached_ = kNoStep;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_STALL_WATCH_H_
