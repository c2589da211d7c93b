#include "worker/sparse/grpc_transport.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/net/status.h"
#include "common/status_macros.h"
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

// The calls in flight, so that the end of the transport can cancel them and wait for them.
class CallsInFlight {
 public:
  // False, where the transport is ending.
  bool Add(Call* call) {
    absl::MutexLock lock(&mutex_);
    if (ending_) return false;
    calls_.insert(call);
    return true;
  }
  void Remove(Call* call) {
    absl::MutexLock lock(&mutex_);
    calls_.erase(call);
  }
  void CancelAllAndWait() {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    for (Call* call : calls_) call->context.TryCancel();
    mutex_.Await(absl::Condition(this, &CallsInFlight::None));
  }

 private:
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_.empty(); }

  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<Call*> calls_ ABSL_GUARDED_BY(mutex_);
};

struct Server {
  std::string address;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;  // one a channel
  std::atomic<uint32_t> next_stub{0};
};

size_t NumKeys(const PullCall& call) {
  size_t keys = 0;
  for (const PullSlice& table : call.tables) keys += table.keys.size();
  return keys;
}

size_t NumKeys(const PushCall& call) {
  size_t keys = 0;
  for (const PushSlice& table : call.tables) keys += table.keys.size();
  return keys;
}

std::string Describe(const PullCall& call) {
  return absl::StrCat("Pull for step ", call.step.value(), " (", call.tables.size(), " tables, ",
                      NumKeys(call), " keys)");
}

std::string Describe(const PushCall& call) {
  return absl::StrCat("Push for steps ", call.first_step.value(), "..", call.last_step.value(),
                      ", part ", call.part, " of ", call.num_parts, " (", call.tables.size(),
                      " tables, ", NumKeys(call), " keys)");
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

std::vector<wire::PushTableView> TablesOf(const PushCall& call) {
  std::vector<wire::PushTableView> tables;
  tables.reserve(call.tables.size());
  for (const PushSlice& slice : call.tables) {
    tables.push_back({slice.table, slice.kind, slice.keys, slice.counts, slice.values});
  }
  return tables;
}

}  // namespace

struct GrpcTransport::Impl {
  // Encodes `view` and calls `method`. `decode(reply)` makes the answer; `describe()` begins
  // errors.
  template <typename Answer, typename View, typename Decode, typename DescribeCall>
  void Start(ServerIndex server, const char* method, const View& view, int64_t deadline_us,
             Decode decode, DescribeCall describe,
             std::function<void(absl::StatusOr<Answer>)> done);

  int max_message_bytes = 0;
  std::vector<std::unique_ptr<Server>> servers;
  CallsInFlight calls;
};

template <typename Answer, typename View, typename Decode, typename DescribeCall>
void GrpcTransport::Impl::Start(ServerIndex index, const char* method, const View& view,
                                int64_t deadline_us, Decode decode, DescribeCall describe,
                                std::function<void(absl::StatusOr<Answer>)> done) {
  CHECK_LT(index.value(), servers.size());
  Server& server = *servers[index.value()];
  auto fail = [&server, index, describe](const absl::Status& status) {
    return WithContext(
        status, absl::StrCat(describe(), " to server ", index.value(), " at ", server.address));
  };
  const size_t bytes = wire::EncodedBytes(view);
  if (bytes > static_cast<size_t>(max_message_bytes)) {
    return done(fail(absl::ResourceExhaustedError(
        absl::StrCat("the request has ", bytes, " bytes; the limit is ", max_message_bytes))));
  }
  auto call = std::make_unique<Call>();
  call->request = wire::Encode(view);
  call->context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::microseconds(deadline_us));
  if (!calls.Add(call.get())) return done(fail(absl::CancelledError("the transport is closing")));

  const uint32_t turn = server.next_stub.fetch_add(1, std::memory_order_relaxed);
  grpc::GenericStub& stub = *server.stubs[turn % server.stubs.size()];
  Call* const started = call.release();
  stub.UnaryCall(
      &started->context, method, grpc::StubOptions(), &started->request, &started->reply,
      [this, started, decode = std::move(decode), fail = std::move(fail),
       done = std::move(done)](grpc::Status status) {
        {
          absl::StatusOr<Answer> answer =
              status.ok() ? decode(started->reply) : absl::StatusOr<Answer>(FromGrpcStatus(status));
          started->reply.Clear();
          done(answer.ok() ? std::move(answer) : absl::StatusOr<Answer>(fail(answer.status())));
        }
        calls.Remove(started);
        delete started;
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
GrpcTransport::~GrpcTransport() { impl_->calls.CancelAllAndWait(); }

void GrpcTransport::Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
                         std::function<void(absl::StatusOr<wire::PullAnswer>)> done) {
  const std::vector<wire::PullTableView> tables = KeysOf(call);
  const wire::PullView view = {call.header,          call.kind,       call.step,
                               call.staleness_steps, call.after_step, tables};
  impl_->Start<wire::PullAnswer>(
      server, kPullMethod, view, deadline_us,
      [rows = RowsOf(call)](const grpc::ByteBuffer& reply) {
        return wire::DecodePullReply(reply, rows);
      },
      [call] { return Describe(call); }, std::move(done));
}

void GrpcTransport::Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
                         std::function<void(absl::StatusOr<wire::PushAnswer>)> done) {
  const std::vector<wire::PushTableView> tables = TablesOf(call);
  const wire::PushView view = {call.header,    call.first_step,    call.last_step, call.part,
                               call.num_parts, call.learning_rate, tables};
  impl_->Start<wire::PushAnswer>(
      server, kPushMethod, view, deadline_us, wire::DecodePushReply,
      [call] { return Describe(call); }, std::move(done));
}

}  // namespace thermocline
