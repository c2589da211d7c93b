// Requests for the logs of processes on this host, and their answers.
#ifndef THERMOCLINE_DEPLOY_NODES_LOG_REQUESTS_H_
#define THERMOCLINE_DEPLOY_NODES_LOG_REQUESTS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "deploy/processes/run_directory.h"
#include "proto/node.pb.h"

namespace thermocline {

// A request for the last lines is answered at once. One that goes on from an answer waits until
// there are lines behind it, for a few seconds at most. Not thread-safe.
class LogRequests {
 public:
  // `directory`, where the logs are, must outlive it.
  LogRequests(std::string host, const RunDirectory& directory)
      : host_(std::move(host)), directory_(directory) {}

  // Takes all that the controller asks for; what was taken before goes on, and what it does not ask
  // for any more is dropped. Times never go back.
  void Take(absl::Duration now, const google::protobuf::RepeatedPtrField<LogRequest>& asked);
  // The answers that are due. `is_over`: no line comes any more; all are.
  std::vector<LogLines> Answer(absl::Duration now, bool is_over);
  // When Answer is due.
  absl::Duration UntilNextLook() const;

 private:
  struct Waiting {
    LogRequest request;
    absl::Duration until;  // Then it is answered without lines.
  };

  void Add(absl::Duration now, const LogRequest& request);
  LogLines Begin(const LogRequest& request) const;

  const std::string host_;
  const RunDirectory& directory_;
  std::set<uint64_t> taken_;  // By id, of those that are asked for.
  std::vector<Waiting> waiting_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_LOG_REQUESTS_H_
