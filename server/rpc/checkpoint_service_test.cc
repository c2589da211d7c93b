// Checkpoints through gRPC, on real threads and a real disk, beside pushes and pulls.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/scheduler.h"
#include "common/base/task_queue.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "common/net/control_client.h"
#include "common/net/grpc_server.h"
#include "common/wire/messages.h"
#include "server/core/server_core.h"
#include "server/rpc/parameter_server_service.h"
#include "server/storage/journal_opener.h"

namespace thermocline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int kDim = 8;
constexpr Key kKeys = 3000;
constexpr int64_t kEvery = 10;

// All of a server process except main.
class TestServer {
 public:
  TestServer(Disk* disk, const std::string& data_dir, const std::string& checkpoint_root)
      : disk_(disk) {
    LogJournalOptions options;
    options.directory = data_dir;
    options.segment_bytes = 1 << 20;
    journals_ = std::make_unique<LogJournalOpener>(disk_, &syncs_, options);
    core_ = std::make_unique<ServerCore>(ServerLimits{}, &timers_, journals_.get(),
                                         CheckpointIo{disk_, &checkpoint_tasks_});
    ServiceOptions service_options;
    service_options.checkpoint_root = checkpoint_root;
    service_ = std::make_unique<ParameterServerService>(service_options, core_.get());
    auto started = GrpcServer::Start(GrpcServer::Options{}, {service_.get()});
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    control_ = *ControlClient::Create(server_->address(), {});
  }
  ~TestServer() {
    core_->Shutdown();
    server_->Shutdown(0);
  }
  ServerCore* core() { return core_.get(); }
  ControlClient* control() { return control_.get(); }

 private:
  Disk* const disk_;
  TaskQueue syncs_{1};
  TaskQueue checkpoint_tasks_{CheckpointIo::MaxTasks(1)};
  ThreadScheduler timers_;
  std::unique_ptr<LogJournalOpener> journals_;
  std::unique_ptr<ServerCore> core_;
  std::unique_ptr<ParameterServerService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<ControlClient> control_;
};

class CheckpointServiceTest : public testing::Test {
 protected:
  CheckpointServiceTest() {
    folder_ = testing::TempDir() + "/checkpoints-XXXXXX";
    EXPECT_NE(mkdtemp(&folder_[0]), nullptr);
    store_ = std::make_unique<CheckpointStore>(&disk_, folder_ + "/all");
    EXPECT_TRUE(store_->Prepare().ok());
  }

  ConfigureRequest Job(uint64_t generation = 1) const {
    ConfigureRequest request;
    request.set_protocol_version(wire::kProtocolVersion);
    request.set_job_id("job");
    request.set_generation(generation);
    request.set_num_servers(1);
    request.set_num_workers(1);
    request.set_durability(LOG_ASYNC);
    request.set_checkpoint_directory(store_->directory());
    request.set_checkpoint_every_steps(kEvery);
    request.set_checkpoint_full_every(4);
    TableSpec* table = request.add_tables();
    table->set_id(3);
    table->set_name("C3");
    table->set_dim(kDim);
    table->mutable_optimizer()->mutable_adagrad()->set_epsilon(1e-8f);
    return request;
  }
  static CheckpointRequest Action(CheckpointRequest::Action action, int64_t step = 0) {
    CheckpointRequest request;
    request.set_job_id("job");
    request.set_generation(1);
    request.set_action(action);
    request.set_step(step);
    return request;
  }

  // A push of some of the keys; waits for its acknowledgement.
  static void Push(ServerCore* core, int64_t step) {
    wire::PushChunk push;
    push.header = {"job", 1, WorkerRank(0), Step(step - 1)};
    push.step = Step(step);
    push.num_chunks = 1;
    push.learning_rate = 0.1f;
    for (Key key = step % 3; key < kKeys; key += 3) push.keys.push_back(key);
    push.counts.assign(push.keys.size(), 1);
    push.values.assign(push.keys.size() * kDim, static_cast<float>(step % 7));
    push.tables = {
        {TableId(3), wire::PushKind::kGradient, 0, push.keys.size(), 0, push.values.size()}};
    absl::Notification done;
    core->Push(std::move(push), [&](const absl::StatusOr<wire::PushAnswer>& answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      done.Notify();
    });
    done.WaitForNotification();
  }
  static void Read(ServerCore* core) {
    wire::PullRequest pull;
    pull.header = {"job", 1, WorkerRank(0), kNoStep};
    pull.kind = wire::PullKind::kRead;
    pull.tables = {{TableId(3), 0, 3}};
    pull.keys.assign({1, 2, 3});
    absl::Notification done;
    core->Pull(pull, [&](const absl::StatusOr<wire::PullAnswer>& answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      done.Notify();
    });
    done.WaitForNotification();
  }

