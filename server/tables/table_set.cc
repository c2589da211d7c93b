#include "server/tables/table_set.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

void FillTableStats(const TableSet::Entry& entry, TableStats* stats) {
  const TableLayout& layout = entry.table.layout();
  stats->set_id(layout.id.value());
  stats->set_name(layout.name);
  stats->set_dim(layout.dim);
  stats->set_role(layout.role == TableRole::kDense ? TableSpec::DENSE : TableSpec::SPARSE);
  stats->set_rows(entry.table.num_rows());
  stats->set_bytes(entry.table.memory_bytes());
  stats->set_keys_pulled(entry.keys_pulled.load(std::memory_order_relaxed));
  stats->set_keys_read(entry.keys_read.load(std::memory_order_relaxed));
  stats->set_keys_pushed(entry.keys_pushed.load(std::memory_order_relaxed));
  stats->set_old_image_bytes(entry.table.old_image_bytes());
  stats->set_old_image_waits(entry.old_image_waits.load(std::memory_order_relaxed));
  stats->set_rows_created(entry.table.rows_created());
  stats->set_candidates(entry.table.num_candidates());
  stats->set_gradients_dropped(entry.table.gradients_dropped());
  stats->set_rows_forgotten(entry.table.rows_forgotten());
  const auto spill = entry.table.spill_stats();
  if (!spill.has_value()) return;
  stats->set_rows_in_memory(spill->rows_in_memory);
  stats->set_bytes_spilled(spill->bytes_spilled);
  stats->set_rows_read_back(spill->rows_read_back);
  stats->set_rows_spilled(spill->rows_spilled);
}

}  // namespace

TableSet::TableSet(absl::Span<const TableLayout> layouts, uint64_t job_seed,
                   std::vector<TableSpill> spills) {
  spills.resize(layouts.size());
  for (const TableLayout& layout : layouts) {
    TableSpill& spill = spills[entries_.size()];
    CHECK(positions_.emplace(layout.id, entries_.size()).second);
    entries_.push_back(std::make_unique<Entry>(layout, job_seed, std::move(spill)));
  }
}

absl::StatusOr<Digest> TableSet::ComputeDigest() const {
  Digest digest;
  for (const auto& entry : entries_) {
    ASSIGN_OR_RETURN(const Digest rows, entry->table.ComputeDigest());
    digest.Add(rows);
  }
  return digest;
}

absl::Status TableSet::CheckRoom() const {
  for (const auto& entry : entries_) RETURN_IF_ERROR(entry->table.CheckRoom());
  return absl::OkStatus();
}

uint64_t TableSet::num_rows() const {
  uint64_t rows = 0;
  for (const auto& entry : entries_) rows += entry->table.num_rows();
  return rows;
}

uint64_t TableSet::row_bytes_in_memory() const {
  uint64_t bytes = 0;
  for (const auto& entry : entries_) {
    const TableLayout& layout = entry->table.layout();
    const uint64_t all = entry->table.num_rows() * layout.row_floats() * sizeof(float);
    const uint64_t budget = layout.memory_budget_bytes;
    bytes += budget > 0 ? std::min(all, budget) : all;
  }
  return bytes;
}

uint64_t TableSet::old_image_bytes() const {
  uint64_t bytes = 0;
  for (const auto& entry : entries_) bytes += entry->table.old_image_bytes();
  return bytes;
}

void TableSet::CountOldImageWait() {
  const auto most =
      std::max_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
        return a->table.old_image_bytes() < b->table.old_image_bytes();
      });
  (*most)->old_image_waits.fetch_add(1, std::memory_order_relaxed);
}

void TableSet::FillStats(ServerStats* stats) const {
  for (const auto& entry : entries_) FillTableStats(*entry, stats->add_tables());
}

}  // namespace thermocline
