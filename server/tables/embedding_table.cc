#include "server/tables/embedding_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "server/tables/embedding_table_impl.h"

namespace thermocline {

EmbeddingTable::EmbeddingTable(const TableLayout& layout, uint64_t job_seed)
    : EmbeddingTable(layout, job_seed, TableSpill()) {}

EmbeddingTable::EmbeddingTable(const TableLayout& layout, uint64_t job_seed, TableSpill spill)
    : impl_(std::make_unique<Impl>(layout, job_seed, std::move(spill))) {}

EmbeddingTable::~EmbeddingTable() = default;

const TableLayout& EmbeddingTable::layout() const { return impl_->layout; }

void EmbeddingTable::Impl::VisitMemory(VisitRow visit) const {
  std::vector<float> scratch(layout.row_floats());
  for (const TableStripe& stripe : stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    stripe.index.ForEach([&](Key key, uint32_t row) {
      std::copy_n(storage.Weights(row), layout.dim, scratch.begin());
      std::copy_n(storage.State(row), layout.state_floats(), scratch.begin() + layout.dim);
      visit(key, scratch, *storage.Meta(row));
    });
    for (const auto& [key, meta] : stripe.candidates) visit(key, {}, meta);
  }
}

absl::Status EmbeddingTable::Impl::VisitAll(VisitRow visit) {
  if (store == nullptr) {
    VisitMemory(visit);
    return absl::OkStatus();
  }
  absl::MutexLock no_rounds(spiller->round_mutex());
  const auto set_frozen = [this](bool value) {
    frozen.store(value);
    // Who looked before has brought its rows now.
    for (const TableStripe& stripe : stripes) absl::MutexLock lock(&stripe.mutex);
  };
  set_frozen(true);
  const absl::Status stored = VisitStored(visit);
  if (stored.ok()) VisitMemory(visit);
  set_frozen(false);
  return stored;
}

absl::Status EmbeddingTable::VisitRows(const RowVisitor& visit) const {
  return impl_->VisitAll([&](Key key, absl::Span<const float> row, const RowMeta& meta) {
    visit(key, row, meta.count, StepOfChange(meta.changed));
  });
}

absl::StatusOr<Digest> EmbeddingTable::ComputeDigest() const {
  const TableId table = impl_->layout.id;
  Digest digest;
  RETURN_IF_ERROR(impl_->VisitAll([&](Key key, absl::Span<const float> row, const RowMeta& meta) {
    digest.Add(row.empty() ? CandidateDigest(table, key, meta.count) : RowDigest(table, key, row));
  }));
  return digest;
}

absl::Status EmbeddingTable::CheckRoom() const {
  if (impl_->store == nullptr) return absl::OkStatus();
  const absl::Status full = impl_->spiller->full();
  if (full.ok()) return full;
  if (impl_->RowsInMemory() <= impl_->max_stripe_rows * kNumStripes) {
    return absl::OkStatus();
  }
  return absl::Status(full.code(),
                      absl::StrCat("table '", impl_->layout.name, "' is over its memory budget of ",
                                   impl_->layout.memory_budget_bytes, " bytes: ", full.message()));
}

uint64_t EmbeddingTable::num_rows() const {
  if (impl_->store == nullptr) return impl_->RowsInMemory();
  return impl_->rows_created.load() - impl_->admission.rows_forgotten();
}

uint64_t EmbeddingTable::Impl::RowsInMemory() const {
  uint64_t rows = 0;
  for (const TableStripe& stripe : stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    rows += stripe.index.size();
  }
  return rows;
}

uint64_t EmbeddingTable::memory_bytes() const {
  uint64_t bytes = sizeof(Impl) + impl_->storage.ResidentBytes();
  for (const TableStripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    bytes += stripe.index.memory_bytes() + stripe.free_rows.capacity() * sizeof(uint32_t) +
             stripe.cut.memory_bytes() +
             stripe.candidates.capacity() * (sizeof(std::pair<Key, RowMeta>) + 1);
  }
  return bytes;
}

uint64_t EmbeddingTable::old_image_bytes() const {
  return impl_->snapshot.old_images.load(std::memory_order_relaxed) *
         RowCut::BytesPerImage(impl_->layout.row_floats());
}

uint64_t EmbeddingTable::rows_created() const { return num_rows() + rows_forgotten(); }

uint64_t EmbeddingTable::num_candidates() const {
  uint64_t candidates = 0;
  for (const TableStripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    candidates += stripe.candidates.size();
  }
  return candidates;
}

uint64_t EmbeddingTable::gradients_dropped() const { return impl_->admission.gradients_dropped(); }

uint64_t EmbeddingTable::rows_forgotten() const { return impl_->admission.rows_forgotten(); }

std::optional<EmbeddingTable::SpillStats> EmbeddingTable::spill_stats() const {
  if (impl_->store == nullptr) return std::nullopt;
  return SpillStats{impl_->RowsInMemory(), impl_->store->bytes(), impl_->rows_read_back.load(),
                    impl_->rows_spilled.load()};
}

}  // namespace thermocline