  // Commits written cuts and calls off failed ones; true when there are none of either.
  bool Control(ControlClient* control) {
    const auto reply = control->Checkpoint(Action(CheckpointRequest::STATUS), kTimeout);
    EXPECT_TRUE(reply.ok()) << reply.status();
    for (const CutStatus& cut : reply->cuts()) {
      if (cut.state() == CutStatus::FAILED) {
        EXPECT_TRUE(
            control->Checkpoint(Action(CheckpointRequest::CALL_OFF, cut.step()), kTimeout).ok());
      }
      if (cut.state() != CutStatus::WRITTEN) continue;
      EXPECT_GT(cut.write_s(), cut.pause_s());
      CommitShard(cut);
      EXPECT_TRUE(
          control->Checkpoint(Action(CheckpointRequest::COMMITTED, cut.step()), kTimeout).ok());
    }
    return reply->cuts().empty();
  }
  void CommitShard(const CutStatus& cut) {
    CheckpointManifest manifest;
    manifest.set_format_version(kCheckpointFormatVersion);
    manifest.set_job_id("job");
    manifest.set_generation(1);
    manifest.set_step(cut.step());
    manifest.set_num_servers(1);
    manifest.set_num_workers(1);
    *manifest.mutable_tables() = Job().tables();
    *manifest.add_shards() = cut.shard();
    if (cut.shard().base_step() >= 0) {
      const auto base = store_->Load(CheckpointName(Step(cut.shard().base_step())));
      ASSERT_TRUE(base.ok()) << base.status();
      *manifest.mutable_shards(0)->mutable_files() = base->shards(0).files();
      manifest.mutable_shards(0)->mutable_files()->MergeFrom(cut.shard().files());
    }
    const absl::Status committed = store_->Commit(manifest);
    EXPECT_TRUE(committed.ok()) << committed;
  }

  PosixDisk disk_;
  std::string folder_;
  std::unique_ptr<CheckpointStore> store_;
};

TEST_F(CheckpointServiceTest, ShardsAreWrittenBesidePushesPullsAndDigests) {
  constexpr int64_t kSteps = 200;
  TestServer server(&disk_, folder_ + "/log", folder_);
  ASSERT_TRUE(server.control()->Configure(Job(), kTimeout).ok());
  std::atomic<bool> trained{false};
  std::thread pusher([&] {
    for (int64_t step = 0; step < kSteps; ++step) Push(server.core(), step);
    trained = true;
  });
  std::thread reader([&] {
    while (!trained) Read(server.core());
  });
  std::thread looker([&] {
    while (!trained) {
      // Repeated: some are refused.
      const absl::Status digest = server.control()->GetDigest("job", 1, kTimeout).status();
      EXPECT_TRUE(digest.ok() || absl::IsResourceExhausted(digest)) << digest;
      EXPECT_TRUE(server.control()->GetStats(kTimeout).ok());
    }
  });
  while (!trained) Control(server.control());
  pusher.join();
  reader.join();
  looker.join();
  // A cut that begins now would make the next one fail: the last steps may not be applied yet.
  while (server.control()->GetStats(kTimeout)->complete_through() < kSteps - 1) {
  }
  while (!Control(server.control())) {
  }
  // The last step is a cut; if that cut failed, another is named a step later.
  Push(server.core(), kSteps);
  ASSERT_TRUE(
      server.control()->Checkpoint(Action(CheckpointRequest::NAME_CUT, kSteps), kTimeout).ok());
  while (!Control(server.control())) {
  }
  const auto stats = server.control()->GetStats(kTimeout);
  EXPECT_EQ(stats->checkpoint_step(), kSteps);
  EXPECT_EQ(stats->complete_through(), kSteps);
  auto digest = server.control()->GetDigest("job", 1, kTimeout);
  while (absl::IsResourceExhausted(digest.status())) {
    digest = server.control()->GetDigest("job", 1, kTimeout);
  }
  ASSERT_TRUE(digest.ok()) << digest.status();

  TestServer restored(&disk_, folder_ + "/other-log", folder_);
  ConfigureRequest next = Job(2);
  next.set_base_checkpoint(CheckpointName(Step(kSteps)));
  next.set_base_generation(1);
  next.set_check_only(true);
  EXPECT_EQ(restored.control()->Configure(next, kTimeout).status().code(),
            absl::StatusCode::kUnavailable);
  const auto asked = restored.control()->GetStats(kTimeout);
  ASSERT_TRUE(asked.ok()) << asked.status();
  for (const RpcStats& method : asked->rpcs()) {
    EXPECT_EQ(method.errors(), 0u) << method.method() << ": it has only asked";
  }
  next.set_check_only(false);
  ASSERT_TRUE(restored.control()->Configure(next, kTimeout).ok());
  next.set_check_only(true);
  EXPECT_TRUE(restored.control()->Configure(next, kTimeout).ok());
  const auto same = restored.control()->GetDigest("job", 2, kTimeout);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->low(), digest->low());
  EXPECT_EQ(same->high(), digest->high());
  EXPECT_EQ(restored.control()->GetStats(kTimeout)->loaded_rows(), kKeys);
}

