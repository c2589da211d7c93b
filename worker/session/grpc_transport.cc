#include "worker/session/grpc_transport.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/task_queue.h"
#include "common/base/trace.h"
#include "common/net/rpc.h"
#include "common/wire/codec.h"

namespace thermocline {
namespace {

constexpr char kPullMethod[] = "/thermocline.ParameterServer/Pull";
constexpr char kPushMethod[] = "/thermocline.ParameterServer/Push";
constexpr int kMaxChannelsPerServer = 64;

// One call in flight.
struct Call {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer reply;
};

// The calls in flight, so that they can be cancelled and waited for.
class CallsInFlight {
 public:
  // Returns false if the calls were cancelled.
  bool Add(Call* call) {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return false;
    calls_.insert(call);
    ++num_calls_;
    return true;
  }
  // A call's context refers to its channel, and if one of gRPC's threads drops the last reference
  // to the last channel, it joins itself. So a call counts until it is destroyed.
  void Destroy(Call* call) {
    {
      absl::MutexLock lock(&mutex_);
      calls_.erase(call);
    }
    delete call;
    absl::MutexLock lock(&mutex_);
    --num_calls_;
  }
  // Later calls are cancelled, too.
  void CancelAll() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (Call* call : calls_) call->context.TryCancel();
  }
  bool are_cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }
  void AwaitNone() { absl::MutexLock lock(&mutex_, absl::Condition(this, &CallsInFlight::None)); }

 private:
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_calls_ == 0; }

  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<Call*> calls_ ABSL_GUARDED_BY(mutex_);  // Calls that may be cancelled.
  int num_calls_ ABSL_GUARDED_BY(mutex_) = 0;                 // Calls that are not destroyed yet.
};

struct Server {
  std::string address;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;  // One for each channel.
  std::atomic<uint32_t> next_stub{0};
};

// The facts about a call that error messages name. It is kept instead of the call, which owns
// vectors.
struct CallSummary {
  const char* method;
  Step step;
  uint32_t chunk;
  uint32_t num_chunks;
  size_t tables;
  size_t keys;
};

CallSummary SummaryOf(const PullCall& call) {
  return {"Pull", call.step, 0, 1, call.tables.size(), NumKeys(call)};
}

CallSummary SummaryOf(const PushCall& call) {
  return {"Push", call.step, call.chunk, call.num_chunks, call.tables.size(), NumKeys(call)};
}

std::string Describe(const CallSummary& call) {
  std::string text = absl::StrCat(call.method, " for step ", call.step.value());
  if (call.num_chunks > 1) absl::StrAppend(&text, ", chunk ", call.chunk, " of ", call.num_chunks);
  absl::StrAppend(&text, " (", call.tables, " tables, ", call.keys, " keys)");
  return text;
}

// gRPC returns RESOURCE_EXHAUSTED for a message over its limit, as a full server does for its
// queue. A retry may help in the second case, never in the first, which therefore gets the code of
// our own limit.
absl::Status CallError(const grpc::Status& status, bool is_cancelled) {
  const absl::Status error = is_cancelled ? FromGrpcStatus(status) : FromGrpcStatusOfAnswer(status);
  if (absl::IsResourceExhausted(error) && absl::StrContains(error.message(), "larger than max")) {
    return absl::OutOfRangeError(error.message());
  }
  return error;
}

std::chrono::system_clock::time_point After(int64_t us) {
  return std::chrono::system_clock::now() + std::chrono::microseconds(us);
}

std::vector<wire::PullTableView> KeysOf(const PullCall& call) {
  std::vector<wire::PullTableView> tables;
  tables.reserve(call.tables.size());
  for (const PullSlice& slice : call.tables) tables.push_back({slice.table, slice.keys});
  return tables;
}

std::vector<wire::RowsView> RowsOf(const PullCall& call) {
  std::vector<wire::RowsView> tables;
  tables.reserve(call.tables.size());
  for (const PullSlice& slice : call.tables) tables.push_back({slice.table, slice.rows});
  return tables;
}

}  // namespace

struct GrpcTransport::Impl {
  using Deadline = std::chrono::system_clock::time_point;
  // Encodes `view` and calls `method`. `decode(reply)` makes the answer; errors begin with the
  // summary.
  template <typename Answer, typename View, typename Decode>
  void Start(ServerIndex server, const char* method, const View& view, Deadline deadline,
             Decode decode, const CallSummary& summary,
             std::function<void(absl::StatusOr<Answer>)> done);

  int max_message_bytes = 0;
  std::vector<std::unique_ptr<Server>> servers;
  CallsInFlight calls;
  // It encodes and sends the calls in their order. gRPC gives a message to the kernel before a call
  // returns, and on loopback the kernel delivers it in the same system call. That takes a
  // millisecond for a large batch, in which a training thread would leave the other threads of its
  // device without work.
  TaskQueue sender{1};
};

