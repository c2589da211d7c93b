// Hot and cold batches that take turns: the model has the bits of a plain job over the same batches
// in the same order, whatever the number of servers, and across resumes in the midst of a stretch.
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/disk/disk.h"
#include "common/job/resolved_job.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "tests/training/small_job.h"
#include "worker/data/dataset.h"
#include "worker/data/lookup_limit.h"
#include "worker/fae/pack.h"
#include "worker/fae/pack_identity.h"
#include "worker/fae/pack_writer.h"
#include "worker/fae/schedule.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

constexpr int64_t kBatch = 50;

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string WriteLines(const std::string& name, const std::vector<std::string>& lines) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream file(path);
  for (const std::string& line : lines) file << line << '\n';
  return path;
}

std::unique_ptr<Batch> ReadTrainingRows(Job job) {
  job.mutable_train()->set_batch_size(1'000'000);
  auto reader = OpenReader(job, Split::kTrain, WorkerRank(0), 1);
  EXPECT_TRUE(reader.ok()) << reader.status();
  auto batch = (*reader)->Next();
  EXPECT_TRUE(batch.ok()) << batch.status();
  return *std::move(batch);
}

void SetPath(const std::string& path, Job* job) {
  if (job->data().has_train()) {
    job->mutable_data()->mutable_train()->set_path(0, path);
  } else {
    job->mutable_data()->set_path(path);
  }
}

// A log of whole batches of each kind, a job over it with hot and cold batches, and its pack.
class FaeTest : public testing::TestWithParam<const char*> {
 protected:
  FaeTest() { MakePack(); }

