// A node's stream to the controller (proto/node.proto), over gRPC: opened again when it breaks.
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

// Not thread-safe; `wake` is called on any thread when Work has something to do. Nothing but the
// waits that have a timeout waits for the controller, or for the network.
class ControllerStream {
 public:
  // Connects with the first Work. Errors: those of MakeChannelCredentials
  static absl::StatusOr<std::unique_ptr<ControllerStream>> Create(const std::string& address,
                                                                  const TlsFiles& tls,
                                                                  std::function<void()> wake);
  // Waits for the end of its streams, a second where a connection hangs.
  ~ControllerStream();

  // Opens the stream if there is none, and another one if no order has come for `silence`. Returns
  // the orders that came. Errors: kUnavailable and others (why a stream ended, once each; another
  // is opened in a moment); kFailedPrecondition (the controller refuses this node for good).
  absl::StatusOr<std::vector<NodeOrder>> Work(absl::Duration silence);
  // Whether a report would leave at once.
  bool CanWrite() const;
  // REQUIRES: CanWrite()
  void Write(NodeReport report);
  // When Work is due.
  absl::Duration UntilNextLook() const;
  // Waits, at most for `timeout`, until the report that was written has left.
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
  std::unique_ptr<Call> call_;               // Null: none is open.
  std::vector<std::unique_ptr<Call>> left_;  // That were left, and may not have ended.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_CONTROLLER_STREAM_H_
