// MANIFEST and JOB_STATE. The first byte says what the others are: a whole file, or a frame's
// payload, which reaches the code behind the checksum.
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "tests/fuzz/fuzz_target.h"

namespace thermocline {
namespace {

// A folder of checkpoints holds folders, and those hold files: a path leads to one of these.
void CheckStaysInside(const std::string& path) {
  const std::vector<std::string> names = absl::StrSplit(path, '/');
  CHECK_EQ(names.size(), 2u);
  for (const std::string& name : names) CHECK(!name.empty() && name != "." && name != "..");
}

void TryManifest(absl::string_view bytes) {
  const auto manifest = DecodeManifest(bytes, "fuzz");
  if (!manifest.ok()) return;
  CHECK(CheckManifest(*manifest).ok());
  CHECK_EQ(TablesOf(*manifest).size(), static_cast<size_t>(manifest->tables_size()));
  for (const CheckpointShard& shard : manifest->shards()) {
    for (const CheckpointFile& file : shard.files()) CheckStaysInside(file.path());
  }
  const auto again = DecodeManifest(EncodeManifest(*manifest), "fuzz");
  CHECK(again.ok());
  CHECK_EQ(again->SerializeAsString(), manifest->SerializeAsString());
  // An export reads it so.
  const auto job = ParseJob(JobToText(manifest->job()), "fuzz", {});
  if (job.ok()) ResolveTables(*job);
}

void TryJobState(absl::string_view bytes) {
  const auto state = DecodeJobState(bytes, "fuzz");
  if (!state.ok()) return;
  const auto again = DecodeJobState(EncodeJobState(*state), "fuzz");
  CHECK(again.ok());
  CHECK_EQ(again->SerializeAsString(), state->SerializeAsString());
}

}  // namespace
}  // namespace thermocline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thermocline;
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      TryManifest(bytes);
      break;
    case 1:
      TryManifest(EncodeFrame(kManifestFormat, bytes));
      break;
    case 2:
      TryJobState(bytes);
      break;
    case 3:
      TryJobState(EncodeFrame(kJobStateFormat, bytes));
      break;
  }
  return 0;
}
