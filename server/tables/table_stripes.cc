#include "server/tables/table_stripes.h"

#include "common/base/check.h"

namespace thermocline {

void TableStripe::Pin(absl::Span<const TableMiss> misses) const {
  if (misses.empty()) return;
  absl::MutexLock lock(&pin_mutex);
  for (const TableMiss& miss : misses) ++pinned[miss.key];
}

void TableStripe::Unpin(absl::Span<const TableMiss> misses) const {
  absl::MutexLock lock(&pin_mutex);
  for (const TableMiss& miss : misses) {
    const auto found = pinned.find(miss.key);
    CHECK(found != pinned.end());
    if (--found->second == 0) pinned.erase(found);
  }
}

uint64_t TableStripes::RowsInMemory() const {
  uint64_t rows = 0;
  for (const TableStripe& stripe : stripes_) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    rows += stripe.index.size();
  }
  return rows;
}

size_t TableStripes::MostRows() const {
  size_t most = 0;
  for (const TableStripe& stripe : stripes_) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    most = std::max(most, stripe.index.size());
  }
  return most;
}

}  // namespace thermocline
