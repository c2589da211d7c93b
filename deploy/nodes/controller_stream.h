// A node's stream to the controller (proto/node.proto), over gRPC. When it breaks, it is opened
// again.
#ifndef THERMOCLINE_DEPLOY_NODES_CONTROLLER_STREAM_H_
#define THERMOCLINE_DEPLOY_NODES_CONTROLLER_STREAM_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/timing.h"
#include "common/net/rpc.h"
#include "proto/node.grpc.pb.h"

namespace thermocline {

// Not thread-safe. It calls `wake` on any thread when Work has something to do. Only the calls with
// a timeout wait for the controller or for the network.
class ControllerStream {
 public:
  // Connects with the first Work. Errors: MakeChannelCredentials'
  static absl::StatusOr<std::unique_ptr<ControllerStream>> Create(const std::string& address,
                                                                  const TlsFiles& tls,
                                                                  std::function<void()> wake);
  // Waits for the end of its streams, but no longer than a second.
  ~ControllerStream();

  // Opens a stream if there is none, and a new one if no order has come for `silence`. Returns the
  // orders that have come. Errors: kFailedPrecondition (the controller refuses this node for good);
  // kUnavailable and others (why a stream has ended, once each; the next call opens a new one).
  absl::StatusOr<std::vector<NodeOrder>> Work(absl::Duration silence);
  // Whether Write would send a report at once.
  bool CanWrite() const;
  // REQUIRES: CanWrite()
  void Write(NodeReport report);
  // How long it is until Work is due.
  absl::Duration UntilNextLook() const;
  // Waits, at most for `timeout`, until the last report has been sent.
  void AwaitWritten(absl::Duration timeout);
  // The same; then ends the stream.
  void Close(absl::Duration timeout);

 private:
  class Call;

  void Leave();

  ControllerStream(const std::string& address,
                   const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                   std::function<void()> wake);

  const std::function<void()> wake_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Controller::Stub> stub_;
  const Stopwatch watch_;
  absl::Duration open_at_, heard_at_;
  std::unique_ptr<Call> call_;  // Null: there is no stream.
  std::vector<std::unique_ptr<Call>>
      left_;  // Streams that are not used any more, but may not have ended.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_CONTROLLER_STREAM_H_
