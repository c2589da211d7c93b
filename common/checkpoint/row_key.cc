#include "common/checkpoint/row_key.h"

#include <cstring>

#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {

RowKey RowKeyOf(TableId table, Key key) {
  RowKey row;
  row.table = table;
  row.partition = PartitionOfHash(KeyHash(TableSalt(table), key));
  row.key = key;
  return row;
}

std::array<char, kRowKeyBytes> EncodeRowKey(const RowKey& key) {
  CHECK_LT(key.partition, kNumPartitions);
  std::array<char, kRowKeyBytes> bytes;
  const uint32_t table = __builtin_bswap32(key.table.value());
  const uint16_t partition = __builtin_bswap16(static_cast<uint16_t>(key.partition));
  const uint64_t number = __builtin_bswap64(key.key);
  std::memcpy(bytes.data(), &table, 4);
  std::memcpy(bytes.data() + 4, &partition, 2);
  std::memcpy(bytes.data() + 6, &number, 8);
  return bytes;
}

std::optional<RowKey> DecodeRowKey(absl::string_view bytes) {
  if (bytes.size() != kRowKeyBytes) return std::nullopt;
  uint32_t table;
  uint16_t partition;
  uint64_t number;
  std::memcpy(&table, bytes.data(), 4);
  std::memcpy(&partition, bytes.data() + 4, 2);
  std::memcpy(&number, bytes.data() + 6, 8);
  RowKey key;
  key.table = TableId(__builtin_bswap32(table));
  key.partition = __builtin_bswap16(partition);
  key.key = __builtin_bswap64(number);
  return key;
}

void EncodeRowValue(uint32_t lookups, uint32_t changed, absl::Span<const float> row,
                    absl::Span<char> out) {
  CHECK_EQ(out.size(), RowValueBytes(row.size()));
  std::memcpy(out.data(), &lookups, 4);
  std::memcpy(out.data() + 4, &changed, 4);
  if (!row.empty()) std::memcpy(out.data() + kRowMetaBytes, row.data(), 4 * row.size());
}

bool DecodeRowValue(absl::string_view bytes, uint32_t* lookups, uint32_t* changed,
                    std::vector<float>* row) {
  if (bytes.size() < kRowMetaBytes || bytes.size() % 4 != 0) return false;
  std::memcpy(lookups, bytes.data(), 4);
  std::memcpy(changed, bytes.data() + 4, 4);
  bytes.remove_prefix(kRowMetaBytes);
  row->resize(bytes.size() / 4);
  if (!bytes.empty()) std::memcpy(row->data(), bytes.data(), bytes.size());
  return true;
}

}  // namespace thermocline
