// Sessions, the transport, gRPC, the service and the server cores, over connections that break in
// the middle of messages, with calls whose deadlines are too short: the rows get the same bits as
// over connections that hold.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/base/hash.h"
#include "common/base/scheduler.h"
#include "common/net/grpc_server.h"
#include "gtest/gtest.h"
#include "server/core/server_core.h"
#include "server/rpc/parameter_server_service.h"
#include "tests/testing/cutting_proxy.h"
#include "tests/testing/test_seed.h"
#include "worker/session/grpc_transport.h"
#include "worker/session/ps_session.h"

namespace thermocline {
namespace {

constexpr uint32_t kServers = 2;
constexpr uint32_t kWorkers = 2;
constexpr int64_t kSteps = 20;
constexpr size_t kKeysPerTable = 200;  // A worker has so many in a step.
// Small, so that every pull and push travels in many messages.
constexpr int kMaxMessageBytes = 4096;
constexpr size_t kConnectionsRefused = 4;
constexpr size_t kConnectionsCut = 16;

std::vector<TableLayout> Tables() {
  std::vector<TableLayout> tables(2);
  for (uint32_t i = 0; i < 2; ++i) {
    tables[i].id = TableId(i);
    tables[i].name = absl::StrCat("T", i);
    tables[i].dim = i == 0 ? 8 : 64;
    tables[i].optimizer.kind = i == 0 ? OptimizerKind::kAdagrad : OptimizerKind::kAdam;
    tables[i].init_scale = 0.1f;
  }
  return tables;
}

// Gives some calls so little time that they end before, while or after the server works on them.
class ImpatientTransport : public Transport {
 public:
  ImpatientTransport(Transport* transport, double share, uint64_t seed)
      : transport_(transport), share_(share), random_(seed) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    transport_->Pull(server, call, std::min(deadline_us, Deadline()), std::move(done));
  }
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    transport_->Push(server, call, std::min(deadline_us, Deadline()), std::move(done));
  }
  void Close() override { transport_->Close(); }

 private:
  int64_t Deadline() {
    absl::MutexLock lock(&mutex_);
    if (std::uniform_real_distribution<>()(random_) >= share_) return INT64_MAX;
    return std::uniform_int_distribution<int64_t>(1, 5000)(random_);
  }

  Transport* const transport_;
  const double share_;
  absl::Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
};

// A server that is reached through its proxy.
struct TestServer {
  TestServer(uint32_t index, std::vector<size_t> cuts, Scheduler* scheduler)
      : core(ServerLimits(), scheduler) {
    ServerConfig config;
    config.job_id = "job";
    config.generation = 1;
    config.server_index = ServerIndex(index);
    config.num_servers = kServers;
    config.num_workers = kWorkers;
    config.seed = 3;
    config.tables = Tables();
    EXPECT_TRUE(core.Configure(config).ok());
    ServiceOptions options;
    options.max_message_bytes = kMaxMessageBytes;
    options.max_pushes = 4;  // Refuses some, which are repeated.
    service = std::make_unique<ParameterServerService>(options, &core);
    GrpcServer::Options server_options;
    server_options.max_message_bytes = kMaxMessageBytes;
    auto started = GrpcServer::Start(server_options, {service.get()});
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    proxy = std::make_unique<CuttingProxy>(server->address(), std::move(cuts));
  }
  ~TestServer() {
    core.Shutdown();
    server->Shutdown(0);
    proxy = nullptr;
  }

  ServerCore core;
  std::unique_ptr<ParameterServerService> service;
  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<CuttingProxy> proxy;
};

// A status that one thread waits for and another delivers.
class Completion {
 public:
  void Deliver(absl::Status status) {
    status_ = std::move(status);
    done_.Notify();
  }
  // May be called again; the answer stays.
  absl::Status Wait() const {
    done_.WaitForNotification();
    return status_;
  }

 private:
  absl::Notification done_;
  absl::Status status_;
};

// One step's keys, rows and gradients of one worker.
struct StepBuffers {
  struct Block {
    TableId table;
    uint32_t server;
    std::vector<Key> keys;
    std::vector<uint32_t> counts;
    std::vector<float> rows;
    std::vector<float> gradients;
  };
  std::vector<Block> blocks;
  Completion pulled, pushed;

  StepBuffers(uint32_t rank, int64_t step) {
    std::mt19937_64 random(1000 * step + rank);
    const ClusterMap cluster(kServers);
    for (const TableLayout& table : Tables()) {
      const size_t first = blocks.size();
      for (uint32_t server = 0; server < kServers; ++server) {
        blocks.push_back({table.id, server, {}, {}, {}, {}});
      }
      const Key begin = random() % 500;  // The workers' keys overlap.
      for (Key key = begin; key < begin + kKeysPerTable; ++key) {
        const uint64_t hash = KeyHash(TableSalt(table.id), key);
        blocks[first + cluster.ServerOfHash(hash).value()].keys.push_back(key);
      }
      for (size_t i = first; i < blocks.size(); ++i) {
        Block& block = blocks[i];
        block.counts.assign(block.keys.size(), 1);
        block.rows.resize(block.keys.size() * table.dim);
        block.gradients.resize(block.rows.size());
      }
    }
  }
  // Gradients depend on the rows that were read, so that a wrong row spoils the bits from then on.
  void MakeGradients(uint32_t rank) {
    for (Block& block : blocks) {
      for (size_t i = 0; i < block.rows.size(); ++i) {
        block.gradients[i] = 0.5f * block.rows[i] + 0.001f * static_cast<float>(i % 17) +
                             0.01f * static_cast<float>(rank + 1);
      }
    }
  }
};

