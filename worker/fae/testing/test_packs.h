// Jobs, data and packs of the tests of this folder.
#ifndef THERMOCLINE_WORKER_FAE_TESTING_TEST_PACKS_H_
#define THERMOCLINE_WORKER_FAE_TESTING_TEST_PACKS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/job/job_loader.h"
#include "proto/job.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/testing/test_files.h"
#include "worker/fae/pack_identity.h"
#include "worker/fae/pack_writer.h"

namespace thermocline {

// Rows of a label, a weight, a group, a number, an id, and a list with weights. Row i has the id
// i % 3 and i % 4 values in its list.
inline std::string TestLog(int rows) {
  std::string text = "label,weight,user,x,id,list,w\n";
  for (int i = 0; i < rows; ++i) {
    absl::StrAppend(&text, i % 2, ",", 1 + i % 5, ",u", i % 7, ",", i, ".5,", i % 3, ",");
    std::string list, weights;
    for (int j = 0; j < i % 4; ++j) {
      absl::StrAppend(&list, j == 0 ? "" : "|", 100 + i * 10 + j);
      absl::StrAppend(&weights, j == 0 ? "" : "|", j + 1);
    }
    absl::StrAppend(&text, list, ",", weights, "\n");
  }
  return text;
}

// A resolved job over a TestLog at `data`, with its packs in `directory`.
inline Job TestJob(const std::string& data, const std::string& directory,
                   const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJob(absl::StrCat(R"(
      name: "packed"
      data {
        train { path: ")",
                                         data, R"(" csv { header: true } }
        split { last_share: 0 }
        label { column: "label" }
        weight: "weight"
        group: "user"
      }
      default_table { dim: 4 optimizer { adagrad {} } }
      feature { name: "x" numeric {} }
      feature { name: "id" categorical { id: INTEGER } }
      feature { name: "list" categorical { id: INTEGER separator: "|" weights: "w" missing: NO_KEY } }
      dlrm { bottom: [8] top: [8] }
      train { batch_size: 4 learning_rate { base: 0.01 } }
      fae { budget: "64KiB" schedule { fixed: true } }
      calibration { directory: ")",
                                         directory, R"(" sample_share: 1 }
  )"),
                            "test", overrides);
  CHECK(job.ok() || (std::cerr << job.status() << std::endl, false));
  return *job;
}

// All training rows, in one batch.
inline std::unique_ptr<Batch> ReadRows(const Job& job) {
  Job whole = job;
  whole.mutable_train()->set_batch_size(1000000);
  auto reader = OpenReader(whole, Split::kTrain, WorkerRank(0), 1);
  CHECK(reader.ok());
  auto batch = (*reader)->Next();
  CHECK(batch.ok());
  return *std::move(batch);
}

// The pack of `job` with every row hot where `is_hot(row)`.
template <typename IsHot>
void WritePack(const Job& job, const IsHot& is_hot) {
  PosixDisk disk;
  PackIdentity identity;
  identity.job = IdentifyJob(job);
  CHECK(IdentifyData(job, &identity).ok());
  CHECK(CreateDirectories(&disk, job.calibration().directory()).ok());
  auto writer = PackWriter::Create(&disk, PackPath(job), identity, job.train().batch_size(),
                                   LookupLimitOf(job));
  CHECK(writer.ok());
  const std::unique_ptr<Batch> rows = ReadRows(job);
  for (int i = 0; i < rows->size; ++i) CHECK((*writer)->Add(*rows, i, is_hot(i)).ok());
  HotSet hot;
  hot.tables = {{0, 1, 2}, {110, 120}};
  hot.digest = DigestOf(hot.tables);
  CHECK((*writer)->Finish(std::move(hot), R"({"threshold":7})").ok());
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_TESTING_TEST_PACKS_H_
