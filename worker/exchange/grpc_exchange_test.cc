// The exchange over gRPC: whole ranks behind proxies that cut their connections, and each side
// against protobuf's own classes, so that the two share no codec; and over Unix sockets.
#include "worker/exchange/grpc_exchange.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/scheduler.h"
#include "common/net/certificates.h"
#include "common/net/grpc_server.h"
#include "common/wire/messages.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/testing/cutting_proxy.h"
#include "tests/testing/test_seed.h"
#include "worker/exchange/exchange.h"
#include "worker/exchange/local_socket.h"
#include "worker/exchange/testing/exchange_steps.h"
#include "worker/session/retry_policy.h"

namespace thermocline {
namespace {

constexpr uint32_t kRanks = 3;

ExchangeIdentity IdentityOf(uint32_t rank) { return {"job", 4, WorkerRank(rank), kRanks, 0}; }

// A worker's process as others see it.
class Host final : public Worker::WithRawCallbackMethod_Exchange<Worker::Service> {
 public:
  explicit Host(uint32_t rank, const TlsFiles& tls = {}) : server_(IdentityOf(rank)) {
    GrpcServer::Options options;
    options.tls = tls;
    auto started = GrpcServer::Start(options, {this});
    EXPECT_TRUE(started.ok()) << started.status();
    listening_ = *std::move(started);
  }
  ~Host() override { listening_->Shutdown(0); }

