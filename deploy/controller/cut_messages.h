// What has become of cuts, on its way to those who must know.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_CUT_MESSAGES_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_CUT_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "deploy/controller/cut_participants.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// For people.
struct CheckpointEvent {
  enum Kind { kCommitted, kCalledOff, kNotRemoved };
  Kind kind = kCommitted;
  Step cut;
  std::string name;      // Of the checkpoint.
  std::string reason;    // Why it was called off, or why old ones are not removed.
  bool is_full = false;  // No server builds on an older one.
  uint64_t bytes = 0;    // Written for it.
  double pause_s = 0;    // The longest of any server, as is write_s.
  double write_s = 0;
};

// Not thread-safe.
class CutMessages {
 public:
  // Which process is in a server's place: a message is for the one that was there when it was made.
  using Incarnation = std::function<uint64_t(size_t server)>;

  // `participants` must outlive this object.
  CutMessages(CutParticipants* participants, Incarnation incarnation)
      : participants_(*participants), incarnation_(std::move(incarnation)) {}

  // COMMITTED goes to all servers, CALL_OFF to the workers as well.
  void Send(CheckpointRequest::Action action, Step cut);
  // CALL_OFF of a cut that no server was ever told of.
  void CallOffAtWorkers(Step cut);
  // Says what hasn't been said yet, to each server in order, and to the workers once every server
  // has heard of it: a worker that goes past a cut would be refused where the cut still is. Who
  // doesn't answer is told the next time; a worker only a few times, since a cut that it writes
  // needlessly does no harm. Servers that are known not to answer now, !answers[server], are not
  // asked: each would take a call's whole time. `answers`: [num_servers]; or empty: all may.
  void Deliver(const std::vector<bool>& answers = {});
  // Whether somebody has still to be told something about the cut.
  bool IsPending(Step cut) const;

 private:
  struct Message {
    CheckpointRequest::Action action;
    Step cut;
    bool to_worker = false;
    size_t index = 0;  // of the server, or rank of the worker
    uint64_t incarnation = 0;
    int attempts = 0;
  };

  bool IsDone(Message* message, bool answers);

  CutParticipants& participants_;
  const Incarnation incarnation_;
  std::vector<Message> messages_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_CUT_MESSAGES_H_
