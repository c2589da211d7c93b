#include "deploy/processes/local_processes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"
#include "deploy/processes/signal_watch.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;

class LocalFilesTest : public testing::Test {
 protected:
  LocalFilesTest() {
    std::string name = testing::TempDir() + "/local_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  void Write(const std::string& name, const std::string& text) const {
    const fs::path path = absl::StrCat(folder_, "/", name);
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  std::string folder_;
};

TEST_F(LocalFilesTest, OnlyWhatServersLeaveIsRemoved) {
  const std::vector<std::string> others = {"server-0 of mine.data", "server-.data",
                                           "server-01.data", "server-0.data.old"};
  for (const std::string& name : others) Write(name + "/file", "precious");
  Write("server-0.data/log", "x");
  Write("server-12.data/rows/CURRENT", "x");
  // Nor does a link lead to what others have.
  fs::create_directory_symlink(folder_ + "/server-.data", folder_ + "/server-1.data");
  const auto directory = RunDirectory::Open(folder_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(RemoveServerData(*directory), absl::OkStatus());
  for (const char* name : {"server-0.data", "server-12.data", "server-1.data"}) {
    EXPECT_FALSE(fs::exists(fs::symlink_status(absl::StrCat(folder_, "/", name)))) << name;
  }
  for (const std::string& name : others) {
    EXPECT_TRUE(fs::exists(absl::StrCat(folder_, "/", name, "/file"))) << name;
  }
}

TEST_F(LocalFilesTest, ThePackagesDigestIsOfWhatItsWrappersStart) {
  JobPrograms programs;
  programs.build = "1.0";
  programs.server = folder_ + "/bin/server";
  programs.worker = folder_ + "/bin/worker";
  for (const char* name : {"server", "worker"}) {
    Write(absl::StrCat("bin/", name), "#!/bin/sh\nexec $package/programs/" + std::string(name));
    Write(absl::StrCat("programs/", name), "ELF");
  }
  const auto first = DigestOfPrograms(programs);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*DigestOfPrograms(programs), *first);
  Write("programs/worker", "ELF of another build");
  EXPECT_NE(*DigestOfPrograms(programs), *first);
  fs::remove(folder_ + "/programs/worker");
  EXPECT_EQ(DigestOfPrograms(programs).status().code(), absl::StatusCode::kUnavailable);
  // A program, or a script, that is none of a package stands for itself.
  for (const char* text : {"ELF", "#!/bin/sh\nexec worker"}) {
    Write("bin/worker", text);
    EXPECT_TRUE(DigestOfPrograms(programs).ok()) << text;
  }
}

// The worker leaves a bad result and ends its metrics, and the process serves on.
TEST_F(LocalFilesTest, AnEmbeddedServersWorkerEndsAlsoWithABadResult) {
  Write("worker",
        "#!/bin/sh\n"
        "for flag; do case $flag in --result_file=*) result=${flag#*=};; esac; done\n"
        "echo 'no object' > $result\n"
        "exec 3>&-\n"
        "exec tail -f /dev/null\n");
  JobPrograms programs;
  programs.worker = folder_ + "/worker";
  fs::permissions(programs.worker, fs::perms::owner_all);
  const auto job = ParseJob(
      "name: 'j' data { format: CRITEO_TSV path: 'rows.tsv' } default_table { dim: 8 } "
      "dlrm { bottom: [8] } train { batch_size: 8 learning_rate { base: 1 } }",
      "job", {"cluster.servers=0"});
  ASSERT_TRUE(job.ok()) << job.status();
  const auto directory = RunDirectory::Open(folder_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  SignalWatch signals;
  Supervisor supervisor(&signals);
  LocalProcesses processes(*job, programs, *directory, {}, &supervisor);
  processes.BeginGeneration(1, [](absl::string_view) {});
  const ProcessId server = {ProcessRole::kServer, 0, 1, 1},
                  worker = {ProcessRole::kWorker, 0, 1, 1};
  for (const ProcessId& id : {server, worker}) {
    action::StartProcess start;
    start.id = id;
    ASSERT_EQ(processes.Start(start), absl::OkStatus());
  }
  std::vector<JobEvent> events;
  while (events.empty()) {
    supervisor.Poll(absl::Milliseconds(20));
    events = processes.TakeEvents();
  }
  ASSERT_EQ(events.size(), 2u);
  const auto* result = std::get_if<event::WorkerResult>(&events[0]);
  ASSERT_NE(result, nullptr);
  EXPECT_TRUE(result->id == worker);
  EXPECT_EQ(result->steps.status().code(), absl::StatusCode::kDataLoss);
  const auto* ended = std::get_if<event::ProcessEnded>(&events[1]);
  ASSERT_NE(ended, nullptr);
  EXPECT_TRUE(ended->id == worker);
  EXPECT_EQ(ended->end.exit_code, 0);
}

}  // namespace
}  // namespace thermocline
