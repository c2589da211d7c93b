// Notices a job in which nothing advances any more: a worker that hangs keeps all others waiting,
// and none of them fails.
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
// shards of pushes replayed from its log. While it changes, the server advances.
using ServerWork = std::array<uint64_t, 4>;
ServerWork WorkOf(const ServerStats& stats);

// A job advances when a server accepts a push, answers a pull, or recovers further, and when a
// worker gets further in what servers may see nothing of (WorkerPhase.advances). Not thread-safe.
class StallWatch {
 public:
  // Counts from time 0 on.
  explicit StallWatch(size_t num_servers);

  // Takes what the servers, by index, and the workers that were asked say at `now`. One that
  // doesn't answer hasn't advanced.
  // REQUIRES: servers.size() == num_servers
  void Look(const std::vector<ServerReport>& servers, const std::vector<WorkerReport>& workers,
            absl::Duration now);

  // The last look at which something had advanced.
  absl::Duration last_advance() const { return last_advance_; }

  // The last step that is applied, as far as any server has said.
  Step reached() const { return reached_; }

  // Servers, by index, that didn't answer the last look, have no room for their push log, or
  // refused requests since the look before it.
  std::vector<size_t> ServersWaitedFor() const;
  // What the job waits for, as far as the last look shows: ServersWaitedFor, and those of the
  // running workers `ranks` that are Behind. Where workers say what they wait for, the first of
  // their waits is named.
  //   "server 0 at 127.0.0.1:4000 does not answer: ..."
  //   "server 0 at 127.0.0.1:4000 has no room: 7 requests were refused since the look before"
  //   "worker 1 is waited for: its last push is of step 41"
  //   "worker 0 is waited for: it has pushed nothing; it is counting lines"
  //   "worker 2 is waited for: worker 0 has waited 61s for the gradients of step 41 of worker 2
  //    (broken pipe); its last push is of step 40; it is training"
  std::string WhoIsWaitedFor(absl::Span<const uint32_t> ranks) const;
  // Those of `ranks` that all others wait for in the end. All workers' waits form chains, and the
  // first wait (WorkerWait) is the last link of each: the worker that it is for. Where it is for a
  // server that can go on, or no worker waits, those whose pushes are the oldest; where it is for
  // one that can't, nobody.
  std::vector<uint32_t> Behind(absl::Span<const uint32_t> ranks) const;
  // The first wait for a block of `rank`: "worker 0 waited for the gradients of step 41"; "": none.
  std::string WaitFor(uint32_t rank) const;

 private:
  struct Wait {
    uint32_t rank = 0;  // Who waits.
    WorkerWait what;
  };
  // The first wait of all workers; only those for a block of `of`, if it is given. Null: none.
  const Wait* FirstWait(std::optional<uint32_t> of = std::nullopt) const;
  // A server that can't go on has a reason to be waited for, or recovers.
  bool CanGoOn(uint32_t server) const;
  // Why the server is waited for: what follows "server 0 at ..."; "": it is not.
  std::string ReasonToWaitFor(size_t server) const;
  // The last step that every answering server accepted from a worker; -1: none.
  int64_t AcceptedThrough(uint32_t rank) const;

  std::vector<ServerWork> seen_;                  // [num_servers]
  std::vector<ServerReport> answers_;             // [num_servers], at the last look
  std::vector<uint64_t> refused_;                 // [num_servers] requests, ever ...
  std::vector<uint64_t> refused_lately_;          // ... and between the last two looks
  std::map<uint32_t, uint64_t> seen_of_workers_;  // advances, by rank
  std::vector<Wait> waits_;                       // at the last look, the first one first
  std::map<uint32_t, WorkerPhase> phases_;        // by rank, of those that answered the last look
  absl::Duration last_advance_;
  Step reached_ = kNoStep;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_STALL_WATCH_H_