TEST_F(CheckpointServiceTest, DirectoriesLieBelowTheServersRoot) {
  namespace fs = std::filesystem;
  fs::create_directories(folder_ + "/root/inside");
  fs::create_directories(folder_ + "/root-beside");
  fs::create_directory_symlink(folder_ + "/root-beside", folder_ + "/root/link");
  fs::create_directory_symlink(folder_ + "/root", folder_ + "/to-root");
  const auto configure = [&](const std::string& root, const std::string& directory) {
    TestServer server(&disk_, folder_ + "/log", root);
    ConfigureRequest request = Job();
    request.set_durability(NONE);
    request.set_checkpoint_directory(directory);
    return server.control()->Configure(request, kTimeout).status();
  };
  for (const auto& [root, directory] :
       std::vector<std::pair<const char*, const char*>>{{"/root", "/root"},
                                                        {"/root", "/root/"},
                                                        {"/root/", "/root"},
                                                        {"/root", "/root/inside"},
                                                        {"/root", "/root/inside/new"},
                                                        {"/root", "/root-beside/../root/inside"},
                                                        {"/root", "/to-root/inside"},
                                                        {"/to-root", "/root/inside"}}) {
    const absl::Status taken = configure(folder_ + root, folder_ + directory);
    EXPECT_TRUE(taken.ok()) << root << " " << directory << ": " << taken;
  }
  for (const char* directory : {"", "/root-beside", "/root/..", "/root/../root-beside",
                                "/root/link", "/root/link/new", "/root/inside/../../root-beside"}) {
    const absl::Status refused = configure(folder_ + "/root", folder_ + directory);
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << directory << ": " << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), absl::StrCat("'", folder_, directory, "'")) &&
                absl::StrContains(refused.message(), absl::StrCat("'", folder_, "/root'")))
        << refused;
  }
  const absl::Status none = configure("", folder_ + "/root");
  EXPECT_EQ(none.code(), absl::StatusCode::kPermissionDenied) << none;
  EXPECT_TRUE(absl::StrContains(none.message(), "without --checkpoint_root")) << none;
  EXPECT_TRUE(configure("", "").ok());
}

TEST_F(CheckpointServiceTest, TheFirstCheckpointLiesBelowItsRootToo) {
  TestServer server(&disk_, folder_ + "/log", folder_);
  ConfigureRequest request = Job();
  request.mutable_init()->set_directory("/etc");
  request.mutable_init()->set_name("step-1");
  const absl::Status refused = server.control()->Configure(request, kTimeout).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "init.directory '/etc'")) << refused;
}

TEST_F(CheckpointServiceTest, ATraceLiesBelowItsRootToo) {
  TestServer server(&disk_, folder_ + "/log", folder_);
  ConfigureRequest request = Job();
  request.mutable_trace()->set_last_step(5);
  request.set_trace_directory(folder_);
  const absl::Status refused = server.control()->Configure(request, kTimeout).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "without --trace_root")) << refused;
}

TEST_F(CheckpointServiceTest, ErrorsNameTheMethod) {
  TestServer server(&disk_, folder_ + "/log", folder_);
  const auto early = server.control()->Checkpoint(Action(CheckpointRequest::STATUS), kTimeout);
  EXPECT_EQ(early.status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(server.control()->Configure(Job(), kTimeout).ok());
  const auto negative =
      server.control()->Checkpoint(Action(CheckpointRequest::NAME_CUT, -1), kTimeout);
  EXPECT_EQ(negative.status().code(), absl::StatusCode::kInvalidArgument);
  // The call is named once, and then the address and the server.
  EXPECT_EQ(negative.status().message().find("Checkpoint at 127.0.0.1:"), 0u) << negative.status();
  EXPECT_EQ(negative.status().message().find("Checkpoint at", 1), std::string::npos);
  EXPECT_NE(negative.status().message().find(": server 0: "), std::string::npos)
      << negative.status();
}

}  // namespace
}  // namespace thermocline
