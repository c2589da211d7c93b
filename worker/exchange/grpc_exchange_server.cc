#include "worker/exchange/grpc_exchange_server.h"

#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/net/rpc.h"
#include "common/wire/messages.h"
#include "worker/exchange/chunk_codec.h"

namespace thermocline {
namespace {

ExchangeIdentity WithLife(ExchangeIdentity identity) {
  std::random_device random;
  while (identity.life == 0) identity.life = (uint64_t{random()} << 32) | random();
  return identity;
}

std::string Describe(absl::string_view job_id, uint64_t generation, uint32_t num_workers) {
  return absl::StrCat("job '", job_id, "', generation ", generation, ", ", num_workers, " workers");
}

}  // namespace

// Deletes itself when gRPC is done with it. Operations are begun without the mutex, since gRPC may
// run their callbacks at once. Finish comes when no write is under way, and no write is begun
// later.
class GrpcExchangeServer::Stream final : public Reactor {
 public:
  Stream(GrpcExchangeServer* server, grpc::CallbackServerContext* context)
      : server_(server), context_(context) {}
  void Begin(std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    StartRead(&in_);
  }

  // A receipt that isn't sent yet is merged with it.
  void Send(const Receipt& receipt) {
    {
      absl::MutexLock lock(&mutex_);
      if (next_.has_value()) {
        next_->Merge(receipt);
      } else {
        next_ = receipt;
      }
      if (end_.has_value() || is_writing_) return;
      TakeNext();
    }
    StartWrite(&out_);
  }

  void End(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      end_ = status;
      if (is_writing_) return context_->TryCancel();  // The write may be stuck; it finishes then.
    }
    Finish(ToGrpcStatus(status));
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    absl::Status status;
    if (!has_hello_) {
      const absl::StatusOr<ExchangeHello> hello = DecodeHello(in_);
      status = hello.ok() ? server_->TakeHello(self_, *hello) : hello.status();
      has_hello_ = true;
    } else {
      status = server_->TakeChunk(*this, in_);
    }
    in_.Clear();
    if (!status.ok()) return End(status);
    StartRead(&in_);
  }

  void OnWriteDone(bool) override {
    std::optional<absl::Status> end;
    {
      absl::MutexLock lock(&mutex_);
      is_writing_ = false;
      end = end_;
      if (!end.has_value() && !next_.has_value()) return;
      if (!end.has_value()) TakeNext();
    }
    if (end.has_value()) {
      Finish(ToGrpcStatus(*end));
    } else {
      StartWrite(&out_);
    }
  }

  void OnCancel() override { End(absl::CancelledError("the stream between workers is cancelled")); }

  void OnDone() override {
    server_->Forget(this);
    const std::shared_ptr<Stream> self = std::move(self_);
  }

  // The hello sets these; they are constant from then on.
  uint32_t from = 0;
  uint64_t attempt = 0;

 private:
  void TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    out_ = EncodeReceipt(*next_);
    next_.reset();
    is_writing_ = true;
  }

  GrpcExchangeServer* const server_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<Stream> self_;  // Keeps the stream until OnDone.
  bool has_hello_ = false;        // Only reads use it, and in_.
  grpc::ByteBuffer in_;
  grpc::ByteBuffer out_;  // The bytes of the write under way.

  absl::Mutex mutex_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Receipt> next_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // Set: no write is begun any more.
};

GrpcExchangeServer::GrpcExchangeServer(ExchangeIdentity identity)
    : identity_(WithLife(std::move(identity))), peers_(identity_.num_workers) {
  CHECK_LT(identity_.rank.value(), identity_.num_workers);
}

GrpcExchangeServer::~GrpcExchangeServer() {
  absl::MutexLock lock(&mutex_);
  CHECK(num_streams_ == 0);
}

absl::Status GrpcExchangeServer::Introduce(const WorkerPeers& peers) {
  if (peers.job_id() != identity_.job_id || peers.generation() != identity_.generation ||
      peers.addresses_size() != static_cast<int>(identity_.num_workers)) {
    return absl::FailedPreconditionError(
        absl::StrCat("this worker is of ",
                     Describe(identity_.job_id, identity_.generation, identity_.num_workers),
                     "; the addresses are of ",
                     Describe(peers.job_id(), peers.generation(), peers.addresses_size())));
  }
  std::vector<std::string> addresses(peers.addresses().begin(), peers.addresses().end());
  absl::MutexLock lock(&mutex_);
  for (size_t rank = 0; rank < addresses_.size(); ++rank) {
    if (addresses_[rank] == addresses[rank]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " listens on ", addresses_[rank], ", was said before, not on ",
                     addresses[rank]));
  }
  addresses_ = std::move(addresses);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> GrpcExchangeServer::AwaitIntroduction(
    absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto is_introduced = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !addresses_.empty();
  };
  if (mutex_.AwaitWithTimeout(absl::Condition(&is_introduced), timeout)) return addresses_;
  return absl::DeadlineExceededError(
      absl::StrCat("the launcher has not said within ", absl::FormatDuration(timeout),
                   " where the other workers listen; it does once all of them serve"));
}

