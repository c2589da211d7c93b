#include "common/math/table_memory.h"

#include <algorithm>
#include <cmath>

namespace thermocline {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

// Small enough that a table of few rows, spread over all stripes, stays small.
constexpr size_t kBlockBytes = 4096;
constexpr int kMaxBlockShift = 6;

constexpr double kMaxLoad = 0.6;
constexpr double kGrowth = 1.2;
// An index doubles up to this size: it is small, and its memory hardly counts.
constexpr uint32_t kDoublingBuckets = 64;

// How much memory an index takes that has grown to hold `keys`.
uint64_t IndexBytes(uint64_t keys, double growth_phase) {
  uint32_t buckets = 0;
  while (keys > 0 && (buckets == 0 || MaxIndexKeys(buckets) < keys)) {
    buckets = NextIndexBuckets(buckets, growth_phase);
  }
  return uint64_t{buckets} * kIndexBucketBytes;
}

}  // namespace

size_t PaddedRecordBytes(size_t bytes) {
  if (bytes > kCacheLine) return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  size_t padded = sizeof(float);
  while (padded < bytes) padded *= 2;
  return padded;
}

size_t RowMemoryBytes(const TableLayout& layout) {
  const size_t state = layout.state_floats() * sizeof(float);
  return PaddedRecordBytes(layout.dim * sizeof(float)) +
         (state > 0 ? PaddedRecordBytes(state) : 0) + kRowMetaMemoryBytes +
         (layout.memory_budget_bytes > 0 ? kRowFlagsMemoryBytes : 0);
}

int BlockShift(const TableLayout& layout) {
  const size_t row_bytes = layout.row_floats() * sizeof(float);
  int shift = 0;
  while (shift < kMaxBlockShift && (row_bytes << (shift + 1)) <= kBlockBytes) ++shift;
  return shift;
}

uint32_t NextIndexBuckets(uint32_t buckets, double growth_phase) {
  constexpr uint32_t kBucketsPerHugePage = kHugePage / kIndexBucketBytes;
  if (buckets == 0) return 1;
  if (buckets < kDoublingBuckets / 2) return buckets * 2;
  if (buckets < kDoublingBuckets) {
    return static_cast<uint32_t>(kDoublingBuckets * std::pow(kGrowth, growth_phase));
  }
  const uint32_t next = static_cast<uint32_t>(buckets * kGrowth);
  // From two huge pages on, whole ones: a lookup in the rest, on small pages, takes several times
  // as long, since the processor's page tables don't fit its caches.
  if (next < 2 * kBucketsPerHugePage) return next;
  return (next + kBucketsPerHugePage - 1) / kBucketsPerHugePage * kBucketsPerHugePage;
}

size_t MaxIndexKeys(uint32_t buckets) {
  return std::max<size_t>(kIndexKeysPerBucket - 1,
                          static_cast<size_t>(buckets * (kIndexKeysPerBucket * kMaxLoad)));
}

uint64_t TableMemoryBytes(const TableLayout& layout, uint64_t rows) {
  // Hashes spread the keys evenly over the stripes. A stripe of few rows has one block; the last of
  // many blocks is half full on average.
  const double per_stripe = static_cast<double>(rows) / kNumStripes;
  const double one_block_each = kNumStripes * -std::expm1(-per_stripe) *
                                static_cast<double>(uint64_t{1} << BlockShift(layout));
  const auto slack_rows = static_cast<uint64_t>(
      std::max(one_block_each - static_cast<double>(rows), one_block_each / 2));
  uint64_t bytes = (rows + slack_rows) * RowMemoryBytes(layout);
  for (uint32_t stripe = 0; stripe < kNumStripes; ++stripe) {
    bytes += IndexBytes(static_cast<uint64_t>(std::ceil(per_stripe)),
                        static_cast<double>(stripe) / kNumStripes);
  }
  return layout.memory_budget_bytes > 0 ? std::min(bytes, layout.memory_budget_bytes) : bytes;
}

}  // namespace thermocline
