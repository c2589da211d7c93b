#include "worker/fae/packing.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/disk/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/simulated_disk.h"
#include "worker/fae/pack.h"
#include "worker/fae/pack_source.h"
#include "worker/fae/testing/test_packs.h"

namespace thermocline {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

// Rows whose ids are i % 10 but for every fourth, which has an id of its own.
std::string SkewedLog(int rows) {
  std::string text = "label,id\n";
  for (int i = 0; i < rows; ++i) {
    absl::StrAppend(&text, i % 2, ",", i % 4 == 3 ? 1000 + i : i % 10, "\n");
  }
  return text;
}

std::string FlatLog(int rows) {
  std::string text = "label,id\n";
  for (int i = 0; i < rows; ++i) absl::StrAppend(&text, i % 2, ",", i, "\n");
  return text;
}

class PackingTest : public testing::Test {
 protected:
  PackingTest() {
    options_.disk = &disk_;
    options_.threads = 2;
    options_.on_warning = [this](absl::string_view text) { warnings_.emplace_back(text); };
  }

  // 64 KiB hold 2,048 rows of 32 bytes. `more`: fae and calibration.
  Job MakeJob(const std::string& data, const std::string& more = R"(
                  fae { budget: "64KiB" schedule { fixed: true } } calibration { sample_share: 1 whole_table: "0" )",
              const std::vector<std::string>& overrides = {}) const {
    const auto job = ParseJob(absl::StrCat(R"(name: "packed"
            data {
              train { path: ")",
                                           data, R"(" csv { header: true } }
              split { last_share: 0 }
              label { column: "label" }
            }
            default_table { dim: 4 optimizer { adagrad {} } }
            feature { name: "id" categorical { id: INTEGER } }
            dlrm { top: [8] }
            train { batch_size: 8 learning_rate { base: 0.01 } } )",
                                           more, " directory: \"", Packs(), "\" }"),
                              "test", overrides);
    CHECK(job.ok() || (std::cerr << job.status() << std::endl, false));
    return *job;
  }
  std::string Packs() const { return folder_.path() + "/run/hot"; }
  std::vector<std::string> FilesThere() { return *disk_.List(Packs()); }
  // Writes an array with one column.
  template <typename T>
  void WriteNpy(const std::string& name, const std::string& dtype, const std::vector<T>& values) {
    const auto file = NpyWriter::Create(absl::StrCat(folder_.path(), "/", name), dtype, {1});
    CHECK(file.ok() && (*file)->Append(values.data(), values.size()).ok());
    CHECK((*file)->Finish().ok());
  }
  std::string BytesOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TempFolder folder_;
  PosixDisk disk_;
  PackingOptions options_;
  std::vector<std::string> warnings_;
};

TEST_F(PackingTest, MakesAPackAndFindsItAgain) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(20000)));
  auto done = FindOrMakePack(job, options_);
  ASSERT_TRUE(done.ok()) << done.status();
  // 10 ids have 1000 or 2000 lookups, 5000 ids one, for which there is no room.
  EXPECT_EQ((*done)["threshold"], 2);
  EXPECT_EQ((*done)["hot_rows"], 10);
  EXPECT_EQ((*done)["samples"]["hot"], 15000);
  EXPECT_EQ((*done)["samples"]["cold"], 5000);
  EXPECT_EQ((*done)["batches"]["hot"], 1875);
  EXPECT_EQ((*done)["batches"]["cold"], 625);
  EXPECT_EQ((*done)["lookup_share"], 0.75);
  EXPECT_EQ((*done)["reused"], false);
  EXPECT_GT((*done)["pack_s"], 0);
  EXPECT_THAT(FilesThere(), ElementsAre(PackPath(job).substr(Packs().size() + 1)));
  auto pack = Pack::Open(job);
  ASSERT_TRUE(pack.ok()) << pack.status();
  EXPECT_EQ((*pack)->counts().rows[1], 15000);
  EXPECT_EQ((*pack)->hot_set().tables[0].size(), 10u);

  const std::string bytes = BytesOf(PackPath(job));
  Json again = *FindOrMakePack(job, options_);
  EXPECT_EQ(again["reused"], true);
  EXPECT_EQ(again["pack_s"], 0);
  EXPECT_EQ(again["hot_rows"], 10);
  EXPECT_EQ(BytesOf(PackPath(job)), bytes);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(PackingTest, ThreadsChangeNothing) {
  const Job job = MakeJob(
      folder_.Write("log.csv", SkewedLog(5000)),
      R"(fae { budget: "64KiB" schedule { fixed: true } } calibration { sample_share: 0.3 )");
  std::vector<std::vector<Key>> hot;
  std::vector<std::string> batches;
  for (int threads : {1, 2, 5}) {
    options_.threads = threads;
    ASSERT_TRUE(FindOrMakePack(job, options_).ok());
    const auto pack = PackFile::Open(&disk_, PackPath(job));
    ASSERT_TRUE(pack.ok());
    hot.push_back((*pack)->tail.hot_set.tables[0]);
    // The seconds in the report differ, so the file is compared without its tail.
    const uint64_t end = (*pack)->tail.chunks[0].back().offset;
    batches.push_back(BytesOf(PackPath(job)).substr(0, end));
    ASSERT_TRUE(disk_.Remove(PackPath(job)).ok());
  }
  EXPECT_EQ(hot[0], hot[1]);
  EXPECT_EQ(hot[0], hot[2]);
  EXPECT_TRUE(batches[0] == batches[1]);
  EXPECT_TRUE(batches[0] == batches[2]);
}

