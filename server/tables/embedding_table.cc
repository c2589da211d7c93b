#include "server/tables/embedding_table.h"

#include <algorithm>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "server/tables/embedding_table_impl.h"

namespace thermocline {

EmbeddingTable::EmbeddingTable(const TableLayout& layout, uint64_t job_seed)
    : impl_(std::make_unique<Impl>(layout, job_seed)) {}

EmbeddingTable::~EmbeddingTable() = default;

const TableLayout& EmbeddingTable::layout() const { return impl_->layout; }

template <typename Visit>
void EmbeddingTable::Impl::VisitStripe(const TableStripe& stripe, std::vector<float>* scratch,
                                       Visit visit) const {
  stripe.index.ForEach([&](Key key, uint32_t row) {
    const float* weights = storage.Weights(row);
    const float* slots = storage.Slots(row);
    std::copy_n(weights, layout.dim, scratch->begin());
    std::copy_n(slots, layout.slot_floats(), scratch->begin() + layout.dim);
    visit(key, absl::MakeConstSpan(*scratch), row);
  });
}

void EmbeddingTable::VisitRows(const RowVisitor& visit) const {
  std::vector<float> scratch(impl_->layout.row_floats());
  for (const TableStripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    impl_->VisitStripe(stripe, &scratch,
                       [&](Key key, absl::Span<const float> row, uint32_t number) {
                         const RowMeta& meta = *impl_->storage.Meta(number);
                         visit(key, row, meta.count, StepOfChange(meta.changed));
                       });
  }
}

Digest EmbeddingTable::ComputeDigest() const {
  const TableId table = impl_->layout.id;
  Digest digest;
  std::vector<float> scratch(impl_->layout.row_floats());
  for (const TableStripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    impl_->VisitStripe(stripe, &scratch, [&](Key key, absl::Span<const float> row, uint32_t) {
      digest.Add(RowDigest(table, key, row));
    });
  }
  return digest;
}

uint64_t EmbeddingTable::num_rows() const {
  uint64_t rows = 0;
  for (const TableStripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    rows += stripe.index.size();
  }
  return rows;
}

uint64_t EmbeddingTable::memory_bytes() const {
  uint64_t bytes = sizeof(Impl) + impl_->storage.ResidentBytes();
  for (const TableStripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    bytes += stripe.index.memory_bytes();
  }
  return bytes;
}

// No row is ever erased yet.
uint64_t EmbeddingTable::rows_created() const { return num_rows(); }

}  // namespace thermocline
