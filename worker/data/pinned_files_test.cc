#include "worker/data/pinned_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/arrow/parquet.h"
#include "common/disk/npy.h"
#include "common/job/job_loader.h"
#include "worker/data/dataset.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// More than are read ahead.
constexpr int kRows = 400;

Job JobOf(const std::string& data) {
  auto job = ParseJob(absl::StrCat(R"(name: "j" data { )", data, R"(
                                   label { column: "y" } split { last_share: 0 } }
                                   feature { column: "id" categorical { id: INTEGER } }
                                   default_table { dim: 4 } dlrm { top: 8 }
                                   train { batch_size: 4 passes: 2 learning_rate { base: 0.1 } })"),
                      "j", {});
  if (!job.ok()) ADD_FAILURE() << job.status();
  return *job;
}

std::string Csv(int first, int rows = kRows) {
  std::string text = "y,id\n";
  for (int i = first; i < first + rows; ++i) absl::StrAppend(&text, i % 2, ",", 1000 + i, "\n");
  return text;
}

void WriteParquet(const std::string& path, int first) {
  std::vector<int64_t> labels, ids;
  for (int i = first; i < first + kRows; ++i) {
    labels.push_back(i % 2);
    ids.push_back(i);
  }
  auto writer = ParquetWriter::Create(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append({{"y", labels}, {"id", ids}}).ok());
  ASSERT_TRUE((*writer)->Close().ok());
}

// Another time than it has, whatever the file system's clock.
void Touch(const std::string& path) {
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) - std::chrono::seconds(7));
}

// Reads the first batch of two passes, calls `change`, and reads on to the end or an error. The
// ids that it read go to `ids`.
absl::Status ReadAmidst(const Job& job, const std::function<void()>& change,
                        std::vector<Key>* ids = nullptr) {
  const auto dataset = Dataset::Open(job);
  if (!dataset.ok()) return dataset.status();
  const auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  if (!reader.ok()) return reader.status();
  for (int batches = 0;; ++batches) {
    auto batch = (*reader)->Next();
    if (!batch.ok()) return batch.status();
    if (*batch == nullptr) return absl::OkStatus();
    if (ids != nullptr) {
      const auto& keys = (*batch)->features[0].keys;
      ids->insert(ids->end(), keys.begin(), keys.end());
    }
    if (batches == 0) change();
  }
}

void ExpectChanged(const absl::Status& status, const std::string& path) {
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              StartsWith(path + " was changed while the job read it: it is "));
}

DataFiles FilesOf(const std::vector<std::string>& paths) {
  DataFiles files;
  for (const std::string& path : paths) {
    const auto identity = IdentifyFile(path, nullptr, kDataFileEndBytes);
    EXPECT_TRUE(identity.ok()) << identity.status();
    *files.add_train() = ToDataFile(path, *identity);
  }
  return files;
}

TEST(PinnedFiles, AFileThatIsNotTheOneOfTheJob) {
  TempFolder folder;
  const std::string a = folder.Write("a.csv", Csv(0, 4)), b = folder.Write("b.csv", Csv(4, 4));
  Job job = JobOf(absl::StrCat("train { path: '", folder.path(), "' csv { header: true } }"));
  *job.mutable_data_files() = FilesOf({a, b});
  EXPECT_TRUE(Dataset::Open(job).ok());
  folder.Write("b.csv", Csv(4, 5));
  EXPECT_EQ(Dataset::Open(job).status(),
            absl::FailedPreconditionError(
                b + " is not the file that the job began with: it has 40 bytes, and had 33"));
  folder.Write("b.csv", Csv(6, 4));
  EXPECT_THAT(std::string(Dataset::Open(job).status().message()),
              HasSubstr("it has 33 bytes as before, but others at its beginning"));
  std::filesystem::remove(b);
  EXPECT_TRUE(absl::IsNotFound(Dataset::Open(job).status()));
}

// What comes to the folder later is none of the job's.
TEST(PinnedFiles, TheFilesOfTheJobAreReadAndNoOthers) {
  TempFolder folder;
  const std::string a = folder.Write("a.csv", Csv(0, 4)), c = folder.Write("c.csv", Csv(2, 4));
  Job job = JobOf(absl::StrCat("train { path: '", folder.path(), "' csv { header: true } }"));
  *job.mutable_data_files() = FilesOf({a, c});
  folder.Write("b.csv", Csv(0, 9));
  folder.Write("d.csv", Csv(0, 9));
  std::vector<Key> ids;
  EXPECT_TRUE(ReadAmidst(
                  job, [] {}, &ids)
                  .ok());
  EXPECT_THAT(ids, ElementsAre(1000, 1001, 1002, 1003, 1002, 1003, 1004, 1005, 1000, 1001, 1002,
                               1003, 1002, 1003, 1004, 1005));
}

