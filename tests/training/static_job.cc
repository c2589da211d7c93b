#include "tests/training/static_job.h"

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/disk/disk.h"
#include "common/job/model_memory.h"
#include "common/job/resolved_job.h"
#include "gtest/gtest.h"
#include "worker/data/dataset.h"
#include "worker/data/lookup_limit.h"
#include "worker/fae/pack.h"
#include "worker/fae/pack_identity.h"
#include "worker/fae/pack_writer.h"

namespace thermocline {
namespace {

HotSet FindHotKeys(Job job, int least_lookups) {
  job.mutable_train()->set_batch_size(1'000'000);
  auto reader = OpenReader(job, Split::kTrain, WorkerRank(0), 1);
  EXPECT_TRUE(reader.ok()) << reader.status();
  auto rows = (*reader)->Next();
  EXPECT_TRUE(rows.ok()) << rows.status();
  const JobTables tables = ResolveTables(job);
  std::vector<std::map<Key, int>> counts(tables.sparse.size());
  for (size_t f = 0; f < tables.features.size(); ++f) {
    for (const Key key : (*rows)->features[f].keys) ++counts[tables.features[f].table_index][key];
  }
  HotSet hot_set;
  for (size_t t = 0; t < counts.size(); ++t) {
    std::vector<Key>& hot = hot_set.tables.emplace_back();
    for (const auto& [key, count] : counts[t]) {
      if (count >= least_lookups && MayHold(tables.sparse[t])) hot.push_back(key);
    }
  }
  hot_set.digest = DigestOf(hot_set.tables);
  return hot_set;
}

}  // namespace

Job WithStaticCache(const Job& job, const std::string& budget, int window_steps, int prefetch_steps,
                    int least_lookups) {
  Job with_cache = WithCache(job, budget, window_steps, prefetch_steps);
  with_cache.mutable_cache()->set_policy(Cache::STATIC);
  with_cache.mutable_calibration()->set_sample_share(1);
  with_cache.mutable_calibration()->set_directory(
      absl::StrCat(testing::TempDir(), "/static_", least_lookups));
  PosixDisk disk;
  PackIdentity identity;
  identity.job = IdentifyJob(with_cache);
  EXPECT_TRUE(IdentifyData(with_cache, &identity).ok());
  EXPECT_TRUE(CreateDirectories(&disk, with_cache.calibration().directory()).ok());
  auto writer = PackWriter::Create(&disk, PackPath(with_cache), identity, /*batch_size=*/1,
                                   LookupLimitOf(with_cache));
  EXPECT_TRUE(writer.ok()) << writer.status();
  const absl::Status written = (*writer)->Finish(FindHotKeys(job, least_lookups), "{}");
  EXPECT_TRUE(written.ok()) << written;
  return with_cache;
}

}  // namespace thermocline
