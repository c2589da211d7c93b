// The memory that the rows of a table take in a server. server/tables lays rows and index out by
// these formulas; `thermocline plan`, which has no rows yet, computes with them.
#ifndef THERMOCLINE_COMMON_MATH_TABLE_MEMORY_H_
#define THERMOCLINE_COMMON_MATH_TABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "common/math/table_spec.h"

namespace thermocline {

// A table has this many lock stripes, each with an index and blocks of rows of its own. They are
// enough that threads seldom meet, and few enough that a request of some hundred keys doesn't spend
// its time on locks.
inline constexpr uint32_t kNumStripes = 16;

// Each row has a RowMeta beside its values, and in a table with a memory budget also a RowFlags.
inline constexpr size_t kRowMetaMemoryBytes = 8;
inline constexpr size_t kRowFlagsMemoryBytes = 4;

// How much memory a record of `bytes` takes: a power of two up to a cache line, a multiple of a
// cache line beyond.
size_t PaddedRecordBytes(size_t bytes);

// How much memory one row takes: its weights, optimizer state, RowMeta and RowFlags.
size_t RowMemoryBytes(const TableLayout& layout);

// A stripe allocates rows in blocks of 1 << BlockShift(layout) rows.
int BlockShift(const TableLayout& layout);

// The index from keys to rows has buckets of one cache line.
inline constexpr size_t kIndexBucketBytes = 64;
inline constexpr int kIndexKeysPerBucket = 5;

// How many buckets an index of `buckets` has once it has grown.
//   growth_phase: in [0, 1); indexes that fill alike but differ in it grow at different times
uint32_t NextIndexBuckets(uint32_t buckets, double growth_phase);
// How many keys an index of `buckets` takes before it grows.
size_t MaxIndexKeys(uint32_t buckets);

// How much memory a table of `rows` rows takes on one server, with index and slack, while no
// checkpoint is being written (TableStats.bytes). It is at most the table's memory budget.
uint64_t TableMemoryBytes(const TableLayout& layout, uint64_t rows);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_TABLE_MEMORY_H_
