#include "common/checkpoint/rows_format.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

constexpr char kRowsMagic[] = "TclnRows";
constexpr uint32_t kRowsVersion = 1;
constexpr size_t kRowsVersionAt = 8, kRowsHeaderCrcAt = 12, kRowsFooterCrcAt = 28;

// A row has at least a key, its lookups and the step of its last change.
constexpr uint64_t kMaxRowsOfBlock = kMaxRowsBlockBytes / 16;

absl::Status DamagedEntry(size_t block, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("entry ", block, " of its index ", what));
}

// Whether a writer can have made this entry.
bool IsPossible(const RowsBlock& block) {
  return block.rows >= 1 && block.rows <= kMaxRowsOfBlock && block.candidates <= block.rows &&
         (block.floats == 0) == (block.candidates == block.rows) &&
         (block.rows == 1 || block.bytes() <= kMaxRowsBlockBytes);
}

}  // namespace

std::array<char, kRowsHeaderBytes> EncodeRowsHeader() {
  std::array<char, kRowsHeaderBytes> bytes;
  std::memcpy(bytes.data(), kRowsMagic, kRowsVersionAt);
  StoreAt(kRowsVersion, kRowsVersionAt, bytes.data());
  StoreAt(Crc32c(bytes.data(), kRowsHeaderCrcAt), kRowsHeaderCrcAt, bytes.data());
  return bytes;
}

absl::Status CheckRowsHeader(absl::string_view bytes) {
  CHECK_EQ(bytes.size(), kRowsHeaderBytes);
  if (bytes.substr(0, kRowsVersionAt) != kRowsMagic ||
      LoadAt<uint32_t>(bytes, kRowsHeaderCrcAt) != Crc32c(bytes.data(), kRowsHeaderCrcAt)) {
    return absl::DataLossError("it does not begin as a rows file");
  }
  const auto version = LoadAt<uint32_t>(bytes, kRowsVersionAt);
  if (version == kRowsVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("format version ", version, "; this program knows version ", kRowsVersion));
}

void AppendRowsBlockEntry(const RowsBlock& block, std::string* index) {
  CHECK(IsPossible(block));
  char bytes[kRowsBlockEntryBytes] = {};
  StoreAt(block.first_key, 0, bytes);
  StoreAt(block.table.value(), 8, bytes);
  StoreAt(block.rows, 12, bytes);
  StoreAt(block.candidates, 16, bytes);
  StoreAt(block.floats, 20, bytes);
  StoreAt(block.crc32c, 24, bytes);
  index->append(bytes, sizeof(bytes));
}

std::array<char, kRowsFooterBytes> EncodeRowsFooter(const RowsFooter& footer) {
  std::array<char, kRowsFooterBytes> bytes = {};
  StoreAt(footer.rows, 0, bytes.data());
  StoreAt(footer.blocks, 8, bytes.data());
  StoreAt(footer.crc32c, 16, bytes.data());
  StoreAt(footer.index_crc32c, 20, bytes.data());
  StoreAt(Crc32c(bytes.data(), kRowsFooterCrcAt), kRowsFooterCrcAt, bytes.data());
  return bytes;
}

absl::StatusOr<RowsFooter> DecodeRowsFooter(absl::string_view bytes, uint64_t file_bytes) {
  CHECK_EQ(bytes.size(), kRowsFooterBytes);
  if (LoadAt<uint32_t>(bytes, kRowsFooterCrcAt) != Crc32c(bytes.data(), kRowsFooterCrcAt)) {
    return absl::DataLossError("the checksum of its last 32 bytes is wrong");
  }
  RowsFooter footer;
  footer.rows = LoadAt<uint64_t>(bytes, 0);
  footer.blocks = LoadAt<uint64_t>(bytes, 8);
  footer.crc32c = LoadAt<uint32_t>(bytes, 16);
  footer.index_crc32c = LoadAt<uint32_t>(bytes, 20);
  const uint64_t room = file_bytes - kRowsHeaderBytes - kRowsFooterBytes;
  if (file_bytes < kRowsHeaderBytes + kRowsFooterBytes ||
      footer.blocks > room / kRowsBlockEntryBytes) {
    return absl::DataLossError(absl::StrCat("it has no room for ", footer.blocks, " blocks"));
  }
  return footer;
}

absl::StatusOr<std::vector<PlacedRowsBlock>> DecodeRowsIndex(absl::string_view bytes,
                                                             const RowsFooter& footer,
                                                             uint64_t file_bytes) {
  CHECK_EQ(bytes.size(), footer.blocks * kRowsBlockEntryBytes);
  const uint32_t crc = Crc32c(bytes.data(), bytes.size());
  if (crc != footer.index_crc32c) {
    return absl::DataLossError(absl::StrFormat(
        "the CRC-32C of its index is %08x, its last bytes say %08x", crc, footer.index_crc32c));
  }
  const uint64_t end = file_bytes - kRowsFooterBytes - bytes.size();
  std::vector<PlacedRowsBlock> blocks(footer.blocks);
  uint64_t offset = kRowsHeaderBytes, rows = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const absl::string_view entry = bytes.substr(i * kRowsBlockEntryBytes, kRowsBlockEntryBytes);
    PlacedRowsBlock& block = blocks[i];
    block.first_key = LoadAt<uint64_t>(entry, 0);
    block.table = TableId(LoadAt<uint32_t>(entry, 8));
    block.rows = LoadAt<uint32_t>(entry, 12);
    block.candidates = LoadAt<uint32_t>(entry, 16);
    block.floats = LoadAt<uint32_t>(entry, 20);
    block.crc32c = LoadAt<uint32_t>(entry, 24);
    block.first = RowKeyOf(block.table, block.first_key);
    block.offset = offset;
    if (!IsPossible(block)) return DamagedEntry(i, "can't be of a block");
    if (block.bytes() > end - offset) return DamagedEntry(i, "goes beyond the blocks");
    if (i > 0 && !(blocks[i - 1].first < block.first)) {
      return DamagedEntry(i, "is not behind the one before it");
    }
    offset += block.bytes();
    rows += block.rows;
  }
  if (offset != end) return absl::DataLossError("its index does not have all of its blocks");
  if (rows == footer.rows) return blocks;
  return absl::DataLossError(
      absl::StrCat("its blocks have ", rows, " rows, its last bytes say ", footer.rows));
}

}  // namespace thermocline