TEST_F(PackingTest, IsMadeAnewOfOtherData) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(20000)));
  ASSERT_TRUE(FindOrMakePack(job, options_).ok());
  folder_.Write("log.csv", SkewedLog(20008));
  const auto done = FindOrMakePack(job, options_);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ((*done)["reused"], false);
  EXPECT_EQ((*done)["samples"]["hot"], 15006);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("was made of other data"),
                                           HasSubstr("it is made anew"))));
  EXPECT_EQ(FilesThere().size(), 1u);
}

// The same size, beginning and end.
TEST_F(PackingTest, IsMadeAnewOfModifiedData) {
  const std::string data = folder_.Write("log.csv", SkewedLog(20000));
  const Job job = MakeJob(data);
  ASSERT_TRUE(FindOrMakePack(job, options_).ok());
  std::filesystem::last_write_time(
      data, std::filesystem::last_write_time(data) + std::chrono::seconds(5));
  const auto done = FindOrMakePack(job, options_);
  EXPECT_EQ((*done)["reused"], false);
  EXPECT_THAT(
      warnings_,
      ElementsAre(ContainsRegex("modified at 20[0-9-]+ [0-9:]+\\.[0-9]+ UTC, was modified at 20")));
}

TEST_F(PackingTest, IsMadeAnewWhereItIsDamaged) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(5000)));
  ASSERT_TRUE(FindOrMakePack(job, options_).ok());
  std::filesystem::resize_file(PackPath(job), std::filesystem::file_size(PackPath(job)) - 100);
  ASSERT_TRUE(FindOrMakePack(job, options_).ok());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("has no intact end")));
  EXPECT_TRUE(Pack::Open(job).ok());
}

TEST_F(PackingTest, RemovesWhatAKilledProgramLeft) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(5000)));
  std::filesystem::create_directories(Packs());
  std::ofstream(PackPath(job) + ".tmp") << "half";
  std::ofstream(Packs() + "/0123.pack.tmp") << "half of another";
  ASSERT_TRUE(FindOrMakePack(job, options_).ok());
  EXPECT_EQ(FilesThere().size(), 1u);
}

TEST_F(PackingTest, TheHotRowsAlone) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(20000)), R"(
      cache { budget: "64KiB" policy: STATIC } calibration { sample_share: 1 whole_table: "0" )");
  const auto done = FindOrMakePack(job, options_);
  ASSERT_TRUE(done.ok()) << done.status();
  const auto pack = Pack::Open(job);
  ASSERT_TRUE(pack.ok()) << pack.status();
  EXPECT_EQ((*pack)->hot_set().tables[0].size(), 10u);
  EXPECT_EQ((*pack)->counts().batches[0] + (*pack)->counts().batches[1], 0);
}

TEST_F(PackingTest, WithoutAFolderPacksAreBesideTheJobFile) {
  Job job;
  FillPackDirectory("/run/job.textproto", &job);
  EXPECT_FALSE(job.has_calibration()) << "it counts no hot rows";
  job.mutable_fae();
  FillPackDirectory("/run/job.textproto", &job);
  EXPECT_EQ(job.calibration().directory(), "/run/hot");
  FillPackDirectory("/copy/job.textproto", &job);
  EXPECT_EQ(job.calibration().directory(), "/run/hot") << "it is named";
  job.mutable_calibration()->clear_directory();
  FillPackDirectory("job.textproto", &job);
  EXPECT_EQ(job.calibration().directory(), "./hot");
}

