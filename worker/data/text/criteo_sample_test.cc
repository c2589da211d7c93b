// A real sample of Criteo's Kaggle log, where there is one:
// $THERMOCLINE_DATA/criteo_kaggle_137k.tsv.gz, or the same name in shared/data beside the source
// tree. Skipped where there is none.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_source.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "worker/data/dataset.h"

namespace thermocline {
namespace {

// "" where the sample is not on this machine.
std::string FindSample() {
  constexpr char kName[] = "criteo_kaggle_137k.tsv.gz";
  std::vector<std::filesystem::path> folders;
  if (const char* const data = std::getenv("THERMOCLINE_DATA")) folders.push_back(data);
  // Bazel links this file's folder in its sandbox back to the source tree.
  std::error_code error;
  const std::filesystem::path here =
      std::filesystem::canonical("worker/data/text/criteo_sample_test.cc", error);
  if (!error) {
    const std::filesystem::path root = here.parent_path().parent_path().parent_path();
    folders.push_back(root / "../shared/data");
  }
  for (const std::filesystem::path& folder : folders) {
    if (std::filesystem::exists(folder / kName)) return (folder / kName).string();
  }
  return "";
}

TEST(CriteoSample, HasTheFiguresThatAreKnownOfIt) {
  const std::string path = FindSample();
  if (path.empty())
    GTEST_SKIP() << "no criteo_kaggle_137k.tsv.gz; set THERMOCLINE_DATA to its folder";
  Job job;
  job.mutable_data()->set_format(Data::CRITEO_TSV);
  job.mutable_data()->set_path(path);
  job.mutable_data()->set_num_dense(13);
  job.mutable_data()->set_test_share(0.1);
  for (int i = 1; i <= 26; ++i) job.add_feature()->set_name(absl::StrCat("C", i));
  job.mutable_train()->set_batch_size(1000);
  job.mutable_train()->set_eval_batch_size(4096);
  job.mutable_train()->set_passes(1);

  ResolveJob(&job);
  auto dataset = Dataset::Open(job);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->rows(Split::kTrain), 123425);
  EXPECT_EQ((*dataset)->rows(Split::kTest), 13714);
  double clicks = 0;
  int64_t rows = 0;
  std::vector<absl::flat_hash_set<Key>> keys(26);
  for (Split split : {Split::kTrain, Split::kTest}) {
    auto reader = (*dataset)->OpenReader(split, WorkerRank(0), 1, Step(0));
    ASSERT_TRUE(reader.ok());
    for (;;) {
      auto batch = (*reader)->Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      if (*batch == nullptr) break;
      if (rows == 0) {
        // 0 "" 1 1 "" "" 23255 ... 7e5c2ff4 d833535f
        EXPECT_EQ((*batch)->labels[0], 0);
        EXPECT_EQ((*batch)->dense_row(0)[0], 0);
        EXPECT_EQ((*batch)->dense_row(0)[1], static_cast<float>(std::log1p(1.0)));
        EXPECT_EQ((*batch)->features[1].keys[0], 0xd833535fu);
      }
      rows += (*batch)->size;
      for (float label : (*batch)->labels) clicks += label;
      for (int f = 0; f < 26; ++f) {
        ASSERT_EQ((*batch)->features[f].keys.size(), static_cast<size_t>((*batch)->size));
        keys[f].insert((*batch)->features[f].keys.begin(), (*batch)->features[f].keys.end());
      }
      (*reader)->Recycle(*std::move(batch));
    }
  }
  EXPECT_EQ(rows, 137139);
  EXPECT_NEAR(clicks / rows, 0.2568, 0.00005);
  size_t distinct = 0;
  for (const absl::flat_hash_set<Key>& of_feature : keys) distinct += of_feature.size();
  EXPECT_EQ(distinct, 316191u);
}

}  // namespace
}  // namespace thermocline
