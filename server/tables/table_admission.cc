#include "server/tables/table_admission.h"

#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {
namespace {

constexpr size_t kRowsARemoval = 4096;

}  // namespace

TableAdmission::TableAdmission(const TableLayout& layout, SnapshotProgress* snapshot)
    : layout_(layout), snapshot_(snapshot) {}

void TableAdmission::Save(TableStripe& stripe, Key key, const RowMeta& meta) {
  if (!stripe.cut.Contains(meta)) return;
  const uint32_t partitions_read = snapshot_->partitions_read.load(std::memory_order_acquire);
  if (PartitionOfHash(KeyHash(TableSalt(layout_.id), key)) < partitions_read) return;
  if (stripe.cut.SaveCandidate(key, meta)) {
    snapshot_->old_images.fetch_add(1, std::memory_order_relaxed);
  }
}

std::optional<uint32_t> TableAdmission::Admit(TableStripe& stripe, Key key,
                                              const PushedLookups& lookups, size_t position) {
  if (layout_.min_count == 0) return 0;
  const auto [candidate, is_new] = stripe.candidates.try_emplace(key, RowMeta{0, lookups.changed});
  RowMeta& meta = candidate->second;
  if (!is_new) Save(stripe, key, meta);
  const uint32_t before = meta.count;
  meta.AddCount(lookups.counts[position]);
  meta.changed = lookups.changed;
  if (meta.count < layout_.min_count) {
    if (lookups.have_gradients) gradients_dropped_.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  stripe.candidates.erase(candidate);
  return before;
}

uint32_t TableAdmission::TakeCandidate(TableStripe& stripe, Key key) {
  const auto candidate = stripe.candidates.find(key);
  if (candidate == stripe.candidates.end()) return 0;
  const RowMeta meta = candidate->second;
  Save(stripe, key, meta);
  stripe.candidates.erase(candidate);
  return meta.count;
}

void TableAdmission::AddStored(TableStripe& stripe, Step now, RowsByGroup* counts) const {
  absl::flat_hash_map<uint32_t, uint64_t> regrouped;
  for (const auto& [group, rows] : stripe.stored_rows) {
    if (rows > 0) regrouped[GroupOfChange(layout_, group, now)] += rows;
  }
  for (const auto& [group, rows] : regrouped) (*counts)[group] += rows;
  stripe.stored_rows = std::move(regrouped);
  stripe.grouped_at = now;
}

void TableAdmission::ForgetOthers(TableStripe& stripe, uint64_t rows) {
  uint64_t stored = 0;
  for (auto it = stripe.stored_rows.begin(); it != stripe.stored_rows.end();) {
    const auto group = it++;
    if (group->first >= oldest_kept()) continue;
    stored += group->second;
    stripe.stored_rows.erase(group);
  }
  stored_forgotten_.fetch_add(stored, std::memory_order_relaxed);
  rows_forgotten_.fetch_add(stored + rows, std::memory_order_relaxed);
  for (auto it = stripe.candidates.begin(); it != stripe.candidates.end();) {
    const auto candidate = it++;
    if (IsKept(candidate->second)) continue;
    Save(stripe, candidate->first, candidate->second);
    stripe.candidates.erase(candidate);
  }
}

// Reading the whole store is worth it once an eighth of its rows is forgotten.
absl::StatusOr<bool> TableAdmission::RemoveForgotten(RowStore* store, uint64_t num_rows) {
  if (removal_ == nullptr) {
    if (stored_forgotten_.load() <= num_rows / 8) return false;
    stored_forgotten_.store(0);
    removal_ = store->NewCursor();
  }
  const size_t row_bytes = StoredRowBytes(layout_);
  std::vector<Key> keys;
  UninitializedVector<uint8_t> rows;
  const auto leave_forgotten = [&](const auto& is_there) {
    size_t n = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (is_there(i) && !IsKept(StoredMeta(rows.data() + i * row_bytes))) keys[n++] = keys[i];
    }
    keys.resize(n);
  };
  RETURN_IF_ERROR(removal_->Next(kRowsARemoval, &keys, &rows));
  if (keys.empty()) {
    removal_.reset();
    return false;
  }
  leave_forgotten([](size_t) { return true; });
  // The cursor shows what was there when it was made: a row may have been written anew since.
  rows.resize(keys.size() * row_bytes);
  const auto found = std::make_unique<bool[]>(keys.size());
  RETURN_IF_ERROR(
      store->MultiGet(keys, absl::MakeSpan(rows), absl::MakeSpan(found.get(), keys.size())));
  leave_forgotten([&](size_t i) { return found[i]; });
  RETURN_IF_ERROR(store->Erase(keys));
  return true;
}

}  // namespace thermocline
