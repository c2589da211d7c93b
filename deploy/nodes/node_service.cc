#include "deploy/nodes/node_service.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "common/net/host_port.h"
#include "common/net/rpc.h"

namespace thermocline {
namespace {

absl::Status JobIsOver() { return absl::UnavailableError("the job has ended"); }

// Whether a host's name leads to an IP address.
bool LeadsTo(const std::string& name, const std::string& ip) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST] = "";
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0 &&
        IpAddress(text) == ip) {
      return true;
    }
  }
  return false;
}

}  // namespace

// One stream of one node. gRPC calls OnReadDone, OnWriteDone and OnDone; the last deletes it.
class NodeService::Stream : public grpc::ServerBidiReactor<NodeReport, NodeOrder> {
 public:
  Stream(NodeService* service, std::string peer) : service_(*service), peer_(std::move(peer)) {
    {
      absl::MutexLock lock(&service_.mutex_);
      service_.streams_.insert(this);
    }
    StartRead(&report_);
  }

  void OnReadDone(bool ok) override {
    // Once, and outside of the mutex: whom to ask may take long to answer.
    const std::string& address = report_.hello().address();
    if (ok && host_.empty() && !IpAddress(address).has_value() && LeadsTo(address, peer_)) {
      peer_ = address;
    }
    absl::MutexLock lock(&service_.mutex_);
    if (!ok) return End(absl::OkStatus());
    host_ = report_.hello().host();
    nonce_ = report_.nonce();
    const absl::Status taken = service_.table_.OnReport(service_.watch_.Elapsed(), report_, peer_);
    service_.AnswerLogs();
    service_.wake_();
    if (!taken.ok()) return End(taken);
    has_to_write_ = true;
    service_.SendChanges();
    Write();
    StartRead(&report_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&service_.mutex_);
    is_writing_ = false;
    if (has_to_end_) return EndNow();
    if (ok) Write();
  }
  void OnDone() override {
    {
      absl::MutexLock lock(&service_.mutex_);
      service_.streams_.erase(this);
    }
    delete this;
  }

  // The host of the node's newest report.
  const std::string& host() const { return host_; }
  // REQUIRES: the service's mutex, which the analysis can't see here
  void MarkChanged() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    has_to_write_ = true;
    Write();
  }

 private:
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(service_.mutex_) {
    if (!has_to_write_ || is_writing_ || has_to_end_ || host_.empty()) return;
    if (!service_.table_.MayOrder()) return;
    has_to_write_ = false;
    is_writing_ = true;
    order_ = service_.table_.OrderFor(host_, nonce_);
    StartWrite(&order_);
  }
  // After the write that is under way.
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(service_.mutex_) {
    if (has_to_end_) return;
    has_to_end_ = true;
    end_ = ToGrpcStatus(status);
    if (!is_writing_) EndNow();
  }
  void EndNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(service_.mutex_) {
    if (!std::exchange(has_ended_, true)) Finish(end_);
  }

  NodeService& service_;
  std::string peer_;  // Where the node connects from: an IP address, or its name for that.
  NodeReport report_;
  NodeOrder order_;
  std::string host_;
  uint64_t nonce_ = 0;
  bool has_to_write_ = false, is_writing_ = false, has_to_end_ = false, has_ended_ = false;
  grpc::Status end_;
};

NodeService::NodeService(NodeTable::Options options, std::function<void()> wake)
    : wake_(std::move(wake)), table_(std::move(options)) {}

grpc::ServerBidiReactor<NodeReport, NodeOrder>* NodeService::Attach(
    grpc::CallbackServerContext* context) {
  return new Stream(this, HostOfPeer(context->peer()));
}

void NodeService::SendChanges() {
  AnswerLogs();
  const std::set<std::string> changed = table_.TakeChanged();
  if (changed.empty()) return;
  for (Stream* stream : streams_) {
    if (changed.count(stream->host()) != 0) stream->MarkChanged();
  }
}

void NodeService::Close(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return streams_.empty(); };
  mutex_.AwaitWithTimeout(absl::Condition(&none), timeout);
  is_closed_ = true;
  for (const auto& [id, answer] : std::exchange(asked_logs_, {})) {
    answer.first->Finish(ToGrpcStatus(JobIsOver()));
  }
}

// Logs
// ------------------------------------------------------------------------------------------------

grpc::ServerUnaryReactor* NodeService::GetLog(grpc::CallbackServerContext* context,
                                              const LogRequest* request, LogLines* reply) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::MutexLock lock(&mutex_);
  LogRequest numbered = *request;
  numbered.set_id(++last_log_);
  const absl::Status asked = is_closed_ ? JobIsOver() : table_.AskForLog(numbered);
  if (!asked.ok()) {
    reactor->Finish(ToGrpcStatus(asked));
    return reactor;
  }
  asked_logs_[numbered.id()] = {reactor, reply};
  SendChanges();
  return reactor;
}

void NodeService::AnswerLogs() {
  for (const LogLines& lines : table_.TakeLogs()) {
    const auto asked = asked_logs_.find(lines.id());
    if (asked == asked_logs_.end()) continue;
    const auto [reactor, reply] = asked->second;
    asked_logs_.erase(asked);
    *reply = lines;
    reactor->Finish(lines.error().empty() ? grpc::Status::OK
                                          : ToGrpcStatus(absl::UnavailableError(lines.error())));
  }
}

}  // namespace thermocline
