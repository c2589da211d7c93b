// Measures how much the exchange between workers carries over TCP and over Unix sockets, beside a
// plain gRPC stream between two ends of one process and memcpy, and the processor time that each
// takes. All ranks are threads of this process: the ratios of a run say more than its numbers.
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/process.h"
#include "common/base/scheduler.h"
#include "common/net/grpc_server.h"
#include "proto/parameter_server.grpc.pb.h"
#include "worker/exchange/exchange.h"
#include "worker/exchange/grpc_exchange.h"
#include "worker/exchange/local_socket.h"

namespace thermocline {
namespace {

using Service = Worker::WithRawCallbackMethod_Exchange<Worker::Service>;

struct Setup {
  size_t block_bytes = 1 << 20;
  // How many steps of two ranks are measured at a time, after a tenth as many that are not; more
  // ranks go through fewer steps.
  int steps = 48;
  int repeats = 5;  // The median counts.
};

std::unique_ptr<GrpcServer> Listen(grpc::Service* service) {
  auto server = GrpcServer::Start({}, {service});
  CHECK(server.ok());
  return *std::move(server);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns the processor time of all threads.
double ProcessorSeconds() {
  rusage usage;
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return absl::ToDoubleSeconds(absl::DurationFromTimeval(usage.ru_utime) +
                               absl::DurationFromTimeval(usage.ru_stime));
}

struct Rate {
  double bytes_per_s = 0;
  double processor_s_per_gb = 0;
};

template <typename Run>
Rate MedianRate(const Setup& setup, double bytes, Run run) {
  run(setup.steps / 10 + 1);
  std::vector<double> seconds, processor;
  for (int i = 0; i < setup.repeats; ++i) {
    const absl::Time begin = absl::Now();
    const double before = ProcessorSeconds();
    run(setup.steps);
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    processor.push_back(ProcessorSeconds() - before);
  }
  return {bytes / Median(seconds), Median(processor) / bytes * 1e9};
}

// ---- Ranks that exchange.

class Rank final : public Service {
 public:
  //   socket_folder: "" for TCP
  Rank(uint32_t rank, uint32_t num_ranks, const std::string& socket_folder)
      : server_({"job", 1, WorkerRank(rank), num_ranks}),
        listening_(Listen(this)),
        socket_folder_(socket_folder) {
    if (socket_folder.empty()) return;
    auto socket = LocalSocket::Listen(socket_folder, address(), &server_);
    CHECK(socket.ok());
    socket_ = *std::move(socket);
  }
  ~Rank() override {
    exchange_.reset();
    socket_.reset();
    listening_->Shutdown(0);
  }
  GrpcExchangeServer::Reactor* Exchange(grpc::CallbackServerContext* context) override {
    return server_.Exchange(context);
  }
  const std::string& address() const { return listening_->address(); }

  void Join(const std::vector<std::string>& addresses, Scheduler* scheduler) {
    ExchangeOptions options;
    options.rank = server_.identity().rank;
    options.num_ranks = server_.identity().num_workers;
    options.phases = kDensePhases;
    GrpcExchange::Options streams;
    streams.addresses = addresses;
    streams.socket_folder = socket_folder_;
    auto transport = GrpcExchange::Create(streams, &server_);
    CHECK(transport.ok());
    exchange_ = std::make_unique<thermocline::Exchange>(options, ExchangeHooks{},
                                                        *std::move(transport), scheduler);
  }
  void Run(int steps, const Block& block) {
    for (const int64_t end = step_ + steps; step_ < end; ++step_) {
      for (const Phase phase : {Phase::kDenseGradients, Phase::kDenseWeights}) {
        const BlockId id{Step(step_), phase};
        CHECK(exchange_->Post(id, std::vector<Block>(exchange_->num_ranks(), block)).ok());
        CHECK(exchange_->Receive(id).ok());
      }
    }
  }

 private:
  GrpcExchangeServer server_;
  std::unique_ptr<GrpcServer> listening_;
  const std::string socket_folder_;
  std::unique_ptr<LocalSocket> socket_;
  std::unique_ptr<thermocline::Exchange> exchange_;
  int64_t step_ = 0;
};

// Returns how many bytes arrive at all ranks together.
Rate ExchangeRate(Setup setup, uint32_t num_ranks, const std::string& socket_folder) {
  setup.steps = std::max<int>(1, 2 * setup.steps / (num_ranks * (num_ranks - 1)));
  ThreadScheduler scheduler;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::string> addresses;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(std::make_unique<Rank>(rank, num_ranks, socket_folder));
    addresses.push_back(ranks.back()->address());
  }
  for (const auto& rank : ranks) rank->Join(addresses, &scheduler);
  const Block block{BlockKind::kData, std::make_shared<BlockBytes>(setup.block_bytes)};
  const double bytes = 2.0 * setup.steps * num_ranks * (num_ranks - 1) * setup.block_bytes;
  return MedianRate(setup, bytes, [&](int steps) {
    std::vector<std::thread> threads;
    for (const auto& rank : ranks) threads.emplace_back([&] { rank->Run(steps, block); });
    for (std::thread& thread : threads) thread.join();
  });
}

// ---- A plain stream.

// Copies each message once, as the exchange does.
class Sink final : public Service {
 public:
  class Reactor final : public GrpcExchangeServer::Reactor {
   public:
    Reactor() { StartRead(&in_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      std::vector<grpc::Slice> slices;
      CHECK(in_.Dump(&slices).ok());
      size_t at = 0;
      copy_.resize(in_.Length());
      for (const grpc::Slice& slice : slices) {
        std::memcpy(copy_.data() + at, slice.begin(), slice.size());
        at += slice.size();
      }
      in_.Clear();
      StartRead(&in_);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer in_;
    BlockBytes copy_;
  };
  GrpcExchangeServer::Reactor* Exchange(grpc::CallbackServerContext*) override {
    return new Reactor;
  }
};

class Source final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Source(grpc::GenericStub* stub, const grpc::ByteBuffer& message, int count)
      : out_(message), left_(count) {
    stub->PrepareBidiStreamingCall(&context_, "/thermocline.Worker/Exchange", {}, this);
    StartWrite(&out_);
    StartRead(&in_);
    StartCall();
  }
  void OnWriteDone(bool ok) override {
    CHECK(ok);
    if (--left_ > 0) return StartWrite(&out_);
    StartWritesDone();
  }
  void OnDone(const grpc::Status& status) override {
    CHECK(status.ok());
    done.Notify();
  }
  absl::Notification done;

