// A rows file, damaged: the input is a list of changes to a good file. Reading must give an error
// or the rows that were written.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/checkpoint/rows_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

constexpr char kFile[] = "step-000000001/generation-1-server-0.sst";

using Rows = std::map<RowKey, std::vector<float>>;

struct GoodFile {
  SimulatedDisk disk;
  Rows rows;
  CheckpointFile file;
  std::string bytes;
};

// Several blocks of rows.
const GoodFile& Good() {
  static GoodFile* const good = [] {
    auto* made = new GoodFile;
    CHECK(made->disk.CreateDirectory("/d").ok());
    for (Key key = 0; key < 1500; ++key) {
      std::vector<float> row(1 + key % 16, static_cast<float>(key));
      made->rows[RowKeyOf(TableId(static_cast<uint32_t>(key % 2)), key)] = row;
    }
    const auto writer = RowsFileWriter::Create(&made->disk, "/d", kFile);
    CHECK(writer.ok());
    for (const auto& [key, row] : made->rows) CHECK((*writer)->Add(key, 1, 1, row).ok());
    made->file = **(*writer)->Finish();
    made->bytes = made->disk.Content(absl::StrCat("/d/", kFile));
    return made;
  }();
  return *good;
}

// Five bytes a change: a place (4), and the byte to XOR there; 0 cuts the file off at the place.
std::string Damage(std::string bytes, const uint8_t* data, size_t size) {
  constexpr size_t kChange = 5;
  for (; size >= kChange && !bytes.empty(); data += kChange, size -= kChange) {
    uint32_t place;
    std::memcpy(&place, data, sizeof(place));
    const size_t at = place % bytes.size();
    if (data[4] == 0) {
      bytes.resize(at);
    } else {
      bytes[at] = static_cast<char>(bytes[at] ^ data[4]);
    }
  }
  return bytes;
}

void TryRead(const std::string& bytes) {
  SimulatedDisk disk;
  CHECK(disk.CreateDirectory("/d").ok());
  CHECK(disk.CreateDirectory("/d/step-000000001").ok());
  CHECK((*disk.Create(absl::StrCat("/d/", kFile)))->Append({bytes}).ok());
  // The manifest has the same wrong size.
  CheckpointFile file = Good().file;
  file.set_bytes(bytes.size());
  const auto reader = RowsFileReader::Open(&disk, "/d", file);
  if (!reader.ok()) {
    CHECK(absl::IsDataLoss(reader.status()));
    return;
  }
  auto expected = Good().rows.begin();
  for (SavedRow row;; ++expected) {
    const auto found = (*reader)->Next(&row);
    if (!found.ok()) {
      CHECK(absl::IsDataLoss(found.status()));
      return;
    }
    if (!*found) break;
    CHECK(expected != Good().rows.end());
    CHECK(row.key == expected->first);
    CHECK(row.values == absl::MakeConstSpan(expected->second));
  }
  CHECK(expected == Good().rows.end());
}

}  // namespace
}  // namespace thermocline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thermocline::TryRead(thermocline::Damage(thermocline::Good().bytes, data, size));
  return 0;
}