GrpcExchangeServer::Reactor* GrpcExchangeServer::Exchange(grpc::CallbackServerContext* context) {
  {
    absl::MutexLock lock(&mutex_);
    ++num_streams_;
  }
  const auto stream = std::make_shared<Stream>(this, context);
  stream->Begin(stream);
  return stream.get();
}

void GrpcExchangeServer::Forget(const Stream* stream) {
  std::shared_ptr<Stream> forgotten;  // It is destroyed after the mutex is released.
  absl::MutexLock lock(&mutex_);
  --num_streams_;
  for (Peer& peer : peers_) {
    if (peer.stream.get() == stream) forgotten = std::move(peer.stream);
  }
}

absl::Status GrpcExchangeServer::CheckHello(const ExchangeHello& hello) const {
  const auto error = [](const auto&... parts) {
    return absl::FailedPreconditionError(absl::StrCat(parts...));
  };
  if (hello.protocol_version() != wire::kProtocolVersion) {
    return error("this worker speaks version ", wire::kProtocolVersion, " of the protocol, rank ",
                 hello.from_rank(), " version ", hello.protocol_version());
  }
  if (hello.job_id() != identity_.job_id || hello.generation() != identity_.generation ||
      hello.num_workers() != identity_.num_workers) {
    return error("this worker is of ",
                 Describe(identity_.job_id, identity_.generation, identity_.num_workers), "; rank ",
                 hello.from_rank(), " is of ",
                 Describe(hello.job_id(), hello.generation(), hello.num_workers()));
  }
  if (hello.to_rank() != identity_.rank.value() || hello.from_rank() == hello.to_rank() ||
      hello.from_rank() >= identity_.num_workers) {
    return error("this worker is rank ", identity_.rank.value(), " of ", identity_.num_workers,
                 "; the stream is from rank ", hello.from_rank(), " to rank ", hello.to_rank());
  }
  return absl::OkStatus();
}

absl::Status GrpcExchangeServer::TakeHello(const std::shared_ptr<Stream>& stream,
                                           const ExchangeHello& hello) {
  RETURN_IF_ERROR(CheckHello(hello));
  std::shared_ptr<Stream> before;
  ExchangeEvents* events = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    Peer& peer = peers_[hello.from_rank()];
    if (peer.life != 0 && peer.life != hello.life()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", hello.from_rank(), " is another process (", hello.life(),
          ") than the one before (", peer.life, ") in generation ", identity_.generation));
    }
    if (hello.attempt() <= peer.attempt) {
      return absl::AbortedError(absl::StrCat("attempt ", hello.attempt(), " of rank ",
                                             hello.from_rank(), " comes behind attempt ",
                                             peer.attempt));
    }
    events = Enter();
    if (events == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("rank ", identity_.rank.value(), " does not exchange anything now"));
    }
    stream->from = hello.from_rank();
    stream->attempt = hello.attempt();
    before = std::exchange(peer.stream, stream);
    peer.life = hello.life();
    peer.attempt = hello.attempt();
  }
  if (before != nullptr) before->End(absl::AbortedError("a later attempt has come"));
  events->OnOpened(WorkerRank(hello.from_rank()), hello.attempt());
  Leave();
  return absl::OkStatus();
}

absl::Status GrpcExchangeServer::TakeChunk(const Stream& stream, const grpc::ByteBuffer& bytes) {
  ASSIGN_OR_RETURN(const ReceivedChunk chunk, DecodeChunk(bytes));
  ExchangeEvents* events = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (peers_[stream.from].stream.get() != &stream) {
      return absl::AbortedError("a later attempt has come");
    }
    events = Enter();
  }
  if (events == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("rank ", identity_.rank.value(), " exchanges nothing any more"));
  }
  for (const BlockChunk& piece : chunk.pieces) {
    events->OnChunk(WorkerRank(stream.from), stream.attempt, piece);
  }
  Leave();
  return absl::OkStatus();
}

ExchangeEvents* GrpcExchangeServer::Enter() {
  if (events_ != nullptr) ++running_;
  return events_;
}

void GrpcExchangeServer::Leave() {
  absl::MutexLock lock(&mutex_);
  --running_;
}

void GrpcExchangeServer::Begin(ExchangeEvents* events) {
  absl::MutexLock lock(&mutex_);
  events_ = events;
}

void GrpcExchangeServer::SendReceipt(WorkerRank from, uint64_t attempt, const Receipt& receipt) {
  std::shared_ptr<Stream> stream;
  {
    absl::MutexLock lock(&mutex_);
    stream = peers_[from.value()].stream;
  }
  if (stream != nullptr && stream->attempt == attempt) stream->Send(receipt);
}

void GrpcExchangeServer::End() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    events_ = nullptr;
    for (Peer& peer : peers_) {
      if (peer.stream != nullptr) streams.push_back(std::move(peer.stream));
    }
    const auto is_quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
    mutex_.Await(absl::Condition(&is_quiet));
  }
  for (const std::shared_ptr<Stream>& stream : streams) {
    stream->End(absl::UnavailableError(
        absl::StrCat("rank ", identity_.rank.value(), " exchanges nothing any more")));
  }
}

}  // namespace thermocline
