#include "common/disk/disk.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/disk/file_list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadAll(Disk* disk, const std::string& path) {
  const auto file = disk->Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  std::string text((*file)->size(), '?');
  EXPECT_TRUE((*file)->ReadAt(0, absl::MakeSpan(&text[0], text.size())).ok());
  return text;
}

// Behaviour that both disks share.
class DiskTest : public testing::TestWithParam<std::function<std::unique_ptr<Disk>()>> {
 protected:
  DiskTest() : disk_(GetParam()()), folder_(MakeFolder()) {}

  std::string MakeFolder() {
    std::string path = testing::TempDir() + "disk-XXXXXX";
    EXPECT_NE(mkdtemp(&path[0]), nullptr);
    EXPECT_TRUE(CreateDirectories(disk_.get(), path).ok());
    return path;
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) {
    auto file = disk_->Create(Path(name));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE((*file)->Append({text}).ok());
  }

  const std::unique_ptr<Disk> disk_;
  const std::string folder_;
};

TEST_P(DiskTest, AppendsReadsAndCuts) {
  auto file = disk_->Create(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append({"one ", "", "two "}).ok());
  EXPECT_TRUE((*file)->Append({}).ok());
  EXPECT_TRUE((*file)->Append({"three"}).ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(ReadAll(disk_.get(), Path("a")), "one two three");
  EXPECT_TRUE((*file)->Truncate(4).ok());
  EXPECT_TRUE((*file)->Append({"more"}).ok());
  EXPECT_EQ(ReadAll(disk_.get(), Path("a")), "one more");
  EXPECT_TRUE(disk_->Truncate(Path("a"), 3).ok());
  EXPECT_EQ(ReadAll(disk_.get(), Path("a")), "one");
  const auto open = disk_->Open(Path("a"));
  char middle;
  EXPECT_TRUE((*open)->ReadAt(1, absl::MakeSpan(&middle, 1)).ok());
  EXPECT_EQ(middle, 'n');
}

TEST_P(DiskTest, GoesOnAtTheEndOfAFile) {
  EXPECT_EQ(disk_->OpenToAppend(Path("a")).status().code(), absl::StatusCode::kNotFound);
  Write("a", "one ");
  auto file = disk_->OpenToAppend(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append({"two"}).ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(ReadAll(disk_.get(), Path("a")), "one two");
}

TEST_P(DiskTest, ManyPiecesInOneAppend) {
  std::vector<std::string> texts;
  std::string all;
  for (int i = 0; i < 3000; ++i) all += texts.emplace_back(absl::StrCat(i, " "));
  const std::vector<absl::string_view> pieces(texts.begin(), texts.end());
  auto file = disk_->Create(Path("a"));
  ASSERT_TRUE((*file)->Append(pieces).ok());
  EXPECT_EQ(ReadAll(disk_.get(), Path("a")), all);
}

// Pieces of any size, far beyond what is on its way to the medium at a time.
TEST_P(DiskTest, StreamsKeepTheOrderOfTheirBytes) {
  std::string all(21 << 20, ' ');
  std::mt19937_64 random(1);
  for (size_t at = 0; at < all.size(); at += 8) {
    const uint64_t bytes = random();
    std::memcpy(&all[at], &bytes, sizeof(bytes));
  }
  auto file = disk_->CreateStream(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto append = [&](size_t begin, size_t end) {
    while (begin < end) {
      const size_t first = std::min<size_t>(end - begin, random() % 300000);
      const size_t second = std::min<size_t>(end - begin - first, random() % 5000000);
      const absl::string_view text = absl::string_view(all).substr(begin, first + second);
      ASSERT_TRUE((*file)->Append({text.substr(0, first), "", text.substr(first)}).ok());
      begin += first + second;
    }
  };
  append(0, all.size() - 12345);
  ASSERT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE(ReadAll(disk_.get(), Path("a")) == all.substr(0, all.size() - 12345));
  append(all.size() - 12345, all.size());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE(ReadAll(disk_.get(), Path("a")) == all);
  EXPECT_EQ(disk_->CreateStream(Path("a")).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(DiskTest, NamesComeAndGo) {
  EXPECT_THAT(*disk_->List(folder_), IsEmpty());
  Write("b", "1");
  Write("a", "2");
  EXPECT_THAT(*disk_->List(folder_), ElementsAre("a", "b"));
  EXPECT_TRUE(disk_->Rename(Path("b"), Path("a")).ok());
  EXPECT_THAT(*disk_->List(folder_), ElementsAre("a"));
  EXPECT_EQ(ReadAll(disk_.get(), Path("a")), "1");
  EXPECT_TRUE(disk_->Remove(Path("a")).ok());
  EXPECT_TRUE(disk_->SyncDirectory(folder_).ok());
  EXPECT_THAT(*disk_->List(folder_), IsEmpty());
  EXPECT_TRUE(disk_->CreateDirectory(folder_).ok());
}

TEST_P(DiskTest, FoldersComeAndGo) {
  const std::string deep = Path("x/y/z");
  ASSERT_TRUE(CreateDirectories(disk_.get(), deep).ok());
  EXPECT_TRUE(CreateDirectories(disk_.get(), deep + "/").ok());
  Write("x/a", "1");
  EXPECT_THAT(*disk_->List(Path("x")), ElementsAre("a", "y"));
  const absl::Status full = disk_->RemoveDirectory(Path("x/y"));
  EXPECT_EQ(full.code(), absl::StatusCode::kFailedPrecondition) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr(Path("x/y")));
  EXPECT_TRUE(disk_->RemoveDirectory(deep).ok());
  EXPECT_EQ(disk_->RemoveDirectory(deep).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(disk_->RemoveDirectory(Path("x/y")).ok());
  EXPECT_EQ(disk_->RemoveDirectory(Path("x")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(*disk_->List(Path("x")), ElementsAre("a"));
}

TEST_P(DiskTest, ErrorsNameTheFile) {
  Write("a", "");
  const absl::Status exists = disk_->Create(Path("a")).status();
  EXPECT_EQ(exists.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(exists.message()), HasSubstr(Path("a")));
  for (const absl::Status& missing :
       {disk_->Open(Path("x")).status(), disk_->Remove(Path("x")), disk_->Truncate(Path("x"), 0),
        disk_->Rename(Path("x"), Path("y")), disk_->List(Path("x")).status(),
        disk_->Create(Path("x/y")).status()}) {
    EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
    EXPECT_THAT(std::string(missing.message()), HasSubstr(Path("x")));
  }
}

TEST_P(DiskTest, OneLockAtATime) {
  auto lock = disk_->Lock(folder_);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(disk_->Lock(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
  lock->reset();
  EXPECT_TRUE(disk_->Lock(folder_).ok());
}

INSTANTIATE_TEST_SUITE_P(Disks, DiskTest,
                         testing::Values([] { return std::make_unique<PosixDisk>(); },
                                         [] { return std::make_unique<SimulatedDisk>(); }),
                         [](const auto& info) { return info.index == 0 ? "Posix" : "Simulated"; });

// A limit on the size of files stands for a full disk.
TEST(PosixDiskTest, AFullDiskIsNamedWithWhatIsFreeAndWhatIsMissing) {
  std::string folder = testing::TempDir() + "full-XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  PosixDisk disk;
  auto file = *disk.Create(folder + "/a");
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const absl::Status full = file->Append({std::string(900, 'a'), std::string(600, 'b')});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              testing::MatchesRegex("can't write '" + folder +
                                    "/a': File too large; [a-z0-9.]+ at /.* has [0-9]+ bytes free, "
                                    "and 500 bytes were to be written"));
  ASSERT_TRUE(file->Truncate(0).ok());
  EXPECT_TRUE(file->Append({std::string(1500, 'a')}).ok());
}

// A limit on the size of files stands for a full disk again. The error may come late, but comes.
TEST(PosixDiskTest, AStreamSaysThatTheDiskIsFullByItsSync) {
  std::string folder = testing::TempDir() + "full-XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  PosixDisk disk;
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const int appends : {1, 30}) {
    auto file = *disk.CreateStream(absl::StrCat(folder, "/", appends));
    const rlimit low = {500000, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
    absl::Status full;
    for (int i = 0; i < appends; ++i) full.Update(file->Append({std::string(1000000, 'a')}));
    EXPECT_EQ(full.ok(), appends == 1) << full;
    const absl::Status synced = file->Sync();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(synced.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(synced.message()),
                testing::MatchesRegex(".*/full-.*: File too large; [a-z0-9.]+ at /.* has [0-9]+ "
                                      "bytes free, and [0-9]+ bytes were to be written"));
    EXPECT_EQ(file->Sync(), synced);  // The bytes are not there, and never will be.
  }
}

// Its buffers are bounded: what was appended long ago is in the file before it is synced.
TEST(PosixDiskTest, AStreamWritesWhileBytesAreAppended) {
  std::string folder = testing::TempDir() + "stream-XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  PosixDisk disk;
  auto file = *disk.CreateStream(folder + "/a");
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(file->Append({std::string(1 << 20, 'a')}).ok());
  EXPECT_GE(std::filesystem::file_size(folder + "/a"), 8u << 20);
  file.reset();  // Without a sync, as where a checkpoint is called off.
  EXPECT_LE(std::filesystem::file_size(folder + "/a"), 20u << 20);
}

TEST(SimulatedDiskTest, AHostsCrashKeepsWhatWasSyncedAndAnythingOfTheRest) {
  std::mt19937_64 random(1);
  bool lost_a_page_before_a_kept_one = false, lost_a_file = false;
  for (int round = 0; round < 200; ++round) {
    SimulatedDisk disk;
    ASSERT_TRUE(CreateDirectories(&disk, "/d").ok());
    auto file = *disk.Create("/d/a");
    ASSERT_TRUE(file->Append({std::string(700, 's')}).ok());
    ASSERT_TRUE(file->Sync().ok());
    ASSERT_TRUE(disk.SyncDirectory("/d").ok());
    ASSERT_TRUE(file->Append({std::string(3 * SimulatedDisk::kPageBytes, 'u')}).ok());
    auto other = *disk.Create("/d/b");
    disk.CrashHost(&random);
    const std::string left = disk.Content("/d/a");
    ASSERT_GE(left.size(), 700u);
    EXPECT_EQ(left.substr(0, 700), std::string(700, 's'));
    const size_t hole = left.find('\0');
    if (hole != std::string::npos && left.find('u', hole) != std::string::npos) {
      lost_a_page_before_a_kept_one = true;
    }
    lost_a_file |= disk.List("/d")->size() == 1;
    EXPECT_EQ(file->Append({"x"}).code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_TRUE(lost_a_page_before_a_kept_one);
  EXPECT_TRUE(lost_a_file);
}

TEST(SimulatedDiskTest, AHostsCrashMayForgetAnUnsyncedFolderAndAllInIt) {
  std::mt19937_64 random(1);
  int kept = 0, lost = 0;
  for (int round = 0; round < 100; ++round) {
    SimulatedDisk disk;
    ASSERT_TRUE(disk.CreateDirectory("/d").ok());
    auto file = *disk.Create("/d/a");
    ASSERT_TRUE(file->Sync().ok());
    ASSERT_TRUE(disk.SyncDirectory("/d").ok());
    disk.CrashHost(&random);
    const auto names = disk.List("/d");
    if (names.ok()) {
      EXPECT_THAT(*names, ElementsAre("a"));
    }
    ++(names.ok() ? kept : lost);
    EXPECT_EQ(disk.Open("/d/a").ok(), names.ok());
    // A folder whose maker died may still be lost.
    ASSERT_TRUE(CreateDirectories(&disk, "/d").ok());
    disk.CrashHost(&random);
    EXPECT_TRUE(disk.List("/d").ok());
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(lost, 10);
}

TEST(CreateDirectoriesTest, AFolderThatMustNotBeReadMayHoldOneThatIsThere) {
  class ForbiddenRoot : public SimulatedDisk {
   public:
    absl::Status SyncDirectory(const std::string& directory) override {
      if (directory == "/" && is_forbidden) return absl::PermissionDeniedError(directory);
      return SimulatedDisk::SyncDirectory(directory);
    }
    bool is_forbidden = false;
  };
  ForbiddenRoot disk;
  ASSERT_TRUE(CreateDirectories(&disk, "/d").ok());
  disk.is_forbidden = true;
  EXPECT_TRUE(CreateDirectories(&disk, "/d").ok());
  EXPECT_TRUE(CreateDirectories(&disk, "/d/e").ok());
  EXPECT_EQ(CreateDirectories(&disk, "/f").code(), absl::StatusCode::kPermissionDenied);
}

TEST(SimulatedDiskTest, EachHostLosesWhatItWroteItself) {
  std::mt19937_64 random(1);
  int lost = 0;
  for (int round = 0; round < 50; ++round) {
    SimulatedDisk disk;
    const std::unique_ptr<SimulatedDisk> other = disk.Share();
    ASSERT_TRUE(CreateDirectories(&disk, "/d").ok());
    auto file = *disk.Create("/d/a");
    auto others = *other->Create("/d/b");
    ASSERT_TRUE(file->Append({"mine"}).ok());
    ASSERT_TRUE(others->Append({"theirs"}).ok());
    const auto lock = disk.Lock("/d");
    EXPECT_EQ(other->Lock("/d").status().code(), absl::StatusCode::kFailedPrecondition);
    other->DieAfter(0);
    EXPECT_FALSE(others->Sync().ok());
    other->CrashHost(&random);
    EXPECT_EQ(disk.Content("/d/a"), "mine");
    EXPECT_TRUE(file->Append({"!"}).ok());
    const auto theirs = disk.Open("/d/b");
    if (!theirs.ok() || disk.Content("/d/b") != "theirs") ++lost;
    EXPECT_FALSE(other->Lock("/d").ok()) << "the lock went with another process";
  }
  EXPECT_GT(lost, 10);
}

TEST(SimulatedDiskTest, RunsFullAndFailsOnDemand) {
  SimulatedDisk disk;
  ASSERT_TRUE(disk.CreateDirectory("/d").ok());
  auto file = *disk.Create("/d/a");
  disk.SetFreeBytes(5);
  EXPECT_EQ(file->Append({"1234567"}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(disk.Content("/d/a"), "12345");
  ASSERT_TRUE(file->Truncate(1).ok());
  EXPECT_TRUE(file->Append({"abcd"}).ok());
  disk.SetFreeBytes(1000);
  disk.FailAfter(1);
  EXPECT_TRUE(file->Append({"e"}).ok());
  EXPECT_EQ(file->Append({"1234"}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(disk.Content("/d/a"), "1abcde12");
  EXPECT_TRUE(file->Sync().ok());
}

TEST(SimulatedDiskTest, NothingHappensAfterADeathUntilTheNextProcess) {
  SimulatedDisk disk;
  ASSERT_TRUE(disk.CreateDirectory("/d").ok());
  auto file = *disk.Create("/d/a");
  int deaths = 0;
  disk.DieAfter(1, [&] { ++deaths; });
  EXPECT_TRUE(file->Append({"1234"}).ok());
  EXPECT_EQ(file->Append({"5678"}).code(), absl::StatusCode::kUnavailable);
  for (const absl::Status& dead : {file->Append({"9"}), file->Truncate(4), file->Sync(),
                                   disk.Create("/d/b").status(), disk.Remove("/d/a")}) {
    EXPECT_EQ(dead.code(), absl::StatusCode::kUnavailable) << dead;
  }
  EXPECT_EQ(deaths, 1);
  EXPECT_EQ(disk.Content("/d/a"), "123456");
  disk.CrashProcess();
  EXPECT_THAT(*disk.List("/d"), ElementsAre("a"));
  EXPECT_EQ(disk.Content("/d/a"), "123456");
  EXPECT_TRUE((*disk.Create("/d/b"))->Append({"next"}).ok());
}

TEST(IsObjectPath, IsOneOfAStore) {
  EXPECT_TRUE(IsObjectPath("s3://bucket/days/"));
  for (const char* path : {"", "s3:/bucket", "days/s3://bucket", "S3://bucket", "/s3://b/k"}) {
    EXPECT_FALSE(IsObjectPath(path)) << path;
  }
}

TEST(ListFiles, RefusesWhatOtherProcessesCanNotRead) {
  for (const char* path : {"/dev/stdin", "/dev/fd/63", "/proc/self/fd/0"}) {
    const auto files = ListFiles(path);
    EXPECT_EQ(files.status().code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(files.status().message()), HasSubstr("others read the data"));
  }
  EXPECT_TRUE(ListFiles("/dev/null").ok());
}

TEST(AbsolutePath, MeansTheSameFromAnyFolder) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(AbsolutePath("a/../days/"), here + "/days");
  EXPECT_EQ(AbsolutePath("./day.tsv"), here + "/day.tsv");
  EXPECT_EQ(AbsolutePath("/data//days/"), "/data/days");
  EXPECT_EQ(AbsolutePath("/"), "/");
  EXPECT_EQ(AbsolutePath(""), "");
  EXPECT_EQ(AbsolutePath("s3://bucket/days/"), "s3://bucket/days/");
}

// ---- folders named by keys

TEST(FileListTest, WalksFoldersNamedByKeys) {
  namespace fs = std::filesystem;
  std::string folder = testing::TempDir() + "keys-XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  const auto touch = [&](const std::string& path) {
    fs::create_directories(fs::path(folder + "/" + path).parent_path());
    std::ofstream(folder + "/" + path) << "x";
  };
  for (const char* path :
       {"t/day=10/b", "t/day=10/a", "t/day=2/hour=3/a", "t/day=2/_tmp/b", "t/day=2/.c",
        "t/_SUCCESS", "t/other/d", "t/_day=4/e", "flat/f", "flat/day=1/g", "none/day=1/_h"}) {
    touch(path);
  }
  const auto list = [&](const std::string& path) {
    std::vector<std::string> names;
    const auto found = ListFiles(folder + "/" + path);
    if (!found.ok()) return std::vector<std::string>{std::string(found.status().message())};
    for (const std::string& file : *found) names.push_back(file.substr(folder.size() + 1));
    return names;
  };
  EXPECT_THAT(list("t"), ElementsAre("t/day=10/a", "t/day=10/b", "t/day=2/hour=3/a"));
  EXPECT_THAT(list("t/day=1*"), ElementsAre("t/day=10/a", "t/day=10/b"));
  EXPECT_THAT(list("t/day=2"), ElementsAre("t/day=2/hour=3/a"));
  EXPECT_THAT(list("flat"), ElementsAre("flat/f"));  // Files of its own are all.
  EXPECT_THAT(list("none"), ElementsAre(HasSubstr("the folder has no files")));
  fs::remove_all(folder);
}

TEST(FileListTest, TheKeysOfAFileAreThoseOfItsFolders) {
  using Keys = std::vector<FolderKey>;
  EXPECT_EQ(FolderKeysOf("s3://b/logs/day=2026-11-20/hour=07/a=b.csv"),
            (Keys{{"day", "2026-11-20"}, {"hour", "07"}}));
  EXPECT_EQ(FolderKeysOf("/x=1/data/k=/a"), (Keys{{"k", ""}}));
  EXPECT_EQ(FolderKeysOf("/t/a%20b=%C3%A9%2F%zz=1/f"), (Keys{{"a b", "\xc3\xa9/%zz=1"}}));
  EXPECT_EQ(FolderKeysOf("day=__HIVE_DEFAULT_PARTITION__/f"), (Keys{{"day", ""}}));
  EXPECT_EQ(FolderKeysOf("a=b"), Keys{});
  EXPECT_EQ(FolderKeysOf("/data/f"), Keys{});
  EXPECT_TRUE(IsInKeyFolders("day=1/hour=2/f"));
  for (const char* path : {"f", "day=1/x/f", "day=1/_f", "_day=1/f", "day=1/"}) {
    EXPECT_FALSE(IsInKeyFolders(path)) << path;
  }
}

}  // namespace
}  // namespace thermocline
