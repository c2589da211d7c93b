// What a lock stripe keeps for the snapshot that is being read: which rows belong to it, and the
// old images of those that were changed since.
#ifndef THERMOCLINE_SERVER_TABLES_ROW_CUT_H_
#define THERMOCLINE_SERVER_TABLES_ROW_CUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/ids.h"
#include "server/tables/row_storage.h"

namespace thermocline {

// Not thread-safe.
class RowCut {
 public:
  struct Image {
    RowMeta meta;
    const float* row;  // [row_floats]
  };

  // No row belongs to it.
  RowCut() = default;
  // Rows with oldest <= RowMeta::changed <= newest belong to it.
  RowCut(uint32_t oldest, uint32_t newest) : oldest_(oldest), newest_(newest) {}

  bool Contains(const RowMeta& meta) const {
    return meta.changed >= oldest_ && meta.changed <= newest_;
  }

  // Keeps what a row is, unless it is kept already. REQUIRES: Contains(meta)
  void Save(Key key, const RowMeta& meta, const float* weights, size_t dim, const float* slots,
            size_t slot_floats) {
    const auto [found, added] = images_.try_emplace(key);
    if (!added) return;
    if (images_.size() > chunks_.size() * kRowsPerChunk) {
      chunks_.push_back(std::make_unique<float[]>(kRowsPerChunk * (dim + slot_floats)));
      chunk_bytes_ += kRowsPerChunk * (dim + slot_floats) * sizeof(float);
    }
    float* row = chunks_.back().get() + (images_.size() - 1) % kRowsPerChunk * (dim + slot_floats);
    std::copy_n(weights, dim, row);
    std::copy_n(slots, slot_floats, row + dim);
    found->second = {meta, row};
  }

  // Null: not kept.
  const Image* Find(Key key) const {
    const auto found = images_.find(key);
    return found == images_.end() ? nullptr : &found->second;
  }

  const absl::flat_hash_map<Key, Image>& images() const { return images_; }
  uint64_t memory_bytes() const {
    return chunk_bytes_ + images_.capacity() * (sizeof(std::pair<Key, Image>) + 1);
  }

 private:
  static constexpr size_t kRowsPerChunk = 64;

  uint32_t oldest_ = 1;
  uint32_t newest_ = 0;
  absl::flat_hash_map<Key, Image> images_;
  uint64_t chunk_bytes_ = 0;
  std::vector<std::unique_ptr<float[]>> chunks_;  // [kRowsPerChunk, row_floats] each
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_ROW_CUT_H_
