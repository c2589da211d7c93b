// What the servers have said about the cuts of a generation, and what that means for each.
#ifndef THERMOCLINE_DEPLOY_JOB_CHECKPOINT_PROGRESS_H_
#define THERMOCLINE_DEPLOY_JOB_CHECKPOINT_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// What has become of a cut.
struct CheckpointVerdict {
  enum Kind {
    kUnderWay,
    kWhole,  // Every server has written its shard.
    kLost,   // `reason` says which server can't write its shard, and why.
  };
  Kind kind = kUnderWay;
  std::string reason;
  // Servers that don't have it and could still take it on: those ahead of the cut take a periodic
  // one on by themselves, and those that stand at it only if it is named to them.
  std::vector<size_t> ahead, there;
};

// Not thread-safe.
class CheckpointProgress {
 public:
  explicit CheckpointProgress(size_t num_servers) : servers_(num_servers) {}

  // Another process takes the server's place: forgets what it said.
  void Forget(size_t server);
  // How often that happened to it. An answer to what was asked before is void.
  uint64_t incarnation(size_t server) const { return servers_[server].incarnation; }
  // Takes the answer to STATUS of a server.
  void Update(size_t server, const CheckpointReply& reply);
  // The server has taken a cut on that was named to it.
  void Named(size_t server, Step cut);

  // The cuts that any server has, ascending.
  std::set<Step> Cuts() const;
  CheckpointVerdict Judge(Step cut) const;
  // The parts of a cut, by server. REQUIRES: Judge(cut) says kWhole
  std::vector<CutStatus> Shards(Step cut) const;

  // The furthest step that any server has applied; kNoStep where none has said any.
  Step Furthest() const;
  // Where all servers stand, if all have said the same.
  std::optional<Step> CommonStep() const;
  // Whether a server that began anew has accepted nothing between its last two answers: its log may
  // have lost pushes that it had acknowledged.
  bool MayLackPushes() const;

 private:
  struct Server {
    uint64_t incarnation = 0;
    bool has_answered = false;
    Step complete_through = kNoStep;
    Step accepted_through = kNoStep;
    bool stands_still = false;  // As MayLackPushes says.
    // At the answer before: a cut that it doesn't have and had passed then, it will never write.
    Step passed = kNoStep;
    std::map<Step, CutStatus> cuts;
  };

  std::vector<Server> servers_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_PROGRESS_H_
