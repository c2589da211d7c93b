// Answers requests for the logs of processes on this host.
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

// A request for the last lines is answered at once. A request that goes on from an answer waits
// until there are further lines, for a few seconds at most. Not thread-safe.
class LogRequests {
 public:
  // `directory`, where the logs are, must outlive it.
  LogRequests(std::string host, const RunDirectory& directory)
      : host_(std::move(host)), directory_(directory) {}

  // Takes all requests that the controller has now. Requests that were taken before go on; those
  // that are missing are dropped. Times never go back.
  void Take(absl::Duration now, const google::protobuf::RepeatedPtrField<LogRequest>& asked);
  // Returns the answers that are due.
  //   is_over: no further line will come, so all answers are due
  std::vector<LogLines> Answer(absl::Duration now, bool is_over);
  // How long it is until Answer is due.
  absl::Duration UntilNextLook() const;

 private:
  struct Waiting {
    LogRequest request;
    absl::Duration until;  // At this time it is answered, even without lines.
  };

  void Add(absl::Duration now, const LogRequest& request);
  LogLines Begin(const LogRequest& request) const;

  const std::string host_;
  const RunDirectory& directory_;
  std::set<uint64_t> taken_;  // The ids of the controller's requests that were taken.
  std::vector<Waiting> waiting_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_LOG_REQUESTS_H_
