// Rows files of both formats, damaged: the input is a list of changes to a good file. Reading must
// give an error or the rows that were written. Where the changed file gets the right checksums, it
// may also give other rows.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/checkpoint/rows_file.h"
#include "common/checkpoint/rows_format.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/sst_files.h"

namespace thermocline {
namespace {

constexpr char kFile[] = "step-000000001/generation-1-server-0.rows";
constexpr char kSstFile[] = "step-000000001/generation-1-server-0.sst";

struct GoodFiles {
  TestRows rows;
  CheckpointFile columns, sst;
  std::string column_bytes, sst_bytes;
};

// Several blocks of rows, some with candidates.
const GoodFiles& Good() {
  static GoodFiles* const good = [] {
    auto* made = new GoodFiles;
    SimulatedDisk disk;
    CHECK(disk.CreateDirectory("/d").ok());
    for (Key key = 0; key < 1500; ++key) {
      const auto table = static_cast<uint32_t>(key % 3);
      std::vector<float> row(16 * table, static_cast<float>(key));
      made->rows[RowKeyOf(TableId(table), key)] = {1, 1, row};
      if (table == 2 && key % 7 == 0) made->rows[RowKeyOf(TableId(1), key)] = {3, 2, {}};
    }
    made->columns = *WriteTestRows(&disk, "/d", kFile, made->rows);
    made->column_bytes = disk.Content(absl::StrCat("/d/", kFile));
    made->sst = WriteSstFile(&disk, "/d", kSstFile, made->rows);
    made->sst_bytes = disk.Content(absl::StrCat("/d/", kSstFile));
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

// Gives a changed column file, and its entry of the manifest, the checksums of its bytes: of
// blocks, index and footer, where these are at their places.
void Seal(std::string* bytes, CheckpointFile* listed) {
  const std::string& good = Good().column_bytes;
  if (bytes->size() != good.size()) return;
  const size_t footer_at = good.size() - kRowsFooterBytes;
  RowsFooter footer = *DecodeRowsFooter(good.substr(footer_at), good.size());
  const size_t index_at = footer_at - footer.blocks * kRowsBlockEntryBytes;
  char* const to = &(*bytes)[0];
  char* entry = to + index_at;
  const auto blocks =
      DecodeRowsIndex(good.substr(index_at, footer_at - index_at), footer, good.size());
  for (const PlacedRowsBlock& block : *blocks) {
    const uint32_t crc = Crc32c(to + block.offset, block.bytes());
    std::memcpy(entry + 24, &crc, sizeof(crc));
    entry += kRowsBlockEntryBytes;
  }
  std::memcpy(&footer.rows, to + footer_at, sizeof(footer.rows));
  std::memcpy(&footer.blocks, to + footer_at + 8, sizeof(footer.blocks));
  footer.index_crc32c = Crc32c(to + index_at, footer_at - index_at);
  footer.crc32c = Crc32c(to, footer_at);
  const auto sealed = EncodeRowsFooter(footer);
  std::memcpy(to + footer_at, sealed.data(), sealed.size());
  listed->set_crc32c(Crc32c(to, bytes->size()));
  listed->set_rows(footer.rows);
}

// Seeks single rows, of each table, and reads the values of those that are there.
void TrySingleRows(RowsFileReader* reader) {
  std::vector<float> copy;
  for (Key key = 0; key < 1500; key += 100) {
    reader->Seek(RowKeyOf(TableId(static_cast<uint32_t>(key % 3)), key));
    SavedRow row;
    const auto found = reader->Next(&row);
    CHECK(found.ok() || absl::IsDataLoss(found.status()));
    if (found.ok() && *found) copy.assign(row.values.begin(), row.values.end());
  }
}

// `is_written`: rows that are read must be those that were written.
void TryRead(const std::string& bytes, CheckpointFile file, bool is_written) {
  SimulatedDisk disk;
  CHECK(disk.CreateDirectory("/d").ok());
  CHECK(disk.CreateDirectory("/d/step-000000001").ok());
  CHECK((*disk.Create(absl::StrCat("/d/", file.path())))->Append({bytes}).ok());
  file.set_bytes(bytes.size());  // The manifest has the same wrong size.
  const auto reader = RowsFileReader::Open(&disk, "/d", file);
  if (!reader.ok()) {
    CHECK(absl::IsDataLoss(reader.status()));
    return;
  }
  // Nothing has been checked but the file's ends.
  TrySingleRows(RowsFileReader::Open(&disk, "/d", file, RowsFileUse::kSingleRows)->get());
  auto expected = Good().rows.begin();
  uint64_t rows = 0;
  std::vector<float> copy;
  for (SavedRow row;; ++rows) {
    const auto found = (*reader)->Next(&row);
    if (!found.ok()) {
      CHECK(absl::IsDataLoss(found.status()));
      return;
    }
    if (!*found) break;
    if (!is_written) {
      copy.assign(row.values.begin(), row.values.end());  // Touches every value.
      continue;
    }
    CHECK(expected != Good().rows.end());
    CHECK(row.key == expected->first);
    CHECK(row.values == absl::MakeConstSpan(expected->second.values));
    ++expected;
  }
  CHECK(rows == file.rows());
  TrySingleRows(reader->get());
}

void TryAll(const uint8_t* data, size_t size) {
  const GoodFiles& good = Good();
  TryRead(Damage(good.sst_bytes, data, size), good.sst, /*is_written=*/true);
  std::string bytes = Damage(good.column_bytes, data, size);
  CheckpointFile listed = good.columns;
  TryRead(bytes, listed, /*is_written=*/true);
  Seal(&bytes, &listed);
  TryRead(bytes, listed, /*is_written=*/false);
}

}  // namespace
}  // namespace thermocline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thermocline::TryAll(data, size);
  return 0;
}
