// Push logs: one or two segments, replayed. The first byte says whether checksums are repaired
// first, which reaches the code behind them; the next two where the second segment begins, the
// fourth its first record.
//
// A repaired segment has the present version of the format and no damaged record. So the corpus has
// damage_before_a_begun_segment, which is not repaired: EncodeSegmentHeader, two records of
// EncodeRecordHeader with the payload of `one`, the last of them with a bit changed 8 bytes before
// its end; then 11 bytes of the header of a segment that begins with record 3. A new
// kLogFormatVersion needs a new one.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "server/storage/journal_opener.h"
#include "server/storage/log_format.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

constexpr char kDirectory[] = "/log";
constexpr LogIdentity kIdentity = {1, 1, 0};

// The same bytes with every checksum right, as far as lengths can be followed; `first_lsn` in the
// segment's header, and its records numbered from there.
std::string Repair(absl::string_view bytes, Lsn first_lsn) {
  std::string repaired;
  if (bytes.size() < kSegmentHeaderBytes) return std::string(bytes);
  SegmentHeader segment;
  segment.identity = kIdentity;
  segment.first_lsn = first_lsn;
  const auto header = EncodeSegmentHeader(segment);
  repaired.assign(header.begin(), header.end());
  size_t at = kSegmentHeaderBytes;
  for (Lsn lsn = first_lsn; bytes.size() - at >= kRecordHeaderBytes; lsn = lsn + 1) {
    RecordHeader record = PeekRecordHeader(bytes.substr(at));
    const uint64_t left = bytes.size() - at - kRecordHeaderBytes;
    const auto payload =
        bytes.substr(at + kRecordHeaderBytes, std::min<uint64_t>(record.payload_bytes, left));
    record.lsn = lsn;
    record.generation = kIdentity.generation;
    const auto record_header = EncodeRecordHeader(record, {payload});
    repaired.append(record_header.begin(), record_header.end());
    absl::StrAppend(&repaired, payload);
    repaired.append(PaddedPayloadBytes(payload.size()) - payload.size(), '\0');
    at += kRecordHeaderBytes + payload.size();
    at += std::min<size_t>(PaddedPayloadBytes(payload.size()) - payload.size(), bytes.size() - at);
  }
  return repaired + std::string(bytes.substr(at));
}

void AddSegment(SimulatedDisk* disk, Lsn first_lsn, const std::string& bytes) {
  auto file =
      disk->Create(absl::StrCat(kDirectory, "/", SegmentName({kIdentity.generation, first_lsn})));
  if (file.ok()) CHECK((*file)->Append({bytes}).ok());
}

// Every visited payload, or the error.
absl::StatusOr<std::vector<std::string>> Replay(SimulatedDisk* disk, uint64_t* torn_bytes) {
  std::vector<std::string> payloads;
  const auto result = ReplayPushLog(disk, kDirectory, kIdentity, kNoStep,
                                    [&](const LogRecord& record) -> absl::StatusOr<Step> {
                                      payloads.emplace_back(record.payload);
                                      const auto chunk = DecodePushRecord(record.payload);
                                      if (!chunk.ok()) return Step(0);
                                      return chunk->step;
                                    });
  if (!result.ok()) return result.status();
  CHECK_EQ(result->records, payloads.size());
  *torn_bytes = result->torn_bytes;
  return payloads;
}

std::map<std::string, std::string> Contents(const SimulatedDisk& disk,
                                            const std::vector<std::string>& names) {
  std::map<std::string, std::string> contents;
  for (const std::string& name : names) {
    contents[name] = disk.Content(absl::StrCat(kDirectory, "/", name));
  }
  return contents;
}

void TryPushLog(absl::string_view first, absl::string_view second, Lsn second_lsn, bool repair) {
  SimulatedDisk disk;
  CHECK(disk.CreateDirectory(kDirectory).ok());
  const Lsn first_lsn(1);
  AddSegment(&disk, first_lsn, repair ? Repair(first, first_lsn) : std::string(first));
  if (!second.empty()) {
    AddSegment(&disk, second_lsn, repair ? Repair(second, second_lsn) : std::string(second));
  }
  const std::vector<std::string> names = *disk.List(kDirectory);
  const auto before = Contents(disk, names);
  uint64_t torn_bytes = 0;
  const auto payloads = Replay(&disk, &torn_bytes);
  if (!payloads.ok()) {
    CHECK(Contents(disk, *disk.List(kDirectory)) == before);  // Damage is never "repaired".
    return;
  }
  // The torn end was cut off: a second replay gives the same records, and nothing torn.
  const auto again = Replay(&disk, &torn_bytes);
  CHECK(again.ok());
  CHECK(*again == *payloads);
  CHECK_EQ(torn_bytes, 0u);
}

}  // namespace
}  // namespace thermocline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thermocline;
  constexpr size_t kPrefix = 4;
  if (size < kPrefix) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + kPrefix, size - kPrefix);
  uint16_t cut;
  std::memcpy(&cut, data + 1, sizeof(cut));
  const size_t first_bytes = std::min<size_t>(cut, bytes.size());
  TryPushLog(bytes.substr(0, first_bytes), bytes.substr(first_bytes), Lsn(data[3]),
             data[0] % 2 != 0);
  return 0;
}