template <typename Answer, typename View, typename Decode>
void GrpcTransport::Impl::Start(ServerIndex index, const char* method, const View& view,
                                Deadline deadline, Decode decode, const CallSummary& summary,
                                std::function<void(absl::StatusOr<Answer>)> done) {
  CHECK_LT(index.value(), servers.size());
  Server& server = *servers[index.value()];
  const auto fail = [&server, index, summary](const absl::Status& status) {
    return WithContext(status, absl::StrCat(Describe(summary), " to server ", index.value(), " at ",
                                            server.address));
  };
  const size_t bytes = wire::EncodedBytes(view);
  if (bytes > static_cast<size_t>(max_message_bytes)) {
    return done(fail(absl::OutOfRangeError(
        absl::StrCat("the request has ", bytes, " bytes; the limit is ", max_message_bytes))));
  }
  auto call = std::make_unique<Call>();
  call->request = wire::Encode(view);
  call->context.set_deadline(deadline);
  if (!calls.Add(call.get())) return done(fail(absl::CancelledError("the transport is closed")));

  const uint32_t turn = server.next_stub.fetch_add(1, std::memory_order_relaxed);
  grpc::GenericStub& stub = *server.stubs[turn % server.stubs.size()];
  Call* const started = call.release();
  stub.UnaryCall(
      &started->context, method, grpc::StubOptions(), &started->request, &started->reply,
      [this, started, decode = std::move(decode), fail,
       done = std::move(done)](grpc::Status status) {
        {
          absl::StatusOr<Answer> answer =
              status.ok() ? decode(started->reply)
                          : absl::StatusOr<Answer>(CallError(status, calls.are_cancelled()));
          started->reply.Clear();
          done(answer.ok() ? std::move(answer) : absl::StatusOr<Answer>(fail(answer.status())));
        }
        calls.Destroy(started);
      });
}

absl::StatusOr<std::unique_ptr<GrpcTransport>> GrpcTransport::Create(const Options& options) {
  if (options.channels_per_server < 1 || options.channels_per_server > kMaxChannelsPerServer) {
    return absl::InvalidArgumentError(
        absl::StrCat("channels_per_server is ", options.channels_per_server, "; it must be in [1, ",
                     kMaxChannelsPerServer, "]"));
  }
  if (options.max_message_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes is ", options.max_message_bytes));
  }
  ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(options.tls));
  auto impl = std::make_unique<Impl>();
  impl->max_message_bytes = options.max_message_bytes;
  for (const std::string& address : options.addresses) {
    auto server = std::make_unique<Server>();
    server->address = address;
    for (int i = 0; i < options.channels_per_server; ++i) {
      server->stubs.push_back(std::make_unique<grpc::GenericStub>(
          OpenChannel(address, credentials, options.max_message_bytes)));
    }
    impl->servers.push_back(std::move(server));
  }
  return std::unique_ptr<GrpcTransport>(new GrpcTransport(std::move(impl)));
}

GrpcTransport::GrpcTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcTransport::~GrpcTransport() {
  impl_->calls.CancelAll();
  impl_->sender.AwaitIdle();
  impl_->calls.AwaitNone();
}

void GrpcTransport::Close() { impl_->calls.CancelAll(); }

void GrpcTransport::Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
                         std::function<void(absl::StatusOr<wire::PullAnswer>)> done) {
  impl_->sender.Run([impl = impl_.get(), server, call, deadline = After(deadline_us),
                     done = std::move(done)]() mutable {
    NameTraceThread("send");
    const TraceSpan span("send pull", TracedStep(call), {"server", server.value()});
    const std::vector<wire::PullTableView> tables = KeysOf(call);
    const wire::PullView view = {call.header,     call.kind, call.step,       call.staleness_steps,
                                 call.after_step, tables,    call.with_state, call.count_rows};
    impl->Start<wire::PullAnswer>(
        server, kPullMethod, view, deadline,
        [rows = RowsOf(call)](const grpc::ByteBuffer& reply) {
          return wire::DecodePullReply(reply, rows);
        },
        SummaryOf(call), std::move(done));
  });
}

void GrpcTransport::Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
                         std::function<void(absl::StatusOr<wire::PushAnswer>)> done) {
  impl_->sender.Run([impl = impl_.get(), server, call, deadline = After(deadline_us),
                     done = std::move(done)]() mutable {
    NameTraceThread("send");
    const TraceSpan span("send push", call.step, {"server", server.value()});
    const wire::PushView view = {call.header,        call.step,   call.chunk,     call.num_chunks,
                                 call.learning_rate, call.tables, call.row_limits};
    impl->Start<wire::PushAnswer>(server, kPushMethod, view, deadline, wire::DecodePushReply,
                                  SummaryOf(call), std::move(done));
  });
}

}  // namespace thermocline