TEST(PinnedFiles, TextThatIsChangedWhileItIsRead) {
  for (const bool compressed : {false, true}) {
    const auto packed = [compressed](const std::string& text) {
      return compressed ? Gzip(text) : text;
    };
    TempFolder folder;
    const std::string path = folder.Write("a.csv", packed(Csv(0)));
    const Job job = JobOf(absl::StrCat("train { path: '", path, "' csv { header: true } }"));
    EXPECT_TRUE(ReadAmidst(job, [] {}).ok());
    ExpectChanged(ReadAmidst(job, [&] { folder.Write("a.csv", packed(Csv(0, kRows + 1))); }), path);
    // Replaced by another of the same size, as `mv` does.
    folder.Write("a.csv", packed(Csv(0)));
    ExpectChanged(ReadAmidst(job,
                             [&] {
                               const std::string other = folder.Write("b", packed(Csv(1)));
                               Touch(other);
                               std::filesystem::rename(other, path);
                             }),
                  path);
    // What is open can be read to its end, but not again.
    folder.Write("a.csv", packed(Csv(0)));
    EXPECT_TRUE(absl::IsNotFound(ReadAmidst(job, [&] { std::filesystem::remove(path); })));
  }
}

TEST(PinnedFiles, ParquetThatIsReplacedWhileItIsRead) {
  if (!RequireArrow("this test").ok()) GTEST_SKIP() << RequireArrow("this test");
  TempFolder folder;
  const std::string path = folder.path() + "/a.parquet";
  WriteParquet(path, 0);
  const Job job = JobOf(absl::StrCat("train { path: '", path, "' parquet {} }"));
  EXPECT_TRUE(ReadAmidst(job, [] {}).ok());
  // With the same row groups.
  ExpectChanged(ReadAmidst(job,
                           [&] {
                             WriteParquet(path, 1);
                             Touch(path);
                           }),
                path);
}

TEST(PinnedFiles, NpyThatIsChangedWhileItIsRead) {
  TempFolder folder;
  const auto write = [&folder](const char* name, int64_t columns, int32_t value) {
    const std::string path = folder.path() + "/" + name;
    const std::vector<int32_t> values(kRows, value);
    auto writer = NpyWriter::Create(path, "<i4",
                                    columns == 0 ? std::vector<int64_t>{} : std::vector{columns});
    EXPECT_TRUE(writer.ok() && (*writer)->Append(values.data(), kRows).ok() &&
                (*writer)->Finish().ok());
    return path;
  };
  write("train_labels.npy", 0, 1);
  const std::string ids = write("train_sparse.npy", 1, 7);
  auto job = ParseJob(absl::StrCat("name: 'j' data { format: DLRM_NPY num_dense: 0 "
                                   "num_categorical: 1 path: '",
                                   folder.path(),
                                   "' } default_table { dim: 4 } dlrm { top: 8 } "
                                   "train { batch_size: 4 passes: 2 learning_rate { base: 1 } }"),
                      "j", {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(ReadAmidst(*job, [] {}).ok());
  ExpectChanged(ReadAmidst(*job, [&] { Touch(ids); }), ids);
  *job->mutable_data_files() = FilesOf({ids});
  write("train_sparse.npy", 1, 8);
  EXPECT_THAT(std::string(Dataset::Open(*job).status().message()),
              StartsWith(ids + " is not the file that the job began with: it has "));
}

// It knows objects by their tags.
class TagStore : public ObjectStore {
 public:
  ObjectIdentity object;
  absl::Status error;

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return std::vector<std::string>{path};
  }
  absl::StatusOr<std::unique_ptr<ObjectStream>> OpenStream(const std::string&) override {
    return absl::UnimplementedError("no stream");
  }
  absl::StatusOr<ObjectIdentity> Identify(const std::string&, int64_t end_bytes) override {
    if (!error.ok()) return error;
    ObjectIdentity identity = object;
    if (end_bytes == 0) identity.head = identity.tail = "";
    return identity;
  }
};

TEST(PinnedFiles, AnObjectIsKnownByItsEndsAndThenByItsTag) {
  const std::string path = "s3://bucket/day";
  auto store = std::make_shared<TagStore>();
  store->object = {4, "tag 1", "text", "text"};
  const auto identity = IdentifyFile(path, store.get(), kDataFileEndBytes);
  ASSERT_TRUE(identity.ok());
  DataFiles files;
  *files.add_train() = ToDataFile(path, *identity);
  // The same bytes, uploaded again.
  store->object.tag = "tag 2";
  const auto pinned = PinnedFiles::Open(files, store);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_TRUE((*pinned)->Check(path).ok());
  store->error = absl::UnavailableError("no answer");
  EXPECT_EQ((*pinned)->Check(path), store->error);
  store->error = absl::NotFoundError("no such key");
  EXPECT_TRUE((*pinned)->Check(path).ok());
  store->error = absl::OkStatus();
  store->object.tag = "tag 3";
  EXPECT_EQ(
      (*pinned)->Check(path),
      absl::FailedPreconditionError(path + " was changed while the job read it: it is 4 bytes, tag "
                                           "tag 3, and was 4 bytes, tag tag 2"));
  store->object.head = "TEXT";
  EXPECT_EQ(
      PinnedFiles::Open(files, store).status(),
      absl::FailedPreconditionError(path + " is not the file that the job began with: it has 4 "
                                           "bytes as before, but others at its beginning"));
}

}  // namespace
}  // namespace thermocline