// ---- errors

TEST_F(PackingTest, NoHotBatch) {
  const Job job = MakeJob(folder_.Write("log.csv", FlatLog(20000)));
  const auto done = FindOrMakePack(job, options_);
  EXPECT_EQ(done.status().code(), absl::StatusCode::kInvalidArgument);
  // Every row is looked up once: all 20000 are hot, or none is.
  EXPECT_THAT(done.status().message(),
              AllOf(HasSubstr("no hot batch: with fae.budget 65536 bytes, 0% of the samples have "
                              "only hot lookups (0 of 20000; a batch has 8)"),
                    HasSubstr("A budget of at least 640000 bytes would make one")));
  EXPECT_THAT(FilesThere(), IsEmpty());
  // Which is true.
  EXPECT_TRUE(FindOrMakePack(MakeJob(folder_.path() + "/log.csv", R"(
      fae { budget: "640000B" schedule { fixed: true } } calibration { sample_share: 1 )"),
                             options_)
                  .ok());
}

TEST_F(PackingTest, WholeTablesBeyondTheBudget) {
  const Job job = MakeJob(folder_.Write("log.csv", FlatLog(20000)), R"(
      fae { budget: "64KiB" schedule { fixed: true } } calibration { sample_share: 1 whole_table: "1MiB" )");
  const auto done = FindOrMakePack(job, options_);
  EXPECT_EQ(done.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(done.status().message(), HasSubstr("calibration.whole_table is 1048576 bytes"));
  EXPECT_THAT(FilesThere(), IsEmpty());
}

TEST_F(PackingTest, AFolderThatCannotBe) {
  const std::string data = folder_.Write("log.csv", SkewedLog(100));
  folder_.Write("run", "a file");
  const auto done = FindOrMakePack(MakeJob(data), options_);
  EXPECT_EQ(done.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(done.status().message(), HasSubstr(folder_.path() + "/run"));
}

TEST_F(PackingTest, NoData) {
  const auto done = FindOrMakePack(MakeJob(folder_.path() + "/absent.csv"), options_);
  EXPECT_EQ(done.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PackingTest, AMalformedRow) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(20000) + "7,1\n"));
  const auto done = FindOrMakePack(job, options_);
  EXPECT_EQ(done.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(done.status().message(), HasSubstr("log.csv:20002"));
  EXPECT_THAT(FilesThere(), IsEmpty());
  Job patient = job;
  patient.mutable_data()->set_max_bad_lines(1);
  for (const bool reused : {false, true}) {
    const auto found = FindOrMakePack(patient, options_);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ((*found)["reused"], reused);
    EXPECT_EQ((*found)["bad_lines"], 1);
    EXPECT_THAT((*found)["first_bad_line"].get<std::string>(), HasSubstr("log.csv:20002"));
  }
  EXPECT_EQ(Pack::Open(patient).value()->counts().rows[0], 5000);
  // Once, though all rows are read to count them, and to pack them.
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("1 row is malformed and left out; the first: ")));
}

TEST_F(PackingTest, AMalformedRowOfAStaticCacheIsWarnedOf) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(20000) + "7,1\n"), R"(
      cache { budget: "64KiB" policy: STATIC } calibration { sample_share: 1 whole_table: "0" )",
                          {"data.max_bad_lines=1"});
  const auto done = FindOrMakePack(job, options_);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("1 row is malformed")));
  EXPECT_FALSE(done->contains("bad_lines")) << "its workers read the rows themselves";
}

TEST_F(PackingTest, CountsPaddingIds) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20000; ++i) ids.push_back(i % 10);
  WriteNpy("train_sparse.npy", "<i4", ids);
  WriteNpy("train_labels.npy", "<f4", std::vector<float>(ids.size()));
  WriteNpy("train_dense.npy", "<f4", std::vector<float>(ids.size()));
  const auto job = ParseJob(absl::StrCat(R"(name: "packed"
            data { format: DLRM_NPY path: ")",
                                         folder_.path(), R"(" num_dense: 1 }
            default_table { dim: 4 optimizer { adagrad {} } }
            feature { name: "id" padding_id: 5 }
            dlrm { bottom: [8] top: [8] }
            train { batch_size: 8 learning_rate { base: 0.01 } }
            fae { budget: "64KiB" schedule { fixed: true } }
            calibration { sample_share: 0.5 directory: ")",
                                         Packs(), "\" }"),
                            "test", {});
  ASSERT_TRUE(job.ok()) << job.status();
  const auto done = FindOrMakePack(*job, options_);
  ASSERT_TRUE(done.ok()) << done.status();
  // The counts are those of all rows, not of the sample.
  EXPECT_EQ((*done)["padding_ids"], 2000);
  EXPECT_EQ((*done)["bad_lines"], 0);
}

