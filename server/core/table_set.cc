#include "server/core/table_set.h"

#include "common/check.h"
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
  stats->set_keys_pushed(entry.keys_pushed.load(std::memory_order_relaxed));
  stats->set_rows_created(entry.table.rows_created());
}

}  // namespace

TableSet::TableSet(absl::Span<const TableLayout> layouts, uint64_t job_seed) {
  for (const TableLayout& layout : layouts) {
    CHECK(positions_.emplace(layout.id, entries_.size()).second);
    entries_.push_back(std::make_unique<Entry>(layout, job_seed));
  }
}

Digest TableSet::ComputeDigest() const {
  Digest digest;
  for (const auto& entry : entries_) digest.Add(entry->table.ComputeDigest());
  return digest;
}

uint64_t TableSet::num_rows() const {
  uint64_t rows = 0;
  for (const auto& entry : entries_) rows += entry->table.num_rows();
  return rows;
}

void TableSet::FillStats(ServerStats* stats) const {
  for (const auto& entry : entries_) FillTableStats(*entry, stats->add_tables());
}

}  // namespace thermocline
