#include "worker/exchange/grpc_exchange.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/wire/messages.h"
#include "worker/exchange/chunk_codec.h"
#include "worker/exchange/local_socket.h"
#include "worker/session/retry_policy.h"

namespace thermocline {
namespace {

constexpr char kMethod[] = "/thermocline.Worker/Exchange";

std::shared_ptr<grpc::Channel> OpenKeptAlive(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    const GrpcExchange::Options& options) {
  grpc::ChannelArguments arguments = DataPlaneArguments(options.max_message_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_ms);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // 0: no limit.
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

struct GrpcExchange::Peer {
  struct Way {
    std::string where;  // The address or path, for errors.
    std::unique_ptr<grpc::GenericStub> stub;
  };
  // Returns the socket if it is there now, else TCP.
  const Way& ToOpen() const {
    return socket.stub != nullptr && CheckLocalSocket(socket.where).ok() ? socket : tcp;
  }

  Way tcp;
  Way socket;  // Without a stub: the other worker has no socket that can be reached.
};

// A stream to one peer. Operations are begun without the mutex, as in GrpcExchangeServer; a hold
// keeps the call until no write can be begun any more.
class GrpcExchange::Stream final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(GrpcExchange* owner, WorkerRank to, uint64_t attempt, const Peer::Way& way)
      : to(to), attempt(attempt), way(way), owner_(owner) {}

  void Begin(const ExchangeHello& hello, std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    {
      absl::MutexLock lock(&mutex_);
      is_writing_ = true;
    }
    out_ = EncodeHello(hello);
    way.stub->PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(), this);
    AddHold();
    StartWrite(&out_);
    StartRead(&in_);
    StartCall();
  }

  // REQUIRES: the one before is sent.
  void Send(grpc::ByteBuffer chunk) {
    {
      absl::MutexLock lock(&mutex_);
      if (is_over_) return;
      if (is_writing_) {  // The write of the hello is not done, although it was answered.
        next_ = std::move(chunk);
        return;
      }
      is_writing_ = is_chunk_ = true;
      out_ = std::move(chunk);
    }
    StartWrite(&out_);
  }

  void Cancel() { context_.TryCancel(); }

  void OnWriteDone(bool ok) override {
    bool is_sent = false, is_over = false, has_next = false;
    {
      absl::MutexLock lock(&mutex_);
      is_sent = ok && is_chunk_;
      is_over = is_over_;
      has_next = ok && !is_over && next_.has_value();
      out_.Clear();
      is_writing_ = is_chunk_ = has_next;
      if (has_next) out_ = *std::exchange(next_, std::nullopt);
    }
    if (has_next) StartWrite(&out_);
    if (is_sent) owner_->events_->OnSent(to, attempt);
    if (is_over) RemoveHold();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      const absl::StatusOr<Receipt> receipt = DecodeReceipt(in_);
      in_.Clear();
      if (receipt.ok()) {
        owner_->events_->OnReceipt(to, attempt, *receipt);
      } else {
        error_ = receipt.status();
        Cancel();
      }
      return StartRead(&in_);
    }
    {
      absl::MutexLock lock(&mutex_);
      is_over_ = true;
      if (is_writing_) return;  // The end of the write removes the hold.
    }
    RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Stream> self = std::move(self_);
    absl::Status why = error_.ok() ? FromGrpcStatus(status) : error_;
    if (why.ok()) why = absl::UnavailableError("the stream ended");
    owner_->OnStreamDone(*this, why);
  }

  const WorkerRank to;
  const uint64_t attempt;
  const Peer::Way& way;

 private:
  GrpcExchange* const owner_;
  grpc::ClientContext context_;
  std::shared_ptr<Stream> self_;  // Keeps the stream until OnDone.
  absl::Status error_;            // Only reads use it, and in_.
  grpc::ByteBuffer in_;
  grpc::ByteBuffer out_;  // The bytes of the write under way.

  absl::Mutex mutex_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_chunk_ ABSL_GUARDED_BY(mutex_) = false;  // Whether a chunk is being written.
  std::optional<grpc::ByteBuffer> next_ ABSL_GUARDED_BY(mutex_);
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // No write is begun any more.
};

absl::StatusOr<std::unique_ptr<GrpcExchange>> GrpcExchange::Create(const Options& options,
                                                                   GrpcExchangeServer* server) {
  const ExchangeIdentity& identity = server->identity();
  if (options.addresses.size() != identity.num_workers) {
    return absl::InvalidArgumentError(absl::StrCat(options.addresses.size(), " addresses for ",
                                                   identity.num_workers, " workers"));
  }
  ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(options.tls));
  std::vector<std::unique_ptr<Peer>> peers(identity.num_workers);
  for (uint32_t rank = 0; rank < identity.num_workers; ++rank) {
    if (rank == identity.rank.value()) continue;
    const std::string& address = options.addresses[rank];
    Peer& peer = *(peers[rank] = std::make_unique<Peer>());
    peer.tcp = {address,
                std::make_unique<grpc::GenericStub>(OpenKeptAlive(address, credentials, options))};
    if (options.socket_folder.empty()) continue;
    const auto path = LocalSocketPath(options.socket_folder, address);
    if (!path.ok() || !CheckLocalSocket(*path).ok()) continue;
    peer.socket = {*path,
                   std::make_unique<grpc::GenericStub>(OpenKeptAlive(
                       LocalSocketTarget(*path), grpc::InsecureChannelCredentials(), options))};
  }
  return std::unique_ptr<GrpcExchange>(new GrpcExchange(server, std::move(peers)));
}

