#include "deploy/cli/run_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/disk/disk.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A controller that an engine starts in a run directory that `submit` has made.
class OrBeginTest : public testing::Test {
 protected:
  OrBeginTest() {
    std::string name = testing::TempDir() + "/or_begin_XXXXXX";
    folder_ = mkdtemp(name.data());
    fs::create_directories(RunDir() + "/submit");
    Write("rows.tsv", "1\n");
    Write("job", absl::StrCat("name: 'j' data { format: CRITEO_TSV path: '", folder_,
                              "/rows.tsv' } default_table { dim: 8 } dlrm { bottom: [8] } "
                              "checkpoint {} train { batch_size: 8 learning_rate { base: 1 } }"));
    for (const char* program : {"thermocline-server", "thermocline-worker"}) {
      Write(program, "");
      chmod(absl::StrCat(folder_, "/", program).c_str(), 0755);
    }
    flags_.job = folder_ + "/job";
    flags_.run_dir = RunDir();
    flags_.bin_dir = folder_;
    flags_.or_begin = true;
  }

  std::string RunDir() const { return folder_ + "/run"; }
  void Write(const std::string& name, const std::string& text) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
  }
  std::string Text(const std::string& name) const {
    std::ifstream file(absl::StrCat(folder_, "/", name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Whether the run is resumed, and its generation.
  absl::StatusOr<std::pair<bool, uint64_t>> SetUp(bool restarted) {
    flags_.restarted = restarted;
    flags_.resume = !restarted;
    ByteScan scan;
    const auto setup = SetUpTraining(flags_, &scan);
    if (!setup.ok()) return setup.status();
    return std::pair(setup->options.is_resumed, setup->options.start.generation);
  }
  // What a controller leaves that has opened a generation.
  void OpenGeneration(const std::string& job) const {
    PosixDisk disk;
    CheckpointStore store(&disk, RunDir() + "/checkpoints");
    ASSERT_EQ(store.Prepare(), absl::OkStatus());
    JobState state;
    state.set_job_id(job);
    state.set_generation(1);
    ASSERT_EQ(store.Open(state, 0), absl::OkStatus());
  }

  std::string folder_;
  TrainFlags flags_;
};

TEST_F(OrBeginTest, BeginsOnceAndThenGoesOn) {
  Write("run/controller.json", "{}");  // A start that found no hosts has left it.
  EXPECT_EQ(SetUp(false).value(), std::pair(false, uint64_t{1}));
  EXPECT_EQ(SetUp(true).value(), std::pair(false, uint64_t{1}));
  // The next one ended before it had written the job file.
  OpenGeneration("j");
  EXPECT_EQ(SetUp(true).value(), std::pair(false, uint64_t{2}));
  Write("run/job.textproto", Text("job"));
  EXPECT_EQ(SetUp(true).value(), std::pair(true, uint64_t{2}));
  EXPECT_EQ(SetUp(false).value(), std::pair(true, uint64_t{2}));
}

TEST_F(OrBeginTest, NeitherRemovesNorTakesWhatIsNotItsOwn) {
  Write("run/data.csv", "precious");
  EXPECT_EQ(SetUp(false).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(SetUp(true).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Text("run/data.csv"), "precious");
  fs::remove(RunDir() + "/data.csv");
  Write("run/checkpoints/step-000000009/MANIFEST", "restored");
  EXPECT_EQ(SetUp(true).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Text("run/checkpoints/step-000000009/MANIFEST"), "restored");
  // Neither are generations of another job.
  fs::remove_all(RunDir() + "/checkpoints");
  OpenGeneration("another");
  EXPECT_EQ(SetUp(true).status().code(), absl::StatusCode::kAlreadyExists);
}

// How many servers the job has with --embed, with `more` in its file.
class EmbedTest : public OrBeginTest {
 protected:
  EmbedTest() {
    fs::remove_all(RunDir());
    flags_.or_begin = false;
    flags_.embed = true;
  }
  int ServersWith(const std::string& more) {
    fs::remove_all(RunDir());
    Write("job_more", absl::StrCat(Text("job"), more));
    flags_.job = folder_ + "/job_more";
    ByteScan scan;
    const auto setup = SetUpTraining(flags_, &scan);
    EXPECT_TRUE(setup.ok()) << setup.status();
    return setup.ok() ? static_cast<int>(setup->job.cluster().servers()) : -1;
  }
};

TEST_F(EmbedTest, TheJobAndOtherFlagsComeFirst) {
  EXPECT_EQ(ServersWith(""), 0);
  EXPECT_EQ(ServersWith(" cluster { workers: 1 }"), 0);
  EXPECT_EQ(ServersWith(" cluster { servers: 2 }"), 2);
  EXPECT_EQ(ServersWith(" cluster { workers: 2 }"), 1);
  EXPECT_EQ(ServersWith(" cluster { durability: LOG_ASYNC }"), 1);
  flags_.set = {"cluster.durability=LOG_SYNC"};
  EXPECT_EQ(ServersWith(""), 1);
  flags_.set = {"cluster.servers=3"};
  EXPECT_EQ(ServersWith(""), 3);
  flags_.set = {};
  flags_.servers = "4";
  EXPECT_EQ(ServersWith(""), 4);
  flags_.servers.reset();
  flags_.nodes = 2;
  flags_.listen = "127.0.0.1:0";
  EXPECT_EQ(ServersWith(""), 1);
}

TEST_F(OrBeginTest, NeedsTheFolderThatWasSubmitted) {
  fs::remove_all(RunDir());  // Its file system is not mounted.
  EXPECT_EQ(SetUp(true).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(RunDir()));
  flags_.run_dir = "";
  EXPECT_EQ(SetUp(true).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace thermocline