  GrpcExchangeServer::Reactor* Exchange(grpc::CallbackServerContext* context) override {
    ++tcp_streams_;
    return server_.Exchange(context);
  }
  void ListenIn(const std::string& folder) {
    auto socket = LocalSocket::Listen(folder, address(), &server_);
    EXPECT_TRUE(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
  }
  // Ends the streams that come over it.
  void CloseSocket() { socket_.reset(); }
  GrpcExchangeServer& server() { return server_; }
  const std::string& address() const { return listening_->address(); }
  const std::string& socket_path() const { return socket_->path(); }
  int tcp_streams() const { return tcp_streams_; }  // So far.

 private:
  GrpcExchangeServer server_;
  std::atomic<int> tcp_streams_{0};
  std::unique_ptr<GrpcServer> listening_;
  std::unique_ptr<LocalSocket> socket_;
};

std::unique_ptr<Exchange> MakeExchange(ExchangeOptions options,
                                       const std::vector<std::string>& addresses, Host* host,
                                       Scheduler* scheduler,
                                       const std::string& socket_folder = "") {
  options.rank = host->server().identity().rank;
  options.num_ranks = host->server().identity().num_workers;
  GrpcExchange::Options streams;
  streams.addresses = addresses;
  streams.socket_folder = socket_folder;
  auto transport = GrpcExchange::Create(streams, &host->server());
  EXPECT_TRUE(transport.ok()) << transport.status();
  return std::make_unique<Exchange>(options, ExchangeHooks{}, *std::move(transport), scheduler);
}

void LeaveAll(const std::vector<std::unique_ptr<Exchange>>& exchanges) {
  std::vector<std::thread> threads;
  for (const auto& exchange : exchanges) {
    threads.emplace_back([&exchange] {
      EXPECT_TRUE(exchange->Leave([](const Exchange::Done& done) { done(absl::OkStatus()); }).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Every rank is reached through a proxy that cuts connections somewhere in their chunks.
TEST(GrpcExchangeTest, AllBlocksArriveWhereverStreamsAreCut) {
  std::mt19937_64 random(TestSeed());
  ThreadScheduler scheduler;
  std::vector<std::unique_ptr<Host>> hosts;
  std::vector<std::unique_ptr<CuttingProxy>> proxies;
  std::vector<std::string> addresses;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    hosts.push_back(std::make_unique<Host>(rank));
    std::vector<size_t> cuts;
    for (int i = 0; i < 4; ++i) cuts.push_back(random() % 5000);
    proxies.push_back(std::make_unique<CuttingProxy>(hosts.back()->address(), cuts));
    addresses.push_back(proxies.back()->address());
  }
  ExchangeOptions options;
  options.max_chunk_bytes = 100;
  options.window_steps = 2;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& host : hosts) {
    exchanges.push_back(MakeExchange(options, addresses, host.get(), &scheduler));
  }
  RunSteps(25, exchanges);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_GT(proxies[rank]->connections_cut(), 0u);
    ExchangeStats stats;
    exchanges[rank]->FillStats(&stats);
    EXPECT_GE(stats.streams_opened(), 2u);
  }
  LeaveAll(exchanges);
}

// Its connections stay open, and nothing comes through them.
TEST(GrpcExchangeTest, ARankWhoseHostIsGoneIsNamedWithinTwoKeepalives) {
  constexpr absl::Duration kKeepalive = absl::Seconds(1);
  ThreadScheduler scheduler;
  Host here(0), gone(1), third(2);
  CuttingProxy proxy(gone.address(), {});
  const std::vector<std::string> addresses = {here.address(), proxy.address(), third.address()};
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (Host* const host : {&here, &gone, &third}) {
    ExchangeOptions options;
    options.rank = host->server().identity().rank;
    options.num_ranks = kRanks;
    options.phases = kDensePhases;
    GrpcExchange::Options of_transport;
    of_transport.addresses = addresses;
    of_transport.keepalive_ms = static_cast<int>(absl::ToInt64Milliseconds(kKeepalive));
    auto transport = GrpcExchange::Create(of_transport, &host->server());
    ASSERT_TRUE(transport.ok()) << transport.status();
    exchanges.push_back(
        std::make_unique<Exchange>(options, ExchangeHooks{}, *std::move(transport), &scheduler));
  }
  const BlockId first{Step(0), Phase::kDenseGradients}, second{Step(0), Phase::kDenseWeights};
  for (const auto& exchange : exchanges) ASSERT_TRUE(PostContent(first, exchange.get()).ok());
  for (const auto& exchange : exchanges) UseContent(first, exchange.get());

  proxy.GoSilent();
  const absl::Time silent_from = absl::Now();
  for (const uint32_t rank : {0, 2}) {
    ASSERT_TRUE(PostContent(second, exchanges[rank].get()).ok());
  }
  std::thread waits([&] { EXPECT_FALSE(exchanges[0]->Receive(second).ok()); });
  const auto error = [&] {
    const std::vector<ExchangeWait> found = exchanges[0]->waits();
    return found.empty() ? absl::OkStatus() : found[0].stream;
  };
  while (error().ok() && absl::Now() < silent_from + absl::Minutes(1)) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_GE(absl::Now() - silent_from, kKeepalive / 2);
  EXPECT_LE(absl::Now() - silent_from, 10 * kKeepalive) << "on a busy machine";
  const std::vector<ExchangeWait> found = exchanges[0]->waits();
  ASSERT_EQ(found.size(), 1u) << "the third rank's blocks came";
  EXPECT_EQ(found[0].about, WorkerRank(1));
  EXPECT_TRUE(absl::StrContains(Describe(found[0]),
                                absl::StrCat("for the dense weights of step 0 from rank 1; ")))
      << Describe(found[0]);
  EXPECT_TRUE(absl::StrContains(found[0].stream.message(),
                                absl::StrCat("stream to rank 1 at ", proxy.address(), ": ")))
      << found[0].stream;
  exchanges[0]->Stop();
  waits.join();
}

// What comes of streams, as text.
class Recorder final : public ExchangeEvents {
 public:
  void OnReceipt(WorkerRank, uint64_t, const Receipt&) override {}
  void OnSent(WorkerRank, uint64_t) override {}
  void OnClosed(WorkerRank, uint64_t, const absl::Status& why) override {
    closed = why;
    is_closed.Notify();
  }
  void OnOpened(WorkerRank from, uint64_t attempt) override {
    Note(absl::StrCat("opened ", from.value(), " ", attempt));
  }
  void OnChunk(WorkerRank from, uint64_t attempt, const BlockChunk& chunk) override {
    Note(absl::StrCat("chunk ", from.value(), " ", attempt, " ", Describe(chunk.id), " ",
                      static_cast<int>(chunk.kind), " ", chunk.checksum, " ", chunk.block_bytes,
                      " ", chunk.offset, " ", std::string(chunk.data.begin(), chunk.data.end())));
  }
  // The next one of a stream that another rank opens.
  std::string Next() {
    absl::MutexLock lock(&mutex_);
    const auto has_one = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !notes_.empty(); };
    mutex_.Await(absl::Condition(&has_one));
    const std::string note = notes_.front();
    notes_.erase(notes_.begin());
    return note;
  }

  absl::Status closed;
  absl::Notification is_closed;

 private:
  void Note(std::string note) {
    absl::MutexLock lock(&mutex_);
    notes_.push_back(std::move(note));
  }

  absl::Mutex mutex_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
};

// Rank 1, called by protobuf's own classes.
class GrpcExchangeServerTest : public testing::Test {
 protected:
  using Stream = grpc::ClientReaderWriter<ExchangeChunk, ExchangeReceipt>;
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
  };

  void SetUp() override {
    stub_ =
        Worker::NewStub(grpc::CreateChannel(host_.address(), grpc::InsecureChannelCredentials()));
  }
  void TearDown() override { host_.server().End(); }

  static ExchangeChunk Hello(uint64_t attempt) {
    ExchangeChunk chunk;
    ExchangeHello& hello = *chunk.mutable_hello();
    hello.set_protocol_version(wire::kProtocolVersion);
    hello.set_job_id("job");
    hello.set_generation(4);
    hello.set_from_rank(2);
    hello.set_to_rank(1);
    hello.set_num_workers(kRanks);
    hello.set_attempt(attempt);
    hello.set_life(77);
    return chunk;
  }
  std::unique_ptr<Call> Open(const ExchangeChunk& first) {
    auto call = std::make_unique<Call>();
    call->stream = stub_->Exchange(&call->context);
    EXPECT_TRUE(call->stream->Write(first));
    return call;
  }
  // How a stream ends that is refused.
  static absl::Status EndOf(Call* call) {
    ExchangeReceipt receipt;
    EXPECT_FALSE(call->stream->Read(&receipt));
    return FromGrpcStatus(call->stream->Finish());
  }
  absl::Status Refusal(const std::function<void(ExchangeHello*)>& change) {
    ExchangeChunk first = Hello(9);
    change(first.mutable_hello());
    return EndOf(Open(first).get());
  }

  Host host_{1};
  Recorder events_;
  std::unique_ptr<Worker::Stub> stub_;
};

TEST_F(GrpcExchangeServerTest, TakesChunksAndSendsReceipts) {
  host_.server().Begin(&events_);
  const std::unique_ptr<Call> call = Open(Hello(1));
  EXPECT_EQ(events_.Next(), "opened 2 1");
  ExchangeChunk chunk;
  chunk.set_step(7);
  chunk.set_phase(2);
  chunk.set_checksum(0xabcdef01);
  chunk.set_block_bytes(300);
  chunk.set_offset(123);
  chunk.set_data("some bytes");
  ASSERT_TRUE(call->stream->Write(chunk));
  EXPECT_EQ(events_.Next(),
            absl::StrCat("chunk 2 1 the rows of step 7 0 ", 0xabcdef01u, " 300 123 some bytes"));
  ExchangeChunk end;
  end.set_step(8);
  end.set_kind(1);
  ASSERT_TRUE(call->stream->Write(end));
  EXPECT_EQ(events_.Next(), "chunk 2 1 the keys of step 8 1 0 0 0 ");

  Receipt receipt;
  for (int phase = 0; phase < 6; ++phase) {
    receipt.received[phase] = Step(phase - 1);
    receipt.taken[phase] = Step(phase + 100);
  }
  host_.server().SendReceipt(WorkerRank(2), 1, receipt);
  ExchangeReceipt got;
  ASSERT_TRUE(call->stream->Read(&got));
  EXPECT_EQ(got.received_size(), 6);
  EXPECT_EQ(got.received(0), -1);
  EXPECT_EQ(got.taken(5), 105);
}

// Threads hand over receipts in any order. While one is being written, those behind it wait.
TEST_F(GrpcExchangeServerTest, AnOlderReceiptTakesNothingBack) {
  host_.server().Begin(&events_);
  for (uint64_t attempt = 1; attempt <= 20; ++attempt) {
    const std::unique_ptr<Call> call = Open(Hello(attempt));
    EXPECT_EQ(events_.Next(), absl::StrCat("opened 2 ", attempt));
    Receipt older;
    older.received.fill(Step(3));
    older.taken.fill(Step(7));
    Receipt newer = older;
    newer.received[0] = Step(5);
    newer.taken[1] = Step(9);
    Receipt last = older;
    last.taken[2] = Step(8);
    for (const Receipt& receipt : {older, newer, older, last}) {
      host_.server().SendReceipt(WorkerRank(2), attempt, receipt);
    }
    int64_t received = 0, taken = 0;
    ExchangeReceipt got;
    do {
      ASSERT_TRUE(call->stream->Read(&got));
      received = std::max(received, got.received(0));
      taken = std::max(taken, got.taken(1));
    } while (got.taken(2) < 8);
    EXPECT_EQ(received, 5);
    EXPECT_EQ(taken, 9);
  }
}

TEST_F(GrpcExchangeServerTest, RefusesStrangersAndSaysWhoBothAre) {
  host_.server().Begin(&events_);
  const auto refused = [](const std::string& text) { return absl::FailedPreconditionError(text); };
  const std::string ours = "this worker is of job 'job', generation 4, 3 workers; rank 2 is of ";
  EXPECT_EQ(Refusal([](ExchangeHello* hello) { hello->set_protocol_version(99); }),
            refused(absl::StrCat("this worker speaks version ", wire::kProtocolVersion,
                                 " of the protocol, rank 2 version 99")));
  EXPECT_EQ(Refusal([](ExchangeHello* hello) { hello->set_job_id("other"); }),
            refused(ours + "job 'other', generation 4, 3 workers"));
  EXPECT_EQ(Refusal([](ExchangeHello* hello) { hello->set_generation(5); }),
            refused(ours + "job 'job', generation 5, 3 workers"));
  EXPECT_EQ(Refusal([](ExchangeHello* hello) { hello->set_num_workers(2); }),
            refused(ours + "job 'job', generation 4, 2 workers"));
  EXPECT_EQ(Refusal([](ExchangeHello* hello) { hello->set_to_rank(0); }),
            refused("this worker is rank 1 of 3; the stream is from rank 2 to rank 0"));
  EXPECT_EQ(Refusal([](ExchangeHello* hello) { hello->set_from_rank(3); }),
            refused("this worker is rank 1 of 3; the stream is from rank 3 to rank 1"));
  // None of them counts as rank 2's.
  const std::unique_ptr<Call> call = Open(Hello(1));
  EXPECT_EQ(events_.Next(), "opened 2 1");
  EXPECT_EQ(Refusal([](ExchangeHello* hello) { hello->set_life(78); }),
            refused("rank 2 is another process (78) than the one before (77) in generation 4"));
}

TEST_F(GrpcExchangeServerTest, TheHighestAttemptCounts) {
  EXPECT_EQ(EndOf(Open(Hello(1)).get()),
            absl::UnavailableError("rank 1 does not exchange anything now"));
  host_.server().Begin(&events_);
  const std::unique_ptr<Call> second = Open(Hello(2));
  EXPECT_EQ(events_.Next(), "opened 2 2");
  const std::unique_ptr<Call> third = Open(Hello(3));
  EXPECT_EQ(events_.Next(), "opened 2 3");
  EXPECT_EQ(EndOf(second.get()), absl::AbortedError("a later attempt has come"));
  EXPECT_EQ(EndOf(Open(Hello(2)).get()),
            absl::AbortedError("attempt 2 of rank 2 comes behind attempt 3"));
  host_.server().End();
  EXPECT_EQ(EndOf(third.get()), absl::UnavailableError("rank 1 exchanges nothing any more"));
}

TEST_F(GrpcExchangeServerTest, RefusesWhatIsNoChunk) {
  host_.server().Begin(&events_);
  EXPECT_EQ(EndOf(Open(ExchangeChunk()).get()),
            absl::InvalidArgumentError(
                "the first message of a stream between workers has its hello alone"));
  uint64_t attempt = 0;
  for (const auto& change : std::vector<std::function<void(ExchangeChunk*)>>{
           [](ExchangeChunk* chunk) { chunk->set_phase(6); },
           [](ExchangeChunk* chunk) { chunk->set_kind(3); },
           [](ExchangeChunk* chunk) { chunk->mutable_hello(); }}) {
    const std::unique_ptr<Call> call = Open(Hello(++attempt));
    ExchangeChunk chunk;
    change(&chunk);
    EXPECT_TRUE(call->stream->Write(chunk));
    EXPECT_EQ(EndOf(call.get()).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(GrpcExchangeServer, IsIntroducedOnce) {
  GrpcExchangeServer server(IdentityOf(1));
  EXPECT_EQ(server.AwaitIntroduction(absl::ZeroDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  WorkerPeers peers;
  peers.set_job_id("job");
  peers.set_generation(3);
  for (const char* address : {"a:1", "b:2", "c:3"}) peers.add_addresses(address);
  EXPECT_EQ(server.Introduce(peers),
            absl::FailedPreconditionError("this worker is of job 'job', generation 4, 3 workers; "
                                          "the addresses are of job 'job', generation 3, "
                                          "3 workers"));
  peers.set_generation(4);
  std::thread introducer([&] { EXPECT_TRUE(server.Introduce(peers).ok()); });
  const auto addresses = server.AwaitIntroduction(absl::Minutes(1));
  introducer.join();
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_EQ(*addresses, (std::vector<std::string>{"a:1", "b:2", "c:3"}));
  EXPECT_TRUE(server.Introduce(peers).ok());
  peers.set_addresses(2, "d:4");
  EXPECT_EQ(server.Introduce(peers),
            absl::FailedPreconditionError("rank 2 listens on c:3, was said before, not on d:4"));
}

// Rank 0, in protobuf's own classes.
class FakeRank final : public Worker::Service {
 public:
  using Stream = grpc::ServerReaderWriter<ExchangeReceipt, ExchangeChunk>;
  explicit FakeRank(std::function<grpc::Status(Stream*)> serve) : serve_(std::move(serve)) {
    auto started = GrpcServer::Start({}, {this});
    EXPECT_TRUE(started.ok()) << started.status();
    listening_ = *std::move(started);
  }
  ~FakeRank() override { listening_->Shutdown(0); }
  grpc::Status Exchange(grpc::ServerContext*, Stream* stream) override { return serve_(stream); }
  const std::string& address() const { return listening_->address(); }

 private:
  const std::function<grpc::Status(Stream*)> serve_;
  std::unique_ptr<GrpcServer> listening_;
};

TEST(GrpcExchangeTest, SendsAHelloAndThenWhatIsTaken) {
  std::vector<ExchangeChunk> chunks;
  absl::Notification done;
  FakeRank rank([&](FakeRank::Stream* stream) {
    ExchangeChunk chunk;
    while (chunks.size() < 4 && stream->Read(&chunk)) {
      chunks.push_back(chunk);
      if (!chunk.has_hello()) continue;
      ExchangeReceipt receipt;
      for (int phase = 0; phase < 6; ++phase) {
        receipt.add_received(-1);
        receipt.add_taken(phase == 4 ? 0 : -1);
      }
      stream->Write(receipt);
    }
    done.Notify();
    return grpc::Status::OK;
  });
  GrpcExchangeServer server({"job", 4, WorkerRank(1), 2, 77});
  ThreadScheduler scheduler;
  ExchangeOptions options;
  options.rank = WorkerRank(1);
  options.num_ranks = 2;
  options.max_chunk_bytes = 4;
  options.phases = kDensePhases;
  options.min_backoff_us = options.max_backoff_us = 1'000'000'000;
  auto transport = GrpcExchange::Create({{rank.address(), ""}, {}}, &server);
  ASSERT_TRUE(transport.ok()) << transport.status();
  Exchange exchange(options, {}, *std::move(transport), &scheduler);
  const std::string text = "twelve bytes";
  ASSERT_TRUE(exchange
                  .Post({Step(0), Phase::kDenseGradients},
                        std::vector<Block>(2, MakeBlock(absl::MakeConstSpan(text))))
                  .ok());
  done.WaitForNotification();
  ASSERT_EQ(chunks.size(), 4u);
  const ExchangeHello& hello = chunks[0].hello();
  EXPECT_EQ(hello.ShortDebugString(),
            absl::StrCat("protocol_version: ", wire::kProtocolVersion,
                         " job_id: \"job\" generation: 4 from_rank: 1 num_workers: 2 attempt: 1 "
                         "life: 77"));
  std::string got;
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(chunks[i].offset(), got.size());
    EXPECT_EQ(chunks[i].block_bytes(), 12u);
    EXPECT_EQ(chunks[i].phase(), 4u);
    EXPECT_EQ(chunks[i].checksum(), Crc32c(text.data(), text.size()));
    got += chunks[i].data();
  }
  EXPECT_EQ(got, text);
}

TEST(GrpcExchangeTest, AnotherGenerationAtAnAddressIsALoss) {
  Host stranger(0);
  Recorder none;
  stranger.server().Begin(&none);
  GrpcExchangeServer server({"job", 5, WorkerRank(1), kRanks});
  ThreadScheduler scheduler;
  ExchangeOptions options;
  options.rank = WorkerRank(1);
  options.num_ranks = kRanks;
  absl::Notification failed;
  ExchangeHooks hooks;
  hooks.on_failure = [&](const absl::Status&) { failed.Notify(); };
  auto transport = GrpcExchange::Create({{stranger.address(), "", "127.0.0.1:1"}, {}}, &server);
  ASSERT_TRUE(transport.ok()) << transport.status();
  Exchange exchange(options, hooks, *std::move(transport), &scheduler);
  failed.WaitForNotification();
  EXPECT_TRUE(IsServerLoss(exchange.status())) << exchange.status();
  EXPECT_EQ(exchange.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(exchange.status().message(),
            absl::StrCat("stream to rank 0 at ", stranger.address(),
                         ": this worker is of job 'job', generation 4, 3 workers; rank 1 is of "
                         "job 'job', generation 5, 3 workers"));
  stranger.server().End();
}

// A timer of the exchange may hold it longer than its owner does.
TEST(GrpcExchangeTest, NeedsNoServerOnceItIsClosed) {
  auto server = std::make_unique<GrpcExchangeServer>(IdentityOf(1));
  Recorder events;
  auto transport = GrpcExchange::Create({{"127.0.0.1:1", "", "127.0.0.1:1"}, {}}, server.get());
  ASSERT_TRUE(transport.ok()) << transport.status();
  (*transport)->Start(&events);
  (*transport)->Close();
  server.reset();
  transport->reset();  // The address sanitizer sees what it touches.
}

TEST(GrpcExchangeTest, WithTlsAWorkerMayExchangeAndAReaderMayNot) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/exchange-tls");
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(WriteCertificates(*CertificateAuthority::Create("job"), folder,
                                {Role::kWorker, Role::kReader}, {"127.0.0.1"}, absl::Hours(1))
                  .ok());
  Host host(0, TlsFilesIn(folder, Role::kWorker));
  Recorder receiver;
  host.server().Begin(&receiver);
  const auto stream_of = [&](Role role, Recorder* sender) {
    GrpcExchangeServer server(IdentityOf(1));
    auto transport = GrpcExchange::Create(
        {{host.address(), "", "127.0.0.1:1"}, TlsFilesIn(folder, role)}, &server);
    ASSERT_TRUE(transport.ok()) << transport.status();
    (*transport)->Start(sender);
    (*transport)->Open(WorkerRank(0), 1);
    if (role == Role::kWorker) {
      EXPECT_EQ(receiver.Next(), "opened 1 1");
    } else {
      sender->is_closed.WaitForNotification();
    }
    (*transport)->Close();
  };
  Recorder reader, worker;
  stream_of(Role::kReader, &reader);
  EXPECT_EQ(reader.closed, absl::PermissionDeniedError(absl::StrCat(
                               "stream to rank 0 at ", host.address(),
                               ": role reader may not call Exchange; it is for worker")));
  stream_of(Role::kWorker, &worker);
  host.server().End();
}

class LocalSocketTest : public testing::Test {
 protected:
  // Bazel's folder for tests is too long for a socket.
  void SetUp() override {
    char folder[] = "/tmp/exchange-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  // The stub of the worker at an address.
  std::string PathOf(const std::string& address) const {
    const auto path = LocalSocketPath(folder_, address);
    EXPECT_TRUE(path.ok()) << path.status();
    return path.value_or("");
  }

  std::string folder_;
};

TEST_F(LocalSocketTest, CarriesBlocksWhereThereIsOneAndTcpElsewhere) {
  ThreadScheduler scheduler;
  Host first(0), second(1), without(2);
  first.ListenIn(folder_);
  second.ListenIn(folder_);
  const std::vector<Host*> hosts = {&first, &second, &without};
  const std::vector<std::string> addresses = {first.address(), second.address(), without.address()};
  GrpcExchange::Options streams;
  streams.addresses = addresses;
  EXPECT_EQ((*GrpcExchange::Create(streams, &first.server()))->DescribeWays(),
            "ranks 1, 2 over TCP");
  streams.socket_folder = folder_;
  EXPECT_EQ((*GrpcExchange::Create(streams, &first.server()))->DescribeWays(),
            "rank 1 over a Unix socket, rank 2 over TCP");
  EXPECT_EQ((*GrpcExchange::Create(streams, &without.server()))->DescribeWays(),
            "ranks 0, 1 over a Unix socket");

  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (Host* const host : hosts) {
    exchanges.push_back(MakeExchange({}, addresses, host, &scheduler, folder_));
  }
  RunSteps(10, exchanges);
  LeaveAll(exchanges);
  EXPECT_EQ(first.tcp_streams(), 0);
  EXPECT_EQ(second.tcp_streams(), 0);
  EXPECT_GE(without.tcp_streams(),
            2);  // Streams that come before the exchange has begun come again.
  exchanges.clear();
  first.CloseSocket();
  second.CloseSocket();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(LocalSocketTest, StreamsGoOnOverTcpWhenItIsGone) {
  ThreadScheduler scheduler;
  std::vector<std::unique_ptr<Host>> hosts;
  std::vector<std::string> addresses;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    hosts.push_back(std::make_unique<Host>(rank));
    hosts.back()->ListenIn(folder_);
    addresses.push_back(hosts.back()->address());
  }
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const auto& host : hosts) {
    ExchangeOptions options;
    options.phases = kDensePhases;
    exchanges.push_back(MakeExchange(options, addresses, host.get(), &scheduler, folder_));
  }
  for (const Phase phase : {Phase::kDenseGradients, Phase::kDenseWeights}) {
    for (const auto& exchange : exchanges) {
      ASSERT_TRUE(PostContent({Step(0), phase}, exchange.get()).ok());
    }
    for (const auto& exchange : exchanges) UseContent({Step(0), phase}, exchange.get());
    EXPECT_EQ(hosts[0]->tcp_streams(), phase == Phase::kDenseWeights ? 2 : 0);
    EXPECT_EQ(hosts[1]->tcp_streams(), 0);
    if (phase == Phase::kDenseGradients) hosts[0]->CloseSocket();
  }
}

TEST_F(LocalSocketTest, AnotherGenerationAtItIsALoss) {
  Host stranger(0);
  stranger.ListenIn(folder_);
  Recorder none, recorder;
  stranger.server().Begin(&none);
  GrpcExchangeServer server({"job", 5, WorkerRank(1), kRanks});
  GrpcExchange::Options streams;
  streams.addresses = {stranger.address(), "", "127.0.0.1:1"};
  streams.socket_folder = folder_;
  auto transport = GrpcExchange::Create(streams, &server);
  ASSERT_TRUE(transport.ok()) << transport.status();
  (*transport)->Start(&recorder);
  (*transport)->Open(WorkerRank(0), 1);
  recorder.is_closed.WaitForNotification();
  (*transport)->Close();
  EXPECT_TRUE(IsServerLoss(recorder.closed)) << recorder.closed;
  EXPECT_EQ(recorder.closed.message(),
            absl::StrCat("stream to rank 0 at ", stranger.socket_path(),
                         ": this worker is of job 'job', generation 4, 3 workers; rank 1 is of "
                         "job 'job', generation 5, 3 workers"));
  stranger.server().End();
}

TEST_F(LocalSocketTest, ServesExchangeAlone) {
  Host host(0);
  host.ListenIn(folder_);
  const auto stub = Worker::NewStub(grpc::CreateChannel(LocalSocketTarget(host.socket_path()),
                                                        grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  EvaluationDecisionReply reply;
  EXPECT_EQ(FromGrpcStatus(stub->Decide(&context, EvaluationDecision(), &reply)),
            absl::PermissionDeniedError(
                "Decide is not for the socket between workers, which is for Exchange"));
}

TEST_F(LocalSocketTest, IsForItsUserAlone) {
  Host host(0);
  host.ListenIn(folder_);
  const std::string path = host.socket_path();
  EXPECT_TRUE(CheckLocalSocket(path).ok());
  ASSERT_EQ(chmod(folder_.c_str(), 0750), 0);
  EXPECT_EQ(CheckLocalSocket(path),
            absl::PermissionDeniedError(
                absl::StrCat(folder_, " is no folder that only user ", geteuid(), " may enter")));
  EXPECT_EQ(LocalSocket::Listen(folder_, "127.0.0.1:1", &host.server()).status(),
            CheckLocalSocket(path));
  const std::string link = folder_ + "-link";
  std::filesystem::create_directory_symlink(folder_, link);
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  EXPECT_EQ(LocalSocket::Listen(link, "127.0.0.1:1", &host.server()).status().code(),
            absl::StatusCode::kPermissionDenied);
  std::filesystem::remove(link);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_EQ(LocalSocket::Listen(folder_ + "/inner", "127.0.0.1:1", &host.server()).status(),
            absl::PermissionDeniedError("others may rename folders in " + folder_));
  std::filesystem::remove(folder_ + "/inner");
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);

  host.CloseSocket();
  std::filesystem::remove(folder_);
  host.ListenIn(folder_);  // Makes it.
  struct stat made;
  ASSERT_EQ(stat(folder_.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0700u);
}

TEST_F(LocalSocketTest, WhatAKilledProcessLeftHarmsNothing) {
  const auto leave = [](const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    close(fd);
  };
  Host host(0), other(1);
  other.ListenIn(folder_);
  // There is a socket of an earlier process with the same address, one that may be about to listen,
  // and others.
  leave(PathOf(host.address()));
  EXPECT_EQ(CheckLocalSocket(PathOf(host.address())),
            absl::NotFoundError("no process listens on " + PathOf(host.address())));
  leave(PathOf("127.0.0.1:2"));
  leave(PathOf("127.0.0.1:3"));
  // Another host that has the same folder.
  const std::string elsewhere = absl::StrCat(folder_, "/127.0.0.1:3-4026531840-00000000");
  leave(elsewhere);
  const timespec old[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  for (const std::string& path : {PathOf("127.0.0.1:3"), elsewhere, other.socket_path()}) {
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), old, 0), 0);
  }
  host.ListenIn(folder_);
  EXPECT_TRUE(CheckLocalSocket(host.socket_path()).ok());
  EXPECT_TRUE(CheckLocalSocket(other.socket_path()).ok());
  EXPECT_TRUE(std::filesystem::exists(PathOf("127.0.0.1:2")));
  EXPECT_FALSE(std::filesystem::exists(PathOf("127.0.0.1:3")));
  EXPECT_TRUE(std::filesystem::exists(elsewhere));
}

TEST_F(LocalSocketTest, ItsPathSaysAddressNetworkNamespaceAndHost) {
  struct stat space;
  ASSERT_EQ(stat("/proc/self/ns/net", &space), 0);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string place = absl::StrCat("-", space.st_ino, "-", boot.substr(0, 8));
  EXPECT_EQ(PathOf("10.0.0.1:4000"), absl::StrCat(folder_, "/10.0.0.1:4000", place));
  EXPECT_EQ(PathOf("[fe80::1%eth0]:4000"), absl::StrCat(folder_, "/fe80::1-eth0:4000", place));
  EXPECT_EQ(LocalSocketPath("/tmp/two words", "a:1").status().code(),
            absl::StatusCode::kFailedPrecondition);

  // 107 bytes fit.
  const size_t fits = 107 - (PathOf("a:1").size() - folder_.size());
  const std::string longest(fits, 'x');
  ASSERT_TRUE(LocalSocketPath(longest, "a:1").ok());
  const absl::Status too_long = LocalSocketPath(longest + "x", "a:1").status();
  EXPECT_EQ(too_long.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(too_long.message(), "it has 108 bytes, at most 107 fit"))
      << too_long;
  Host host(0);
  EXPECT_EQ(LocalSocket::Listen(longest + "x", "a:1", &host.server()).status(), too_long);
}

}  // namespace
}  // namespace thermocline