// One worker, in sync mode: pulls a step's rows, pushes gradients in two waves.
absl::Status Train(uint32_t rank, PsSession* session) {
  std::vector<std::unique_ptr<StepBuffers>> steps;  // Kept until their pushes are acknowledged.
  absl::Status status;
  for (int64_t step = 0; step < kSteps && status.ok(); ++step) {
    steps.push_back(std::make_unique<StepBuffers>(rank, step));
    StepBuffers* const buffers = steps.back().get();
    PullWork pull;
    pull.step = Step(step);
    pull.after_step = Step(step - 1);
    pull.slices.resize(kServers);
    PushWork push;
    push.step = Step(step);
    push.learning_rate = 0.05f;
    push.waves.assign(2, std::vector<std::vector<wire::PushSlice>>(kServers));
    for (StepBuffers::Block& block : buffers->blocks) {
      pull.slices[block.server].push_back({block.table, block.keys, absl::MakeSpan(block.rows)});
      push.waves[block.table.value()][block.server].push_back(
          {block.table, wire::PushKind::kGradient, block.keys, block.counts, block.gradients});
    }
    session->Pull(std::move(pull),
                  [=](absl::Status pulled, Step) { buffers->pulled.Deliver(pulled); });
    status = buffers->pulled.Wait();
    if (!status.ok()) {
      steps.pop_back();
      break;
    }
    buffers->MakeGradients(rank);
    session->StartPush(std::move(push),
                       [=](absl::Status pushed) { buffers->pushed.Deliver(pushed); });
    for (size_t wave = 0; wave < 2; ++wave) {
      status.Update(session->ReleaseWave(Step(step), wave));
    }
  }
  for (const auto& step : steps) status.Update(step->pushed.Wait());
  return status;
}

struct Outcome {
  Digest digest;
  uint64_t retries = 0;
};

//   cuts: where every server's connections are cut
//   impatient: the share of the calls that get too little time
Outcome RunJob(const std::vector<size_t>& cuts, double impatient, uint64_t seed) {
  ThreadScheduler scheduler;
  std::vector<std::unique_ptr<TestServer>> servers;
  GrpcTransport::Options options;
  options.max_message_bytes = kMaxMessageBytes;
  for (uint32_t i = 0; i < kServers; ++i) {
    servers.push_back(std::make_unique<TestServer>(i, cuts, &scheduler));
    options.addresses.push_back(servers.back()->proxy->address());
  }
  Outcome outcome;
  absl::Mutex mutex;
  std::vector<std::thread> workers;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    workers.emplace_back([&, rank] {
      auto grpc = GrpcTransport::Create(options);
      ASSERT_TRUE(grpc.ok()) << grpc.status();
      ImpatientTransport transport(grpc->get(), impatient, seed + rank);
      PsSessionOptions session_options;
      session_options.job_id = "job";
      session_options.generation = 1;
      session_options.rank = WorkerRank(rank);
      session_options.num_servers = kServers;
      session_options.tables = Tables();
      session_options.max_chunk_bytes = kMaxMessageBytes;
      session_options.give_up_us = 3600'000'000;  // The machine may be slow.
      session_options.max_backoff_us = 50'000;
      session_options.jitter_seed = seed + rank;
      PsSession session(session_options, &transport, &scheduler);
      const absl::Status status = Train(rank, &session);
      EXPECT_TRUE(status.ok()) << status;
      absl::MutexLock lock(&mutex);
      outcome.retries += session.stats().retries;
    });
  }
  for (std::thread& worker : workers) worker.join();
  for (const auto& server : servers) {
    EXPECT_EQ(server->proxy->connections_cut(), cuts.size());
    absl::Notification answered;
    server->core.ComputeDigest("job", 1, [&](absl::StatusOr<ServerCore::DigestAnswer> answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->complete_through, Step(kSteps - 1));
      outcome.digest.Add(answer->digest);
      answered.Notify();
    });
    answered.WaitForNotification();
  }
  return outcome;
}

TEST(FaultyNetworkTest, BrokenConnectionsAndShortDeadlinesLeaveTheSameBits) {
  const uint64_t seed = TestSeed();
  const Outcome clean = RunJob({}, 0, seed);
  // A server that refuses for a while, then connections that break in the middle of pulls and
  // pushes. All of them are used: what the job sends is several times as much.
  std::mt19937_64 random(seed);
  std::vector<size_t> cuts(kConnectionsRefused, 0);
  for (size_t i = 0; i < kConnectionsCut; ++i) cuts.push_back(1 + random() % 20'000);
  const Outcome faulty = RunJob(cuts, 0.1, seed);
  EXPECT_TRUE(faulty.digest == clean.digest);
  EXPECT_GT(faulty.retries, 0u);
}

}  // namespace
}  // namespace thermocline