  // The parameter is an optimizer or a model with sequences.
  Job Make(std::vector<std::string> overrides) {
    overrides.push_back(absl::StrCat("train.batch_size=", kBatch));
    for (const SequenceModel& model : kSequenceModels) {
      if (model.name == absl::string_view(GetParam())) {
        return MakeSequenceJob(model.fields, overrides);
      }
    }
    return MakeSmallJob(GetParam(), overrides);
  }
  Job MakeFae(std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(),
                     {"fae={budget: '64KiB'}", "calibration.sample_share=1",
                      absl::StrCat("calibration.directory=", testing::TempDir(), "/hot")});
    Job job = Make(overrides);
    SetPath(log_, &job);
    return job;
  }

  void MakePack() {
    const Job job = Make({});
    const std::unique_ptr<Batch> rows = ReadTrainingRows(job);
    FindHotKeys(job, *rows);
    const bool has_header = job.data().has_train();
    std::vector<std::string> log;
    std::vector<std::string> lines =
        ReadLines(has_header ? job.data().train().path(0) : job.data().path());
    if (has_header) {
      header_ = {lines[0]};
      lines.erase(lines.begin());
    }
    std::vector<bool> is_hot;
    for (int i = 0; i < rows->size; ++i) is_hot.push_back(IsHot(*rows, i));
    // Each kind has so many rows that all its batches are full.
    std::map<bool, int64_t> left;
    for (const bool hot : is_hot) ++left[hot];
    for (auto& [hot, count] : left) count = count / kBatch * kBatch;
    std::map<bool, std::vector<std::string>> of_kind;
    for (int i = 0; i < rows->size; ++i) {
      if (left[is_hot[i]]-- <= 0) continue;
      log.push_back(lines[i]);
      of_kind[is_hot[i]].push_back(lines[i]);
    }
    ASSERT_GE(of_kind[true].size(), 3u * kBatch);
    ASSERT_GE(of_kind[false].size(), 3u * kBatch);
    // A fifth is held out.
    for (size_t i = 0; i < log.size() / 4; ++i) held_out_.push_back(lines[rows->size + i]);
    training_rows_ = log.size();
    of_kind_ = of_kind;
    log.insert(log.end(), held_out_.begin(), held_out_.end());
    log.insert(log.begin(), header_.begin(), header_.end());
    log_ = WriteLines("fae.tsv", log);
    WritePack();
  }

  // The keys that are looked up most are hot, so that about half of the rows have hot lookups only.
  // (Histories have fewer keys, and more lookups.)
  void FindHotKeys(const Job& job, const Batch& rows) {
    const JobTables tables = ResolveTables(job);
    std::vector<std::map<Key, int>> counts(tables.sparse.size());
    for (size_t f = 0; f < tables.features.size(); ++f) {
      table_of_.push_back(tables.features[f].table_index);
      for (const Key key : rows.features[f].keys) ++counts[table_of_[f]][key];
    }
    hot_.resize(counts.size());
    for (size_t t = 0; t < counts.size(); ++t) {
      for (const auto& [key, count] : counts[t]) {
        if (count >= (job.data().has_train() ? 24 : 6)) hot_[t].insert(key);
      }
    }
  }
  bool IsHot(const Batch& rows, int row) const {
    for (size_t f = 0; f < rows.features.size(); ++f) {
      const FeatureLookups& lookups = rows.features[f];
      for (int i = lookups.offsets[row]; i < lookups.offsets[row + 1]; ++i) {
        if (hot_[table_of_[f]].count(lookups.keys[i]) == 0) return false;
      }
    }
    return true;
  }

  void WritePack() {
    const Job job = MakeFae({});
    PosixDisk disk;
    PackIdentity identity;
    identity.job = IdentifyJob(job);
    ASSERT_TRUE(IdentifyData(job, &identity).ok());
    ASSERT_TRUE(CreateDirectories(&disk, job.calibration().directory()).ok());
    auto writer = PackWriter::Create(&disk, PackPath(job), identity, kBatch, LookupLimitOf(job));
    ASSERT_TRUE(writer.ok()) << writer.status();
    const std::unique_ptr<Batch> rows = ReadTrainingRows(job);
    for (int i = 0; i < rows->size; ++i) {
      ASSERT_TRUE((*writer)->Add(*rows, i, IsHot(*rows, i)).ok());
    }
    HotSet hot_set;
    for (const std::set<Key>& keys : hot_) hot_set.tables.emplace_back(keys.begin(), keys.end());
    hot_set.digest = DigestOf(hot_set.tables);
    ASSERT_TRUE((*writer)->Finish(std::move(hot_set), "{}").ok());
  }

  // A plain job over the same rows, in the order in which `fae`, whose schedule is fixed, trains
  // them.
  Job MakePlain(const Job& fae, const std::vector<std::string>& overrides) {
    const auto pack = Pack::Open(fae);
    EXPECT_TRUE(pack.ok()) << pack.status();
    const PackCounts& counts = (*pack)->counts();
    std::vector<std::string> lines;
    for (ScheduleState state = FirstSchedule(fae, counts);
         state.pass() == 0 && StretchOf(fae, counts, state).num_batches > 0;
         state = NextSchedule(fae, counts, state, std::nullopt)) {
      const PackStretch stretch = StretchOf(fae, counts, state);
      const auto begin = of_kind_[stretch.is_hot].begin() + stretch.first_batch * kBatch;
      lines.insert(lines.end(), begin, begin + stretch.num_batches * kBatch);
    }
    EXPECT_EQ(lines.size(), training_rows_);
    lines.insert(lines.end(), held_out_.begin(), held_out_.end());
    lines.insert(lines.begin(), header_.begin(), header_.end());
    Job job = Make(overrides);
    SetPath(WriteLines("plain.tsv", lines), &job);
    return job;
  }

  static Outcome Train(const Job& job, WorkerOptions options = {}) {
    JobServers servers(job);
    return RunWorkers(job, &servers, options);
  }

  void ExpectTheBitsOfAPlainJob(int num_servers, int workers) {
    SCOPED_TRACE(absl::StrCat(num_servers, " servers, ", workers, " workers"));
    const std::vector<std::string> overrides = {absl::StrCat("cluster.servers=", num_servers),
                                                absl::StrCat("cluster.workers=", workers),
                                                "train.passes=2"};
    std::vector<std::string> of_fae = overrides;
    of_fae.insert(of_fae.end(), {"fae.schedule.fixed=true", "fae.schedule.rate=40"});
    const Job fae = MakeFae(of_fae);
    const Outcome trained = Train(fae);
    const Outcome plain = Train(MakePlain(fae, overrides));
    EXPECT_EQ(Hex(trained.digest), Hex(plain.digest));
    EXPECT_EQ(trained.rows, plain.rows);
    EXPECT_EQ(trained.workers[0]->steps, plain.workers[0]->steps);
    EXPECT_EQ(trained.workers[0]->samples, plain.workers[0]->samples);
    EXPECT_EQ(trained.workers[0]->evaluation.logloss, plain.workers[0]->evaluation.logloss);
  }

  std::vector<std::string> header_;  // The log's first line, where it has a header.
  std::vector<size_t> table_of_;     // [features]
  std::vector<std::set<Key>> hot_;
  std::string log_;
  std::vector<std::string> held_out_;
  size_t training_rows_ = 0;
  std::map<bool, std::vector<std::string>> of_kind_;  // Training rows, by whether they are hot.
};