TEST_F(PackingTest, TheDiskIsFull) {
  SimulatedDisk disk;
  options_.disk = &disk;
  Job job = MakeJob(folder_.Write("log.csv", SkewedLog(20000)));
  job.mutable_calibration()->set_directory("hot");
  disk.SetFreeBytes(100000);
  const auto done = FindOrMakePack(job, options_);
  EXPECT_EQ(done.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(*disk.List("hot"), IsEmpty());
}

// At any write or sync.
TEST_F(PackingTest, AFailureLeavesNoPackThatCanBeRead) {
  Job job = MakeJob(folder_.Write("log.csv", SkewedLog(600)));
  job.mutable_calibration()->set_directory("hot");
  for (int operation = 0;; ++operation) {
    SimulatedDisk disk;
    options_.disk = &disk;
    disk.FailAfter(operation);
    const auto done = FindOrMakePack(job, options_);
    if (done.ok()) {
      EXPECT_GT(operation, 20);
      break;
    }
    EXPECT_EQ(done.status().code(), absl::StatusCode::kUnavailable);
    const auto names = disk.List("hot");
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
      // The last sync is that of the folder, of a pack that is whole.
      EXPECT_FALSE(IsUnfinishedPack(name));
      EXPECT_TRUE(PackFile::Open(&disk, PackPath(job)).ok());
    }
  }
}

TEST_F(PackingTest, StoppedAmidTheRows) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(40000)));
  std::atomic<bool> cancelled{false}, has_file{false};
  options_.cancelled = &cancelled;
  options_.has_file = &has_file;
  bool had_file = false;
  options_.on_progress = [&](const PackingProgress& progress) {
    if (progress.activity != "packing" || progress.fraction < 0.5) return;
    had_file = has_file && FilesThere().size() == 1;
    cancelled = true;
  };
  const auto done = FindOrMakePack(job, options_);
  EXPECT_EQ(done.status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(had_file);
  EXPECT_FALSE(has_file);
  EXPECT_THAT(FilesThere(), IsEmpty());
}

// Progress is that of the reading under way, not of several.
TEST_F(PackingTest, ProgressIsInRows) {
  std::vector<std::string> activities;
  options_.on_progress = [&](const PackingProgress& progress) {
    if (activities.empty() || activities.back() != progress.activity) {
      activities.emplace_back(progress.activity);
      EXPECT_LE(progress.rows, 4096);
    }
    EXPECT_GT(progress.fraction, 0);
    EXPECT_LE(progress.fraction, 1);
    // The file is read in large pieces.
    if (progress.fraction < 0.5) return;
    EXPECT_NEAR(static_cast<double>(progress.rows) / progress.fraction, 400'000, 80'000)
        << progress.activity << " " << progress.rows;
  };
  ASSERT_TRUE(FindOrMakePack(MakeJob(folder_.Write("log.csv", FlatLog(400'000)), R"(
      fae { budget: "16MiB" schedule { fixed: true } } calibration { sample_share: 1 )"),
                             options_)
                  .ok());
  EXPECT_THAT(activities, ElementsAre("counting lookups", "packing"));
}

TEST_F(PackingTest, CalibrateOnlyMakesNoPack) {
  const Job job = MakeJob(folder_.Write("log.csv", SkewedLog(20000)));
  CalibrationGrid grid;
  grid.budget_bytes = {320, 65536, 1 << 20};
  grid.sample_shares = {0.1, 1};
  const auto found = CalibrateOnly(job, grid, options_);
  ASSERT_TRUE(found.ok()) << found.status();
  const Json& results = (*found)["calibrations"];
  ASSERT_EQ(results.size(), 6u);
  for (const Json& result : results) {
    if (result["sample_share"] != 1) {
      EXPECT_NEAR(result["sampled_rows"].get<double>(), 2000, 300);
      continue;
    }
    const bool all = result["budget_bytes"] == 1 << 20;
    EXPECT_EQ(result["hot_rows"], all ? 5010 : 10);
    EXPECT_EQ(result["hot_sample_share"], all ? 1 : 0.75);
    EXPECT_EQ(result["lookup_share"], result["sample_lookup_share"]);
  }
  EXPECT_FALSE(std::filesystem::exists(Packs()));
}

}  // namespace
}  // namespace thermocline
