// Keys of a request that are not in memory, and what the store has of them.
#ifndef THERMOCLINE_SERVER_TABLES_TABLE_MISS_H_
#define THERMOCLINE_SERVER_TABLES_TABLE_MISS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

// In the store, or nowhere.
struct TableMiss {
  Key key;
  uint32_t place;  // KeyIndex::PlaceOfHash
  uint32_t stripe;
  size_t position;  // in the request
};

struct StoredRows {
  UninitializedVector<uint8_t> rows;  // [n, stored_row_bytes]
  std::unique_ptr<bool[]> found;      // [n]
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_TABLE_MISS_H_
