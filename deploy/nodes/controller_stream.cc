#include "deploy/nodes/controller_stream.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/net/roles.h"

namespace thermocline {
namespace {

constexpr absl::Duration kReopenDelay = absl::Milliseconds(300);
constexpr absl::Duration kKeepalive = absl::Seconds(10);
// For the end of calls that were canceled: at once, unless their connection hangs.
constexpr absl::Duration kEndPatience = absl::Seconds(1);

// A connection through which nothing comes is closed within two keepalives, so that the streams of
// a node are opened again over a new one.
std::shared_ptr<grpc::Channel> OpenKeptAlive(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments = DataPlaneArguments(kDefaultMaxMessageBytes);
  const int keepalive_ms = static_cast<int>(absl::ToInt64Milliseconds(kKeepalive));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // As many as it takes.
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

// One stream, from its opening to its end. gRPC's threads call On...; the node's thread the others,
// and destroys it once it has ended: one of gRPC's own threads must not be the last that uses gRPC.
// A report that stands in a full send queue, of a controller that has vanished, holds the end up:
// the node leaves such a call alone.
class ControllerStream::Call : public grpc::ClientBidiReactor<NodeReport, NodeOrder> {
 public:
  static std::unique_ptr<Call> Open(Controller::Stub* stub, std::function<void()> wake) {
    auto call = std::make_unique<Call>(std::move(wake));
    stub->async()->Attach(&call->context_, call.get());
    call->AddHold();  // The node's thread may start a write at any time.
    call->StartRead(&call->order_);
    call->StartCall();
    return call;
  }
  explicit Call(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Ends it, and waits for nothing; `wake` is not called any more.
  void Leave() {
    {
      absl::MutexLock lock(&mutex_);
      wake_ = nullptr;
    }
    context_.TryCancel();
    Release();
  }

  void OnReadDone(bool ok) override {
    // Who has a certificate of a server of this job is no controller.
    absl::Status role;
    if (ok) role = CheckRole(*context_.auth_context(), "orders", {Role::kController});
    if (!role.ok()) {
      context_.TryCancel();
      ok = false;
    }
    {
      absl::MutexLock lock(&mutex_);
      if (ok) orders_.push_back(order_);
      if (!role.ok()) refused_ = role;
      is_broken_ |= !ok;
      Wake();
    }
    if (ok) return StartRead(&order_);
    Release();  // The end of the call is only seen without a hold.
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    is_writing_ = false;
    is_broken_ |= !ok;
    Wake();
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    end_ = refused_.ok() ? FromGrpcStatus(status) : refused_;
    is_done_ = true;
    Wake();
  }

  std::vector<NodeOrder> TakeOrders() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(orders_, {});
  }
  std::optional<absl::Status> end() const {
    absl::MutexLock lock(&mutex_);
    if (!is_done_) return std::nullopt;
    return end_;
  }
  bool CanWrite() const {
    absl::MutexLock lock(&mutex_);
    return !is_writing_ && !is_broken_ && !is_done_;
  }
  void Write(NodeReport report) {
    {
      absl::MutexLock lock(&mutex_);
      is_writing_ = true;
    }
    report_ = std::move(report);
    StartWrite(&report_);
  }
  void AwaitWritten(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !is_writing_ || is_broken_ || is_done_;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&is_over), timeout);
  }
  // Whether it has ended, at most `timeout` from now.
  bool AwaitEnd(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_done_), timeout);
  }

 private:
  void Release() {
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(is_released_, true)) return;
    }
    RemoveHold();
  }
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (wake_) wake_();
  }

  grpc::ClientContext context_;
  NodeReport report_;  // The report that is being written.
  NodeOrder order_;    // The order that is being read.
  mutable absl::Mutex mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);  // Null: the node has left.
  std::vector<NodeOrder> orders_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_released_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // Why the peer may not give orders.
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<ControllerStream>> ControllerStream::Create(
    const std::string& address, const TlsFiles& tls, std::function<void()> wake) {
  const auto credentials = MakeChannelCredentials(tls);
  if (!credentials.ok()) return credentials.status();
  return std::unique_ptr<ControllerStream>(
      new ControllerStream(address, *credentials, std::move(wake)));
}

ControllerStream::ControllerStream(const std::string& address,
                                   const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                   std::function<void()> wake)
    : wake_(std::move(wake)),
      channel_(OpenKeptAlive(address, credentials)),
      stub_(Controller::NewStub(channel_)) {}

ControllerStream::~ControllerStream() {
  Leave();
  const absl::Duration until = watch_.Elapsed() + kEndPatience;
  for (std::unique_ptr<Call>& call : left_) {
    if (call->AwaitEnd(std::max(absl::ZeroDuration(), until - watch_.Elapsed()))) continue;
    // gRPC still uses it. It stays for what is left of the process's life.
    static auto* const without_end = new std::vector<std::unique_ptr<Call>>();
    without_end->push_back(std::move(call));
  }
}

void ControllerStream::Leave() {
  if (call_ == nullptr) return;
  call_->Leave();
  left_.push_back(std::move(call_));
}

absl::StatusOr<std::vector<NodeOrder>> ControllerStream::Work(absl::Duration silence) {
  const absl::Duration now = watch_.Elapsed();
  left_.erase(std::remove_if(left_.begin(), left_.end(),
                             [](const auto& call) { return call->end().has_value(); }),
              left_.end());
  if (call_ == nullptr) {
    if (now < open_at_) return std::vector<NodeOrder>();
    call_ = Call::Open(stub_.get(), wake_);
    heard_at_ = now;
  }
  const std::optional<absl::Status> end = call_->end();  // First: orders come before it.
  std::vector<NodeOrder> orders = call_->TakeOrders();
  if (!orders.empty()) heard_at_ = now;
  const bool is_silent = now - heard_at_ >= silence;
  if (!orders.empty() || (!end.has_value() && !is_silent)) return orders;
  Leave();
  open_at_ = now + kReopenDelay;
  if (!end.has_value()) return absl::DeadlineExceededError("no answer");
  if (end->ok()) return absl::UnavailableError("the controller has ended the connection");
  return *end;
}

bool ControllerStream::CanWrite() const { return call_ != nullptr && call_->CanWrite(); }

void ControllerStream::Write(NodeReport report) { call_->Write(std::move(report)); }

absl::Duration ControllerStream::UntilNextLook() const {
  if (call_ != nullptr) return absl::InfiniteDuration();
  return std::max(absl::ZeroDuration(), open_at_ - watch_.Elapsed());
}

void ControllerStream::AwaitWritten(absl::Duration timeout) {
  if (call_ != nullptr) call_->AwaitWritten(timeout);
}

void ControllerStream::Close(absl::Duration timeout) {
  AwaitWritten(timeout);
  Leave();
}

}  // namespace thermocline
