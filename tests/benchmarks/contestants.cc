#include "tests/benchmarks/contestants.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numeric>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/uninitialized_vector.h"
#include "tests/benchmarks/pull_contest.h"
#include "worker/embedded/core_transport.h"
#include "worker/session/grpc_transport.h"

namespace thermocline {
namespace {

constexpr char kJob[] = "bench";
constexpr TableId kTable{1};
constexpr ServerIndex kServer{0};
constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr int64_t kDeadlineUs = 60'000'000;
// A request has so many keys while the tables are filled.
constexpr uint32_t kFillKeys = 20000;

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Starts call `lane`, one of `in_flight`; `done` runs when it has ended.
using StartCall = std::function<void(int lane, std::function<void(absl::Status)> done)>;

// A fixed number of asynchronous calls are in flight until enough have been made. CHECKs that every
// call succeeds.
class ClosedLoop {
 public:
  ClosedLoop(StartCall start, int in_flight) : start_(std::move(start)), lanes_left_(in_flight) {}

  // Runs for about `seconds`; returns the number of calls.
  uint64_t Run(double seconds) {
    end_ = SecondsNow() + seconds;
    for (int lane = lanes_left_ - 1; lane >= 0; --lane) Next(lane);
    absl::MutexLock lock(&mutex_, absl::Condition(&finished_));
    return calls_.load();
  }

 private:
  void Next(int lane) {
    start_(lane, [this, lane](const absl::Status& status) {
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
      CHECK(status.ok());
      calls_.fetch_add(1, std::memory_order_relaxed);
      if (SecondsNow() < end_) return Next(lane);
      if (lanes_left_.fetch_sub(1) != 1) return;
      absl::MutexLock lock(&mutex_);
      finished_ = true;
    });
  }

