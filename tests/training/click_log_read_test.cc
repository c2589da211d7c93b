// worker/data reads what deploy/clicklog writes: the same rows from every format.
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/job/job_source.h"
#include "deploy/clicklog/click_log.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "worker/data/dataset.h"

namespace thermocline {
namespace {

constexpr int kRows = 20000;
constexpr int kTestRows = 1000;

struct Rows {
  std::vector<float> labels;
  std::vector<float> dense;  // [rows, 13]
  std::vector<Key> keys;     // batch by batch, feature by feature

  friend bool operator==(const Rows& a, const Rows& b) {
    return a.labels == b.labels && a.dense == b.dense && a.keys == b.keys;
  }
};

Rows ReadAll(Dataset* dataset, Split split) {
  Rows rows;
  auto reader = dataset->OpenReader(split, WorkerRank(0), 1, Step(0));
  CHECK(reader.ok());
  for (;;) {
    auto batch = (*reader)->Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok() || *batch == nullptr) return rows;
    for (int i = 0; i < (*batch)->size; ++i) {
      rows.labels.push_back((*batch)->labels[i]);
      for (float value : (*batch)->dense_row(i)) rows.dense.push_back(value);
    }
    for (const FeatureLookups& feature : (*batch)->features) {
      rows.keys.insert(rows.keys.end(), feature.keys.begin(), feature.keys.end());
    }
    (*reader)->Recycle(*std::move(batch));
  }
}

// Generates a log in one format and opens it as a job would.
std::unique_ptr<Dataset> Generate(ClickLogFormat format, const std::string& folder) {
  ClickLogOptions options;
  options.folder = folder;
  options.format = format;
  options.rows = kRows;
  options.test_rows = kTestRows;
  auto summary = GenerateClickLog(options, nullptr);
  CHECK(summary.ok());

  Job job;
  Data& data = *job.mutable_data();
  if (format == ClickLogFormat::kNpy) {
    data.set_format(Data::DLRM_NPY);
    data.set_path(folder);
  } else {
    data.set_format(Data::CRITEO_TSV);
    data.set_path(summary->train.files[0]);
    data.set_test_path(summary->test.files[0]);
  }
  data.set_num_dense(13);
  data.set_read_ahead_batches(4);
  for (int i = 1; i <= 26; ++i) {
    Feature* const feature = job.add_feature();
    feature->set_name(absl::StrCat("C", i));
    feature->set_columns(1);
  }
  job.mutable_train()->set_batch_size(512);
  job.mutable_train()->set_eval_batch_size(512);
  job.mutable_train()->set_passes(1);
  ResolveJob(&job);
  auto dataset = Dataset::Open(job);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return dataset.ok() ? *std::move(dataset) : nullptr;
}

TEST(ClickLogRead, EveryFormatReadsAsTheSameRows) {
  std::string folder = testing::TempDir() + "/click_log_read_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto npy = Generate(ClickLogFormat::kNpy, folder + "/npy");
  const auto tsv = Generate(ClickLogFormat::kTsv, folder + "/tsv");
  const auto gzip = Generate(ClickLogFormat::kTsvGzip, folder + "/gzip");
  ASSERT_TRUE(npy != nullptr && tsv != nullptr && gzip != nullptr);
  for (Split split : {Split::kTrain, Split::kTest}) {
    const Rows rows = ReadAll(npy.get(), split);
    const size_t wanted = split == Split::kTrain ? kRows : kTestRows;
    EXPECT_EQ(rows.labels.size(), wanted);
    EXPECT_EQ(rows.keys.size(), 26 * wanted);
    EXPECT_TRUE(ReadAll(tsv.get(), split) == rows);
    EXPECT_TRUE(ReadAll(gzip.get(), split) == rows);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace thermocline
