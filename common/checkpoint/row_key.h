// The bytes of one row in a rows file: its key, in the order of files, and its value
// (docs/formats.md).
#ifndef THERMOCLINE_COMMON_CHECKPOINT_ROW_KEY_H_
#define THERMOCLINE_COMMON_CHECKPOINT_ROW_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace thermocline {

// Big-endian table id (4 bytes), partition (2), key (8), so that bytes sort as operator< does.
inline constexpr size_t kRowKeyBytes = 14;

struct RowKey {
  TableId table;
  uint32_t partition = 0;  // PartitionOfHash(KeyHash(TableSalt(table), key)), below kNumPartitions
  Key key = 0;

  friend bool operator==(const RowKey& a, const RowKey& b) {
    return a.Place() == b.Place() && a.key == b.key;
  }
  friend bool operator<(const RowKey& a, const RowKey& b) {
    return a.Place() != b.Place() ? a.Place() < b.Place() : a.key < b.key;
  }

 private:
  uint64_t Place() const { return uint64_t{table.value()} << 16 | partition; }
};

// Computes the partition.
RowKey RowKeyOf(TableId table, Key key);

std::array<char, kRowKeyBytes> EncodeRowKey(const RowKey& key);
// nullopt: there are not kRowKeyBytes bytes.
std::optional<RowKey> DecodeRowKey(absl::string_view bytes);

// Little-endian lookups (4 bytes), changed (4), floats (4 each).
inline constexpr size_t kRowMetaBytes = 8;

constexpr size_t RowValueBytes(size_t row_floats) { return kRowMetaBytes + 4 * row_floats; }

// REQUIRES: out.size() == RowValueBytes(row.size())
void EncodeRowValue(uint32_t lookups, uint32_t changed, absl::Span<const float> row,
                    absl::Span<char> out);
// Sets the size of `row`, too. False: these are not the bytes of a row.
bool DecodeRowValue(absl::string_view bytes, uint32_t* lookups, uint32_t* changed,
                    std::vector<float>* row);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_ROW_KEY_H_