  const StartCall start_;
  double end_ = 0;
  std::atomic<uint64_t> calls_{0};
  std::atomic<int> lanes_left_;
  absl::Mutex mutex_;
  bool finished_ = false;  // Guarded by mutex_.
};

wire::Header MakeHeader(Step acked_through) {
  return {kJob, /*generation=*/1, WorkerRank(0), acked_through};
}

std::string MessageLimit() {
  return absl::StrCat("--max_message_bytes=", kMaxBenchmarkMessageBytes);
}

ConfigureRequest JobOf(uint32_t dim) {
  ConfigureRequest request;
  request.set_protocol_version(wire::kProtocolVersion);
  request.set_job_id(kJob);
  request.set_generation(1);
  request.set_num_servers(1);
  request.set_num_workers(1);
  TableSpec* table = request.add_tables();
  table->set_id(kTable.value());
  table->set_name("table");
  table->set_dim(dim);
  table->mutable_optimizer()->mutable_adagrad();
  table->set_init_scale(0.01f);
  return request;
}

std::vector<Key> KeysFrom(uint32_t begin, uint32_t end) {
  std::vector<Key> keys(end - begin);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

double CpuSecondsOfThisProcess() {
  timespec now;
  CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Measures `run`, which makes calls to `server` and returns their number. Null: the server is in
// this process.
template <typename Run>
Measured Measure(const ServerProcess* server, Run run) {
  Measured measured;
  const double client_cpu_s = CpuSecondsOfThisProcess();
  const double server_cpu_s = server == nullptr ? 0 : server->CpuSeconds();
  const double begin = SecondsNow();
  measured.calls = run();
  measured.seconds = SecondsNow() - begin;
  measured.client_cpu_s = CpuSecondsOfThisProcess() - client_cpu_s;
  if (server != nullptr) measured.server_cpu_s = server->CpuSeconds() - server_cpu_s;
  return measured;
}

// Calls `run` until `seconds` are over. Returns how often.
template <typename Run>
uint64_t Repeat(double seconds, Run run) {
  const double end = SecondsNow() + seconds;
  uint64_t runs = 0;
  while (SecondsNow() < end) run(runs++);
  return runs;
}

}  // namespace

// ThermoclineServer
// ------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<ThermoclineServer>> ThermoclineServer::Start(
    const std::string& program, const std::string& folder, uint32_t dim, uint32_t rows) {
  std::unique_ptr<ThermoclineServer> server(new ThermoclineServer(dim));
  const std::string port_file = folder + "/server.port";
  ASSIGN_OR_RETURN(server->process_,
                   ServerProcess::Start({program, "--port_file=" + port_file, MessageLimit()},
                                        folder + "/server.log"));
  ASSIGN_OR_RETURN(server->address_, server->process_->WaitForFile(port_file, kStartTimeout));
  RETURN_IF_ERROR(server->Configure());
  RETURN_IF_ERROR(server->Connect(2));
  RETURN_IF_ERROR(server->Fill(rows));
  return server;
}

absl::StatusOr<std::unique_ptr<ThermoclineServer>> ThermoclineServer::StartHere(uint32_t dim,
                                                                                uint32_t rows) {
  std::unique_ptr<ThermoclineServer> server(new ThermoclineServer(dim));
  server->hosted_ = std::make_unique<HostedServer>(HostedServerOptions());
  RETURN_IF_ERROR(server->hosted_->Serve(GrpcServer::Options()));
  server->address_ = server->hosted_->address();
  RETURN_IF_ERROR(server->Configure());
  ParameterServerService* const service = server->hosted_->service();
  CoreTransport::Options options;
  options.pulls = service->pull_stats(wire::PullKind::kTrain);
  options.reads = service->pull_stats(wire::PullKind::kRead);
  options.pushes = service->push_stats();
  server->transport_ = std::make_unique<CoreTransport>(server->hosted_->core(), options);
  RETURN_IF_ERROR(server->Fill(rows));
  return server;
}

absl::Status ThermoclineServer::Configure() {
  ASSIGN_OR_RETURN(const auto control, ControlClient::Create(address_, TlsFiles()));
  return control->Configure(JobOf(dim_), kStartTimeout).status();
}

absl::Status ThermoclineServer::Connect(int channels) {
  GrpcTransport::Options options;
  options.addresses = {address_};
  options.channels_per_server = channels;
  options.max_message_bytes = kMaxBenchmarkMessageBytes;
  ASSIGN_OR_RETURN(transport_, GrpcTransport::Create(options));
  return absl::OkStatus();
}

absl::Status ThermoclineServer::Fill(uint32_t rows) {
  gradients_.resize(size_t{std::max(rows, kFillKeys)} * dim_);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    gradients_[i] = 0.001f * static_cast<float>(i % 1009) - 0.5f;
  }
  counts_.assign(std::max(rows, kFillKeys), 1);
  for (uint32_t begin = 0; begin < rows; begin += kFillKeys) {
    RETURN_IF_ERROR(PushStep(KeysFrom(begin, std::min(rows, begin + kFillKeys)), 1));
  }
  return WaitUntilApplied();
}

absl::Status ThermoclineServer::PushStep(absl::Span<const Key> keys, int chunks) {
  absl::BlockingCounter left(chunks);
  std::vector<absl::Status> statuses(chunks);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const size_t begin = keys.size() * chunk / chunks, end = keys.size() * (chunk + 1) / chunks;
    PushCall call;
    call.header = MakeHeader(next_step_ - 1);
    call.step = next_step_;
    call.chunk = static_cast<uint32_t>(chunk);
    call.num_chunks = static_cast<uint32_t>(chunks);
    call.learning_rate = 0.01f;
    call.tables.push_back({kTable, wire::PushKind::kGradient, keys.subspan(begin, end - begin),
                           absl::MakeConstSpan(counts_).subspan(0, end - begin),
                           absl::MakeConstSpan(gradients_).subspan(0, (end - begin) * dim_)});
    transport_->Push(kServer, call, kDeadlineUs,
                     [&, chunk](const absl::StatusOr<wire::PushAnswer>& answer) {
                       statuses[chunk] = answer.status();
                       left.DecrementCount();
                     });
  }
  left.Wait();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  next_step_ = next_step_ + 1;
  return absl::OkStatus();
}