GrpcExchange::GrpcExchange(GrpcExchangeServer* server, std::vector<std::unique_ptr<Peer>> peers)
    : server_(server), peers_(std::move(peers)), streams_(peers_.size()) {}

GrpcExchange::~GrpcExchange() { Close(); }

std::string GrpcExchange::DescribeWays() const {
  std::vector<size_t> over_socket, over_tcp;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank] == nullptr) continue;
    (peers_[rank]->socket.stub != nullptr ? over_socket : over_tcp).push_back(rank);
  }
  const auto ranks = [](const std::vector<size_t>& some) {
    return absl::StrCat(some.size() == 1 ? "rank " : "ranks ", absl::StrJoin(some, ", "));
  };
  std::vector<std::string> ways;
  if (!over_socket.empty()) ways.push_back(absl::StrCat(ranks(over_socket), " over a Unix socket"));
  if (!over_tcp.empty()) ways.push_back(absl::StrCat(ranks(over_tcp), " over TCP"));
  return absl::StrJoin(ways, ", ");
}

void GrpcExchange::Start(ExchangeEvents* events) {
  events_ = events;
  server_->Begin(events);
}

void GrpcExchange::Open(WorkerRank to, uint64_t attempt) {
  const ExchangeIdentity& identity = server_->identity();
  ExchangeHello hello;
  hello.set_protocol_version(wire::kProtocolVersion);
  hello.set_job_id(identity.job_id);
  hello.set_generation(identity.generation);
  hello.set_from_rank(identity.rank.value());
  hello.set_to_rank(to.value());
  hello.set_num_workers(identity.num_workers);
  hello.set_attempt(attempt);
  hello.set_life(identity.life);
  // A stream's context refers to its channel, and if one of gRPC's threads drops the last reference
  // to the last channel, it joins itself. So a stream counts until it is destroyed.
  const auto destroy = [this](Stream* stream) {
    delete stream;
    absl::MutexLock lock(&mutex_);
    --num_streams_;
  };
  std::shared_ptr<Stream> stream;
  {
    absl::MutexLock lock(&mutex_);
    if (is_closed_) return;
    ++num_streams_;
    stream.reset(new Stream(this, to, attempt, peers_[to.value()]->ToOpen()), destroy);
    // The stream before is done, but its OnDone holds it: only OnClosed opens the next one.
    streams_[to.value()] = stream;
  }
  stream->Begin(hello, stream);
}

std::shared_ptr<GrpcExchange::Stream> GrpcExchange::Find(WorkerRank to, uint64_t attempt) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Stream>& stream = streams_[to.value()];
  return stream != nullptr && stream->attempt == attempt ? stream : nullptr;
}

void GrpcExchange::Send(WorkerRank to, uint64_t attempt, const BlockChunk& chunk,
                        std::shared_ptr<const BlockBytes> bytes) {
  if (const std::shared_ptr<Stream> stream = Find(to, attempt)) {
    stream->Send(EncodeChunk(chunk, std::move(bytes)));
  }
}

void GrpcExchange::SendReceipt(WorkerRank to, uint64_t attempt, const Receipt& receipt) {
  server_->SendReceipt(to, attempt, receipt);
}

void GrpcExchange::OnStreamDone(const Stream& stream, const absl::Status& status) {
  const uint32_t to = stream.to.value();
  absl::Status why =
      WithContext(status, absl::StrCat("stream to rank ", to, " at ", stream.way.where));
  if (absl::IsFailedPrecondition(why)) why = MarkServerLoss(why);
  events_->OnClosed(stream.to, stream.attempt, why);
  std::shared_ptr<Stream> done;  // It is destroyed after the mutex is released.
  absl::MutexLock lock(&mutex_);
  if (streams_[to].get() == &stream) done = std::move(streams_[to]);
}

void GrpcExchange::Close() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    is_closed_ = true;
    streams = streams_;
  }
  for (const std::shared_ptr<Stream>& stream : streams) {
    if (stream != nullptr) stream->Cancel();
  }
  streams.clear();
  {
    absl::MutexLock lock(&mutex_);
    const auto is_quiet = [this]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_streams_ == 0; };
    mutex_.Await(absl::Condition(&is_quiet));
    if (has_ended_) return;  // The server may be gone.
  }
  server_->End();
  absl::MutexLock lock(&mutex_);
  has_ended_ = true;
}

}  // namespace thermocline
