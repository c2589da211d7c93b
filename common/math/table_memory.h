// The memory that the rows of a table take in a server. server/tables lays rows and index out by
// these formulas; the plan of a job, which has no rows yet, computes with them.
#ifndef THERMOCLINE_COMMON_MATH_TABLE_MEMORY_H_
#define THERMOCLINE_COMMON_MATH_TABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "common/math/table_spec.h"

namespace thermocline {

// Lock stripes of a table, each with an index and blocks of rows of its own: enough that threads
// seldom meet, few enough that a request of some hundred keys doesn't spend its time on locks.
inline constexpr uint32_t kNumStripes = 16;

// What is known of each row beside its values (RowMeta), and of each row of a table with a memory
// budget (RowFlags).
inline constexpr size_t kRowMetaMemoryBytes = 8;
inline constexpr size_t kRowFlagsMemoryBytes = 4;

// Bytes of a record: a power of two up to a cache line, a multiple of a cache line beyond.
size_t PaddedRecordBytes(size_t bytes);

// Of one row: weights, optimizer state and what is known of it.
size_t RowMemoryBytes(const TableLayout& layout);

// Rows of a stripe come in blocks of a power of two: 1 << BlockShift.
int BlockShift(const TableLayout& layout);

// The index from keys to rows: buckets of one cache line.
inline constexpr size_t kIndexBucketBytes = 64;
inline constexpr int kIndexKeysPerBucket = 5;

// Buckets of an index that grows beyond `buckets`. `growth_phase` in [0, 1): indexes that fill
// alike but differ in it grow at different times.
uint32_t NextIndexBuckets(uint32_t buckets, double growth_phase);
// Keys that so many buckets take before they grow.
size_t MaxIndexKeys(uint32_t buckets);

// Memory of a table of `rows` rows on one server: rows, index and slack, as stats report it
// (TableStats.bytes), when no checkpoint is being written. With a memory budget at most that.
uint64_t TableMemoryBytes(const TableLayout& layout, uint64_t rows);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_TABLE_MEMORY_H_