absl::Status ThermoclineServer::WaitUntilApplied() {
  PullCall call;
  call.header = MakeHeader(next_step_ - 1);
  call.step = next_step_;
  call.after_step = next_step_ - 1;
  wire::Readiness readiness = wire::Readiness::kNotReady;
  while (readiness != wire::Readiness::kReady) {
    absl::Notification done;
    absl::Status status;
    transport_->Pull(kServer, call, kDeadlineUs,
                     [&](const absl::StatusOr<wire::PullAnswer>& answer) {
                       status = answer.status();
                       if (answer.ok()) readiness = answer->readiness;
                       done.Notify();
                     });
    done.WaitForNotification();
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status ThermoclineServer::Read(absl::Span<const Key> keys, absl::Span<float> rows) {
  PullCall call;
  call.header = MakeHeader(kNoStep);
  call.kind = wire::PullKind::kRead;
  call.tables.push_back({kTable, keys, rows});
  absl::Notification done;
  absl::Status status;
  transport_->Pull(kServer, call, kDeadlineUs, [&](const absl::StatusOr<wire::PullAnswer>& answer) {
    status = answer.status();
    done.Notify();
  });
  done.WaitForNotification();
  return status;
}

Measured ThermoclineServer::Pull(const std::vector<std::vector<Key>>& key_sets, int in_flight,
                                 double seconds) {
  std::vector<UninitializedVector<float>> rows(in_flight);
  for (auto& lane_rows : rows) lane_rows.resize(key_sets[0].size() * dim_);
  std::atomic<size_t> next_set{0};
  ClosedLoop loop(
      [&](int lane, std::function<void(absl::Status)> done) {
        const std::vector<Key>& keys = key_sets[next_set.fetch_add(1) % key_sets.size()];
        PullCall call;
        call.header = MakeHeader(kNoStep);
        call.kind = wire::PullKind::kRead;
        call.tables.push_back({kTable, keys, absl::MakeSpan(rows[lane])});
        transport_->Pull(kServer, call, kDeadlineUs,
                         [done = std::move(done)](const absl::StatusOr<wire::PullAnswer>& answer) {
                           done(answer.status());
                         });
      },
      in_flight);
  return Measure(process_.get(), [&] { return loop.Run(seconds); });
}

Measured ThermoclineServer::Push(const std::vector<std::vector<Key>>& key_sets, int chunks,
                                 double seconds) {
  return Measure(process_.get(), [&] {
    const uint64_t pushes = Repeat(
        seconds, [&](uint64_t i) { CHECK(PushStep(key_sets[i % key_sets.size()], chunks).ok()); });
    CHECK(WaitUntilApplied().ok());
    return pushes;
  });
}

// EchoServer
// ------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start(EchoKind kind,
                                                              const std::string& folder,
                                                              size_t request_bytes,
                                                              size_t reply_bytes, int channels) {
  auto server = std::make_unique<EchoServer>();
  server->reply_bytes_ = reply_bytes;
  const bool untouched = kind == EchoKind::kUntouched;
  const std::string port_file = absl::StrCat(folder, "/echo-", untouched, "-", request_bytes, "-",
                                             reply_bytes, "-", channels);
  ASSIGN_OR_RETURN(server->process_,
                   ServerProcess::Start({"/proc/self/exe", "--serve_echo_port_file=" + port_file,
                                         absl::StrCat("--serve_echo_bytes=", reply_bytes),
                                         absl::StrCat("--serve_echo_untouched=", untouched)},
                                        port_file + ".log"));
  ASSIGN_OR_RETURN(const std::string address,
                   server->process_->WaitForFile(port_file, kStartTimeout));
  server->client_ = std::make_unique<EchoClient>(kind, address, channels, kMaxBenchmarkMessageBytes,
                                                 request_bytes);
  return server;
}

Measured EchoServer::Run(int in_flight, double seconds) {
  std::vector<UninitializedVector<uint8_t>> replies(in_flight);
  for (auto& reply : replies) reply.resize(reply_bytes_);
  ClosedLoop loop(
      [&](int lane, std::function<void(absl::Status)> done) {
        client_->Call(replies[lane].data(), std::move(done));
      },
      in_flight);
  return Measure(process_.get(), [&] { return loop.Run(seconds); });
}

Measured EchoServer::RunGroups(int chunks, double seconds) {
  std::vector<UninitializedVector<uint8_t>> replies(chunks);
  for (auto& reply : replies) reply.resize(reply_bytes_);
  return Measure(process_.get(), [&] {
    return Repeat(seconds, [&](uint64_t) {
      absl::BlockingCounter left(chunks);
      for (int chunk = 0; chunk < chunks; ++chunk) {
        client_->Call(replies[chunk].data(), [&](const absl::Status& status) {
          CHECK(status.ok());
          left.DecrementCount();
        });
      }
      left.Wait();
    });
  });
}

// RedisServer
// ------------------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<RedisServer>> RedisServer::Start(const std::string& folder,
                                                                uint32_t dim, uint32_t rows,
                                                                ThermoclineServer* rows_of) {
  auto server = std::make_unique<RedisServer>();
  server->dim_ = dim;
  server->socket_ = folder + "/redis.socket";
  ASSIGN_OR_RETURN(
      server->process_,
      ServerProcess::Start({"redis-server", "--port", "0", "--unixsocket", server->socket_,
                            "--save", "", "--appendonly", "no", "--dir", folder},
                           folder + "/redis.log"));
  RETURN_IF_ERROR(server->process_->WaitForFile(server->socket_, kStartTimeout).status());
  ASSIGN_OR_RETURN(const auto client, RedisClient::Connect(server->socket_));
  std::vector<float> values(size_t{kFillKeys} * dim);
  for (uint32_t begin = 0; begin < rows; begin += kFillKeys) {
    const std::vector<Key> keys = KeysFrom(begin, std::min(rows, begin + kFillKeys));
    const auto span = absl::MakeSpan(values).first(keys.size() * dim);
    RETURN_IF_ERROR(rows_of->Read(keys, span));
    RETURN_IF_ERROR(client->Set(keys, span));
  }
  return server;
}

absl::Status RedisServer::Read(absl::Span<const Key> keys, absl::Span<float> rows) {
  ASSIGN_OR_RETURN(const auto client, RedisClient::Connect(socket_));
  return client->MultiGet(keys, 100, rows);
}

Measured RedisServer::Run(const std::vector<std::vector<Key>>& key_sets, size_t keys_per_command,
                          int in_flight, double seconds) {
  std::vector<std::unique_ptr<RedisClient>> clients;
  for (int i = 0; i < in_flight; ++i) {
    auto client = RedisClient::Connect(socket_);
    CHECK(client.ok());
    clients.push_back(*std::move(client));
  }
  return Measure(process_.get(), [&] {
    std::atomic<uint64_t> calls{0};
    std::vector<std::thread> threads;
    for (const auto& client : clients) {
      threads.emplace_back([&, client = client.get()] {
        std::vector<float> rows(key_sets[0].size() * dim_);
        Repeat(seconds, [&](uint64_t) {
          const std::vector<Key>& keys = key_sets[calls.fetch_add(1) % key_sets.size()];
          CHECK(client->MultiGet(keys, keys_per_command, absl::MakeSpan(rows)).ok());
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return calls.load();
  });
}

}  // namespace thermocline
