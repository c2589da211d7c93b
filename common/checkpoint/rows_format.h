// The bytes of a rows file (docs/formats.md): a header, blocks of rows, an index with an entry for
// each block, and a footer. A block has rows of one table, in the order of RowKey, as columns: all
// keys, all lookups, all steps of the last change, which keys are candidates (where some are), all
// values.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_ROWS_FORMAT_H_
#define THERMOCLINE_COMMON_CHECKPOINT_ROWS_FORMAT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/checkpoint/row_key.h"

namespace thermocline {

inline constexpr size_t kRowsHeaderBytes = 16;
inline constexpr size_t kRowsFooterBytes = 32;
inline constexpr size_t kRowsBlockEntryBytes = 32;
// A block has at most so many bytes; a single row may have more.
inline constexpr uint64_t kMaxRowsBlockBytes = 64 << 10;

// What a row of so many values takes, at most, in a file of many such rows: key, lookups, step of
// the last change, kind, values, and its share of its block's padding and entry of the index.
constexpr uint64_t RowsFileRowBytes(uint64_t floats) {
  constexpr uint64_t kPadding = 7 + 4;  // The kinds take up to 7 bytes of it, the values 4.
  const uint64_t row = sizeof(Key) + 4 + 4 + 1 + 4 * floats;
  const uint64_t rows_of_block = std::max<uint64_t>((kMaxRowsBlockBytes - kPadding) / row, 1);
  return row + (kPadding + kRowsBlockEntryBytes + rows_of_block - 1) / rows_of_block;
}

// One block, as its entry of the index has it.
struct RowsBlock {
  TableId table;
  uint32_t rows = 0;        // Candidates included.
  uint32_t candidates = 0;  // Rows that have no values.
  uint32_t floats = 0;      // Values of each other row; 0 where all are candidates.
  Key first_key = 0;
  uint32_t crc32c = 0;  // The checksum of its bytes.

  // Where the columns begin, from the block's first byte; keys begin there. REQUIRES: the entry is
  // one that DecodeRowsIndex accepts, or a writer's.
  uint64_t lookups_at() const { return uint64_t{rows} * sizeof(Key); }
  uint64_t changed_at() const { return lookups_at() + uint64_t{rows} * 4; }
  uint64_t kinds_at() const { return changed_at() + uint64_t{rows} * 4; }  // 1 byte each
  uint64_t values_at() const { return kinds_at() + (candidates > 0 ? PaddedTo8(rows) : 0); }
  uint64_t bytes() const {
    return values_at() + PaddedTo8((uint64_t{rows} - candidates) * floats * 4);
  }

  static constexpr uint64_t PaddedTo8(uint64_t bytes) { return (bytes + 7) & ~uint64_t{7}; }
};

// The kinds of rows in a block that has candidates.
inline constexpr char kKindRow = 0, kKindCandidate = 1;

struct RowsFooter {
  uint64_t rows = 0;
  uint64_t blocks = 0;
  uint32_t crc32c = 0;        // The checksum of all bytes before the footer.
  uint32_t index_crc32c = 0;  // The checksum of the index.
};

// The format version is in the header.
std::array<char, kRowsHeaderBytes> EncodeRowsHeader();
// Errors: kDataLoss (it is no header), kFailedPrecondition (of another version). Messages say what
// is wrong, without the file's name.
absl::Status CheckRowsHeader(absl::string_view bytes);

void AppendRowsBlockEntry(const RowsBlock& block, std::string* index);
std::array<char, kRowsFooterBytes> EncodeRowsFooter(const RowsFooter& footer);
// Also checks that the file has room for what the footer says. Errors: kDataLoss, as above.
absl::StatusOr<RowsFooter> DecodeRowsFooter(absl::string_view bytes, uint64_t file_bytes);

// A block and its place in the file.
struct PlacedRowsBlock : RowsBlock {
  RowKey first;         // The RowKey of first_key.
  uint64_t offset = 0;  // The block's first byte.
};
// The blocks ascend, fill the file between header and index, and have the footer's number of rows.
// Takes no more memory than a small multiple of bytes.size(). Errors: kDataLoss, as above.
absl::StatusOr<std::vector<PlacedRowsBlock>> DecodeRowsIndex(absl::string_view bytes,
                                                             const RowsFooter& footer,
                                                             uint64_t file_bytes);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_ROWS_FORMAT_H_
