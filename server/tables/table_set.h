// All tables of one server, by id, with counts of the keys pulled and pushed.
//
// Thread-safe: the set itself is fixed at construction.
#ifndef THERMOCLINE_SERVER_TABLES_TABLE_SET_H_
#define THERMOCLINE_SERVER_TABLES_TABLE_SET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "server/tables/embedding_table.h"

namespace thermocline {

class ServerStats;  // proto/parameter_server.proto

class TableSet {
 public:
  struct Entry {
    Entry(const TableLayout& layout, uint64_t job_seed, TableSpill spill)
        : table(layout, job_seed, std::move(spill)) {}

    EmbeddingTable table;
    std::atomic<uint64_t> keys_pulled{0};  // For training.
    std::atomic<uint64_t> keys_read{0};    // For readers.
    std::atomic<uint64_t> old_image_waits{0};
    std::atomic<uint64_t> keys_pushed{0};
  };

  // spills: [layouts], without a store where all rows stay in memory; empty: all stay there.
  // REQUIRES: the ids are distinct.
  TableSet(absl::Span<const TableLayout> layouts, uint64_t job_seed,
           std::vector<TableSpill> spills = {});

  size_t size() const { return entries_.size(); }
  Entry& at(size_t position) { return *entries_[position]; }
  const Entry& at(size_t position) const { return *entries_[position]; }

  // Position of a table, in the order of the layouts; size() where there is none with this id.
  size_t Find(TableId id) const {
    const auto it = positions_.find(id);
    return it == positions_.end() ? entries_.size() : it->second;
  }

  // Sum of the digests of all rows. Errors: a table's.
  absl::StatusOr<Digest> ComputeDigest() const;
  // kResourceExhausted where rows can't be spilled and memory has no room for more.
  absl::Status CheckRoom() const;
  uint64_t num_rows() const;
  // An upper bound of the memory for weights and optimizer state.
  uint64_t row_bytes_in_memory() const;
  uint64_t old_image_bytes() const;
  // Counts a wait for the table with the most old images.
  void CountOldImageWait();

  void FillStats(ServerStats* stats) const;

 private:
  std::vector<std::unique_ptr<Entry>> entries_;
  absl::flat_hash_map<TableId, size_t> positions_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_TABLE_SET_H_
