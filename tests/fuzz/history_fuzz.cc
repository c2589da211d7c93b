// Records of HISTORY. The first byte says what the others are: the last record's file, the payload
// of its frame, which reaches the code behind the checksum, or a payload whose frame is then
// damaged.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/history.h"
#include "deploy/checkpoints/resume.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

constexpr char kDirectory[] = "checkpoints";

class Directory {
 public:
  Directory() : store_(&disk_, kDirectory, [this] { return ++nonces_; }) {
    CHECK(store_.Prepare().ok());
    CHECK(disk_.CreateDirectory(Folder()).ok());
  }

  void WriteRecord(absl::string_view bytes, absl::string_view name = "000000001") {
    CHECK(WriteWholeFile(&disk_, bytes, absl::StrCat(Folder(), "/", name)).ok());
  }
  absl::StatusOr<std::optional<HistoryRecord>> Last() const { return store_.LastRecord(); }

  // All readers agree whether the record is whole; if not, they refuse it.
  void Try() {
    const auto last = Last();
    const auto next = FindNextGeneration(store_, "fuzz", "");
    if (!last.ok()) {
      CHECK(absl::IsDataLoss(last.status()) || absl::IsFailedPrecondition(last.status()));
      CHECK_EQ(next.status().code(), last.status().code());
      CHECK(!store_.Open(State(1), 0).ok());
      return;
    }
    CHECK(last->has_value());
    CheckHolds(**last);
    if (next.ok()) CHECK_LT((*last)->state().generation(), next->start.generation);
    GoOn(**last);
  }

 private:
  static std::string Folder() { return absl::StrCat(kDirectory, "/", kHistoryName); }
  static JobState State(uint64_t generation) {
    JobState state;
    state.set_job_id("fuzz");
    state.set_generation(generation);
    return state;
  }
  // Later code relies on this.
  static void CheckHolds(const HistoryRecord& record) {
    CHECK_EQ(record.number(), 1u);
    CHECK_LT(0u, record.state().generation());
    const std::string& base = record.state().base_checkpoint();
    CHECK(base.empty() || ParseCheckpointName(base).has_value());
    for (const CheckpointRef& ref : record.committed()) {
      CHECK_LE(ref.generation(), record.state().generation());
      CHECK_LE(0, ref.step());
    }
    CHECK_EQ(record.has_outcome(), record.kind() == HistoryRecord::OUTCOME);
  }
  // Another controller reads it so.
  void GoOn(const HistoryRecord& record) {
    const uint64_t generation = record.state().generation() + 1;
    CHECK(store_.Open(State(generation), record.number()).ok());
    const auto opened = Last();
    CHECK(opened.ok() && opened->has_value());
    CHECK_EQ((*opened)->state().generation(), generation);
    CHECK_EQ((*opened)->committed_size(), record.committed_size());
    JobOutcome outcome;
    outcome.set_what(JobOutcome::STOPPED);
    CHECK(store_.End(outcome).ok());
    CHECK_EQ((**Last()).outcome().what(), JobOutcome::STOPPED);
  }

  SimulatedDisk disk_;
  uint64_t nonces_ = 0;
  CheckpointStore store_;
};

void TryRecord(absl::string_view bytes) {
  Directory directory;
  directory.WriteRecord(bytes);
  directory.Try();
}

// The first two bytes say where: one that is changed, or from which on all are missing.
void TryDamaged(absl::string_view bytes) {
  if (bytes.size() < 3) return;
  const std::string frame = EncodeFrame(kHistoryFormat, bytes.substr(3));
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const size_t where = (size_t{byte(0)} << 8 | byte(1)) % frame.size();
  std::string damaged = frame.substr(0, where);
  if (byte(2) != 0) {
    damaged = frame;
    damaged[where] = static_cast<char>(byte(where % 3 == 0 ? 2 : 1) ^ damaged[where]);
    if (damaged == frame) return;
  }
  Directory directory;
  directory.WriteRecord(damaged);
  CHECK(!directory.Last().ok());
  directory.Try();
}

}  // namespace
}  // namespace thermocline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thermocline;
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      TryRecord(bytes);
      break;
    case 1:
      TryRecord(EncodeFrame(kHistoryFormat, bytes));
      break;
    case 2:
      TryDamaged(bytes);
      break;
  }
  return 0;
}
