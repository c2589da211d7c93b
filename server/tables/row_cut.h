// The part of a snapshot in one lock stripe: which rows belong to the snapshot, and the old images
// of rows that were changed since it began.
#ifndef THERMOCLINE_SERVER_TABLES_ROW_CUT_H_
#define THERMOCLINE_SERVER_TABLES_ROW_CUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/ids.h"
#include "server/tables/row_storage.h"

namespace thermocline {

// Not thread-safe.
class RowCut {
 public:
  struct Image {
    RowMeta meta;
    float* row;  // [row_floats]; null: the key was a candidate.
  };

  // No row belongs to it.
  RowCut() = default;
  // Rows with oldest <= RowMeta::changed <= newest belong to it.
  RowCut(uint32_t oldest, uint32_t newest) : oldest_(oldest), newest_(newest) {}

  bool Contains(const RowMeta& meta) const {
    return meta.changed >= oldest_ && meta.changed <= newest_;
  }

  // Keeps the present image of a row. False: an older one is kept already. REQUIRES: Contains(meta)
  bool Save(Key key, const RowMeta& meta, const float* weights, size_t dim, const float* state,
            size_t state_floats) {
    const auto [found, added] = images_.try_emplace(key);
    if (!added) return false;
    if (free_.empty()) AddChunk(dim + state_floats);
    float* row = free_.back();
    free_.pop_back();
    std::copy_n(weights, dim, row);
    std::copy_n(state, state_floats, row + dim);
    found->second = {meta, row};
    return true;
  }

  // The same for a candidate.
  bool SaveCandidate(Key key, const RowMeta& meta) {
    return images_.try_emplace(key, Image{meta, nullptr}).second;
  }

  // Drops the images of keys for which is_read(key), and returns how many. Their room is used
  // again.
  template <typename IsRead>
  size_t Drop(IsRead is_read) {
    const size_t before = images_.size();
    absl::erase_if(images_, [&](const std::pair<const Key, Image>& image) {
      if (!is_read(image.first)) return false;
      if (image.second.row != nullptr) free_.push_back(image.second.row);
      return true;
    });
    return before - images_.size();
  }

  // Starts loading what Find(key) reads. Always inlined: see prefetch.h.
  ABSL_ATTRIBUTE_ALWAYS_INLINE inline void Prefetch(Key key) const { images_.prefetch(key); }

  // Null: the row has no image.
  const Image* Find(Key key) const {
    const auto found = images_.find(key);
    return found == images_.end() ? nullptr : &found->second;
  }

  const absl::flat_hash_map<Key, Image>& images() const { return images_; }
  uint64_t memory_bytes() const {
    return chunk_bytes_ + images_.capacity() * (sizeof(std::pair<Key, Image>) + 1) +
           free_.capacity() * sizeof(float*);
  }
  // The approximate memory of an image.
  static constexpr uint64_t BytesPerImage(size_t row_floats) {
    return row_floats * sizeof(float) + sizeof(std::pair<Key, Image>) + 1;
  }

 private:
  static constexpr size_t kRowsPerChunk = 64;

  void AddChunk(size_t row_floats) {
    chunks_.push_back(std::make_unique<float[]>(kRowsPerChunk * row_floats));
    chunk_bytes_ += kRowsPerChunk * row_floats * sizeof(float);
    for (size_t i = kRowsPerChunk; i > 0; --i) {
      free_.push_back(chunks_.back().get() + (i - 1) * row_floats);
    }
  }

  uint32_t oldest_ = 1;
  uint32_t newest_ = 0;
  absl::flat_hash_map<Key, Image> images_;
  uint64_t chunk_bytes_ = 0;
  std::vector<std::unique_ptr<float[]>> chunks_;  // [kRowsPerChunk, row_floats] each
  std::vector<float*> free_;                      // Rows of chunks_ that hold no image.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_ROW_CUT_H_