 private:
  grpc::ClientContext context_;
  grpc::ByteBuffer out_, in_;
  int left_;
};

// Runs a stream each way, with messages as large as chunks.
Rate PlainRate(const Setup& setup) {
  Sink sink;
  const std::unique_ptr<GrpcServer> server = Listen(&sink);
  const std::string data(std::min(setup.block_bytes, ExchangeOptions().max_chunk_bytes), 'x');
  const grpc::Slice slice(data);
  const grpc::ByteBuffer message(&slice, 1);
  const auto credentials = MakeChannelCredentials({});
  CHECK(credentials.ok());
  grpc::GenericStub stubs[2] = {
      grpc::GenericStub(OpenChannel(server->address(), *credentials, kDefaultMaxMessageBytes)),
      grpc::GenericStub(OpenChannel(server->address(), *credentials, kDefaultMaxMessageBytes))};
  const int messages = static_cast<int>(2 * setup.block_bytes / data.size());
  return MedianRate(setup, 2.0 * setup.steps * messages * data.size(), [&](int steps) {
    Source one(&stubs[0], message, steps * messages), two(&stubs[1], message, steps * messages);
    one.done.WaitForNotification();
    two.done.WaitForNotification();
  });
}

Rate CopyRate(const Setup& setup) {
  BlockBytes from(setup.block_bytes, 1), to(setup.block_bytes);
  return MedianRate(setup, 1.0 * setup.steps * setup.block_bytes, [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      std::memcpy(to.data(), from.data(), from.size());
      from[i % from.size()] = to[0] + 1;
    }
  });
}

void Print(const std::string& what, const Rate& rate, const Rate& plain) {
  std::printf("%-36s %6.2f GB/s, %.2f of the plain streams, %.2f s of processor time a GB\n",
              what.c_str(), rate.bytes_per_s / 1e9, rate.bytes_per_s / plain.bytes_per_s,
              rate.processor_s_per_gb);
}

void Main(const Setup& setup) {
  std::printf("blocks of %zu bytes, 2 phases a step, median of %d runs, %u hardware threads\n",
              setup.block_bytes, setup.repeats, std::thread::hardware_concurrency());
  const Rate plain = PlainRate(setup);
  Print("memcpy, one thread", CopyRate(setup), plain);
  Print("plain gRPC stream each way, TCP", plain, plain);
  const std::string folder = absl::StrCat("/tmp/thermocline-exchange-benchmark-", getpid());
  for (const uint32_t ranks : {2u, 4u, 8u}) {
    const std::string what = absl::StrCat("exchange of ", ranks, " ranks, ");
    Print(what + "TCP", ExchangeRate(setup, ranks, ""), plain);
    Print(what + "Unix sockets", ExchangeRate(setup, ranks, folder), plain);
  }
  std::filesystem::remove(folder);
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  thermocline::TuneMallocForMessages();  // Workers do so, too.
  thermocline::TurnOffMutexChecks();
  thermocline::Setup setup;
  if (argc > 1 && std::string(argv[1]) == "--tiny") setup = {1000, 2, 1};
  thermocline::Main(setup);
  return 0;
}
