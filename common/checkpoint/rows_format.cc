#include "common/checkpoint/rows_format.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

constexpr char kRowsMagic[] = "TclnRows";
constexpr uint32_t kRowsVersion = 1;
constexpr size_t kRowsVersionAt = 8, kRowsHeaderCrcAt = 12, kRowsFooterCrcAt = 28;

// A row has at least a key, its lookups and the step of its last change.
constexpr uint64_t kMaxRowsOfBlock = kMaxRowsBlockBytes / 16;

template <typename Number>
void Put(Number number, size_t at, char* bytes) {
  std::memcpy(bytes + at, &number, sizeof(number));
}

template <typename Number>
Number Get(absl::string_view bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

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
  Put(kRowsVersion, kRowsVersionAt, bytes.data());
  Put(Crc32c(bytes.data(), kRowsHeaderCrcAt), kRowsHeaderCrcAt, bytes.data());
  return bytes;
}

absl::Status CheckRowsHeader(absl::string_view bytes) {
  CHECK_EQ(bytes.size(), kRowsHeaderBytes);
  if (bytes.substr(0, kRowsVersionAt) != kRowsMagic ||
      Get<uint32_t>(bytes, kRowsHeaderCrcAt) != Crc32c(bytes.data(), kRowsHeaderCrcAt)) {
    return absl::DataLossError("it does not begin as a rows file");
  }
  const auto version = Get<uint32_t>(bytes, kRowsVersionAt);
  if (version == kRowsVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("format version ", version, "; this program knows version ", kRowsVersion));
}

void AppendRowsBlockEntry(const RowsBlock& block, std::string* index) {
  CHECK(IsPossible(block));
  char bytes[kRowsBlockEntryBytes] = {};
  Put(block.first_key, 0, bytes);
  Put(block.table.value(), 8, bytes);
  Put(block.rows, 12, bytes);
  Put(block.candidates, 16, bytes);
  Put(block.floats, 20, bytes);
  Put(block.crc32c, 24, bytes);
  index->append(bytes, sizeof(bytes));
}

std::array<char, kRowsFooterBytes> EncodeRowsFooter(const RowsFooter& footer) {
  std::array<char, kRowsFooterBytes> bytes = {};
  Put(footer.rows, 0, bytes.data());
  Put(footer.blocks, 8, bytes.data());
  Put(footer.crc32c, 16, bytes.data());
  Put(footer.index_crc32c, 20, bytes.data());
  Put(Crc32c(bytes.data(), kRowsFooterCrcAt), kRowsFooterCrcAt, bytes.data());
  return bytes;
}

absl::StatusOr<RowsFooter> DecodeRowsFooter(absl::string_view bytes, uint64_t file_bytes) {
  CHECK_EQ(bytes.size(), kRowsFooterBytes);
  if (Get<uint32_t>(bytes, kRowsFooterCrcAt) != Crc32c(bytes.data(), kRowsFooterCrcAt)) {
    return absl::DataLossError("the checksum of its last 32 bytes is wrong");
  }
  RowsFooter footer;
  footer.rows = Get<uint64_t>(bytes, 0);
  footer.blocks = Get<uint64_t>(bytes, 8);
  footer.crc32c = Get<uint32_t>(bytes, 16);
  footer.index_crc32c = Get<uint32_t>(bytes, 20);
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
    block.first_key = Get<uint64_t>(entry, 0);
    block.table = TableId(Get<uint32_t>(entry, 8));
    block.rows = Get<uint32_t>(entry, 12);
    block.candidates = Get<uint32_t>(entry, 16);
    block.floats = Get<uint32_t>(entry, 20);
    block.crc32c = Get<uint32_t>(entry, 24);
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

namespace {

// The product of two polynomials modulo that of CRC-32C. As in a checksum, the highest bit is the
// coefficient of x^0.
constexpr uint32_t MultiplyModCrc32c(uint32_t a, uint32_t b) {
  constexpr uint32_t kPolynomial = 0x82F63B78;
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & 0x80000000) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x^(8 * 2^i) for each i: a byte of zeros multiplies a checksum's state by x^8.
struct PowersOfBytes {
  uint32_t at[64] = {};
  constexpr PowersOfBytes() {
    at[0] = 0x80000000u >> 8;
    for (int i = 1; i < 64; ++i) at[i] = MultiplyModCrc32c(at[i - 1], at[i - 1]);
  }
};

}  // namespace

uint32_t CombineCrc32c(uint32_t first, uint32_t second, uint64_t second_bytes) {
  static constexpr PowersOfBytes kPowers;
  for (int i = 0; second_bytes != 0; second_bytes >>= 1, ++i) {
    if ((second_bytes & 1) != 0) first = MultiplyModCrc32c(kPowers.at[i], first);
  }
  return first ^ second;
}

}  // namespace thermocline
