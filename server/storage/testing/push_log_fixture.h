// A push log on a simulated disk, and a disk that others use in the middle of its operations: for
// the tests of this folder.
#ifndef THERMOCLINE_SERVER_STORAGE_TESTING_PUSH_LOG_FIXTURE_H_
#define THERMOCLINE_SERVER_STORAGE_TESTING_PUSH_LOG_FIXTURE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/disk/disk.h"
#include "gtest/gtest.h"
#include "server/storage/journal_opener.h"
#include "server/storage/push_log.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {

inline constexpr char kLogFolder[] = "/log";
inline const LogIdentity kLogIdentity = {JobHash("job"), 5, 1};

class PushLogTest : public ::testing::Test {
 protected:
  PushLogTest() { EXPECT_TRUE(CreateDirectories(&disk_, kLogFolder).ok()); }

  PushLogOptions Options(uint64_t segment_bytes = 1 << 20) const {
    return {kLogFolder, kLogIdentity, segment_bytes};
  }
  std::unique_ptr<PushLog> Start(const LogHistory& history = {}, uint64_t segment_bytes = 1 << 20) {
    auto log = PushLog::Start(&disk_, Options(segment_bytes), history);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  // Record n is of step n / 2.
  absl::StatusOr<ReplayResult> Replay(Step covered = kNoStep) {
    payloads_.clear();
    return ReplayPushLog(&disk_, kLogFolder, kLogIdentity, covered,
                         [this](const LogRecord& record) {
                           payloads_.emplace_back(record.payload);
                           return StepOf(record.lsn);
                         });
  }
  static Step StepOf(Lsn lsn) { return Step(static_cast<int64_t>(lsn.value() / 2)); }
  // Ends the segment first where it is full.
  static absl::StatusOr<Lsn> Append(PushLog* log, const std::string& payload) {
    RETURN_IF_ERROR(log->EndFullSegment());
    return log->Append(1, StepOf(log->last() + 1), {payload});
  }
  static std::string Name(Lsn first) { return SegmentName({kLogIdentity.generation, first}); }
  std::string OnlyPath() const { return absl::StrCat(kLogFolder, "/", Name(Lsn(1))); }

  SimulatedDisk disk_;
  std::vector<std::string> payloads_;  // of the last replay
};

// A disk whose operations take long: records are appended in the middle of them.
class BusyDisk : public SimulatedDisk {
 public:
  // Runs in the middle of every operation but an append, and of none that it brings about itself.
  std::function<void(const std::string& operation)> meanwhile;
  std::function<void()> before_remove;

  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, SimulatedDisk::Create(path));
    Run("create");
    return std::make_unique<File>(this, std::move(file));
  }
  absl::Status Remove(const std::string& path) override {
    if (before_remove) before_remove();
    Run("remove");
    return SimulatedDisk::Remove(path);
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    Run("sync folder");
    return SimulatedDisk::SyncDirectory(directory);
  }

 private:
  class File : public AppendFile {
   public:
    File(BusyDisk* disk, std::unique_ptr<AppendFile> file) : disk_(disk), file_(std::move(file)) {}
    absl::Status Append(absl::Span<const absl::string_view> pieces) override {
      return file_->Append(pieces);
    }
    absl::Status Sync() override {
      disk_->Run("sync");
      return file_->Sync();
    }
    absl::Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }

   private:
    BusyDisk* const disk_;
    const std::unique_ptr<AppendFile> file_;
  };
  void Run(const std::string& operation) {
    if (!meanwhile || running_) return;
    running_ = true;
    meanwhile(operation);
    running_ = false;
  }
  inline static thread_local bool running_ = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_TESTING_PUSH_LOG_FIXTURE_H_