TEST_P(FaeTest, HasTheBitsOfAPlainJobOverTheSameBatches) {
  std::vector<std::pair<int, int>> shapes = {{1, 1}, {3, 1}, {2, 2}, {1, 3}, {2, 5}};
  if (kIsSanitized) shapes = {{3, 1}, {2, 5}};
  for (const auto& [num_servers, workers] : shapes) ExpectTheBitsOfAPlainJob(num_servers, workers);
}

TEST_P(FaeTest, GoesOnInTheMidstOfAStretch) {
  const std::vector<std::string> overrides = {"fae.schedule.fixed=true", "fae.schedule.rate=60",
                                              "cluster.workers=2"};
  const Outcome whole = Train(MakeFae(overrides));
  const int64_t steps = whole.workers[0]->steps;
  for (int64_t step = 1; step < steps; step += kIsSanitized ? 6 : 2) {
    SCOPED_TRACE(step);
    std::vector<std::string> of_first = overrides;
    of_first.push_back(absl::StrCat("train.max_steps=", step));
    JobServers servers(MakeFae(overrides));
    RunWorkers(MakeFae(of_first), &servers);
    WorkerOptions options;
    options.start_step = Step(step);
    const Outcome resumed = RunWorkers(MakeFae(overrides), &servers, options);
    EXPECT_EQ(Hex(resumed.digest), Hex(whole.digest));
    EXPECT_EQ(resumed.workers[1]->samples, whole.workers[1]->samples);
  }
}

TEST_P(FaeTest, TheRateFollowsTheLoss) {
  const std::vector<std::string> overrides = {"fae.schedule.rate=30", "fae.schedule.scored_rows=80",
                                              "fae.schedule.falls_to_double=1"};
  const Job job = MakeFae(overrides);
  const Outcome one = Train(job);
  std::vector<std::string> of_more = overrides;
  of_more.push_back("cluster.servers=3");
  EXPECT_EQ(Hex(Train(MakeFae(of_more)).digest), Hex(one.digest));
  std::vector<std::string> fixed = overrides;
  fixed.push_back("fae.schedule.fixed=true");
  // A loss that rises changes the rate, and here one that falls as well.
  EXPECT_NE(Hex(Train(MakeFae(fixed)).digest), Hex(one.digest));
}

TEST_P(FaeTest, AScheduleThatFollowsTheLossWantsHeldOutRows) {
  Job job = MakeFae({});
  job.mutable_data()->set_test_share(0);
  EXPECT_EQ(StatusOfRun(job).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(FaeTest, ThePackOfAnotherJobIsRefused) {
  const absl::Status status = StatusOfRun(MakeFae({"fae.budget=128KiB"}));
  EXPECT_TRUE(absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) << status;
}

class FaeOfSequencesTest : public FaeTest {};

TEST_P(FaeOfSequencesTest, HasTheBitsOfAPlainJobOverTheSameBatches) {
  ExpectTheBitsOfAPlainJob(2, 2);
}

INSTANTIATE_TEST_SUITE_P(Models, FaeOfSequencesTest, testing::Values("bst", "tbsm"));
INSTANTIATE_TEST_SUITE_P(Optimizers, FaeTest, testing::ValuesIn(kOptimizers), NameOfOptimizer);

}  // namespace
}  // namespace thermocline
