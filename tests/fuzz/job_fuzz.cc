// Job files: every job that is accepted can be resolved, and its text gives the same job.
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/job/job_data.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thermocline;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto job = ParseJob(text, "fuzz", {});
  if (!job.ok()) return 0;
  const auto again = ParseJob(JobToText(*job), "fuzz", {});
  CHECK(again.ok());
  CHECK_EQ(again->SerializeAsString(), job->SerializeAsString());
  const JobTables tables = ResolveTables(*job);
  if (job->sequence().empty()) {
    CHECK_EQ(tables.features.size(), EmbeddedFeatures(*job).size());
  }
  for (const FeatureSpec& feature : tables.features) {
    CHECK_LT(static_cast<size_t>(feature.table_index), tables.sparse.size());
  }
  return 0;
}
