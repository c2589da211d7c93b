#include "worker/dense/dense_blocks.h"

#include <cstring>

#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {

DenseBlocks::DenseBlocks(const std::vector<DenseTable>& tensors, const ClusterMap& cluster,
                         Slice slice)
    : tensors_(tensors), ranges_(cluster.num_servers()), server_begin_(1) {
  CHECK_LT(slice.rank, slice.of);
  const ClusterMap ranks(slice.of);
  if (!tensors.empty()) {
    optimizer_ = tensors[0].layout.optimizer;
    state_floats_ = tensors[0].layout.state_floats();
  }
  for (uint32_t server = 0; server < cluster.num_servers(); ++server) {
    int64_t first_block = 0;  // of the tensor, in the arena
    for (const DenseTable& tensor : tensors) {
      CHECK(tensor.layout.optimizer == optimizer_);
      CHECK_EQ(tensor.layout.dim, kDenseBlockFloats);
      const uint64_t salt = TableSalt(tensor.layout.id);
      Range range{tensor.layout.id, static_cast<int64_t>(keys_.size()), 0};
      for (int64_t block = 0; block < tensor.num_blocks(); ++block) {
        const Key key = static_cast<Key>(block);
        const uint64_t hash = KeyHash(salt, key);
        if (cluster.ServerOfHash(hash) != ServerIndex(server) ||
            ranks.ServerOfHash(hash) != ServerIndex(slice.rank)) {
          continue;
        }
        keys_.push_back(key);
        arena_blocks_.push_back(first_block + block);
        ++range.count;
      }
      if (range.count > 0) ranges_[server].push_back(range);
      first_block += tensor.num_blocks();
    }
    arena_num_blocks_ = first_block;
    server_begin_.push_back(num_blocks());
  }
  no_lookups_.resize(keys_.size());
}

void DenseBlocks::Initialize(uint64_t seed, absl::Span<float> weights,
                             absl::Span<float> state) const {
  CHECK_EQ(weights.size(), static_cast<size_t>(arena_floats()));
  CHECK_EQ(state.size(), static_cast<size_t>(arena_num_blocks_ * state_floats_));
  std::vector<float> row(row_floats());
  size_t block = 0;
  for (const DenseTable& tensor : tensors_) {
    for (int64_t key = 0; key < tensor.num_blocks(); ++key, ++block) {
      InitialRow(tensor.layout, seed, static_cast<Key>(key), absl::MakeSpan(row));
      std::memcpy(&weights[block * kDenseBlockFloats], row.data(),
                  kDenseBlockFloats * sizeof(float));
      if (state_floats_ > 0) {
        std::memcpy(&state[block * state_floats_], &row[kDenseBlockFloats],
                    state_floats_ * sizeof(float));
      }
    }
  }
}

const DenseTable& DenseBlocks::TensorOf(int64_t arena_block) const {
  for (const DenseTable& tensor : tensors_) {
    if (arena_block < tensor.num_blocks()) return tensor;
    arena_block -= tensor.num_blocks();
  }
  CHECK(false);
  return tensors_.back();
}

PullsByServer DenseBlocks::Slices(absl::Span<float> rows, int floats_per_block) const {
  CHECK_EQ(rows.size(), static_cast<size_t>(num_blocks() * floats_per_block));
  PullsByServer slices(ranges_.size());
  for (size_t server = 0; server < ranges_.size(); ++server) {
    for (const Range& range : ranges_[server]) {
      slices[server].push_back(
          {range.table, absl::MakeConstSpan(keys_).subspan(range.begin, range.count),
           rows.subspan(range.begin * floats_per_block, range.count * floats_per_block)});
    }
  }
  return slices;
}

PullsByServer DenseBlocks::PullSlices(absl::Span<float> staged_weights) const {
  return Slices(staged_weights, kDenseBlockFloats);
}

PullsByServer DenseBlocks::PullRowSlices(absl::Span<float> staged_rows) const {
  return Slices(staged_rows, row_floats());
}

PushesByServer DenseBlocks::Slices(wire::PushKind kind, absl::Span<const float> values,
                                   int floats_per_block) const {
  CHECK_EQ(values.size(), static_cast<size_t>(num_blocks() * floats_per_block));
  PushesByServer slices(ranges_.size());
  for (size_t server = 0; server < ranges_.size(); ++server) {
    for (const Range& range : ranges_[server]) {
      slices[server].push_back(
          {range.table, kind, absl::MakeConstSpan(keys_).subspan(range.begin, range.count),
           absl::MakeConstSpan(no_lookups_).subspan(range.begin, range.count),
           values.subspan(range.begin * floats_per_block, range.count * floats_per_block)});
    }
  }
  return slices;
}

PushesByServer DenseBlocks::GradientSlices(absl::Span<const float> staged_gradients) const {
  return Slices(wire::PushKind::kGradient, staged_gradients, kDenseBlockFloats);
}

PushesByServer DenseBlocks::AssignSlices(absl::Span<const float> staged_rows) const {
  return Slices(wire::PushKind::kAssign, staged_rows, row_floats());
}

void DenseBlocks::UnstageWeights(absl::Span<const float> staged_weights,
                                 absl::Span<float> weights) const {
  for (int64_t i = 0; i < num_blocks(); ++i) {
    std::memcpy(&weights[arena_blocks_[i] * kDenseBlockFloats],
                &staged_weights[i * kDenseBlockFloats], kDenseBlockFloats * sizeof(float));
  }
}

void DenseBlocks::UnstageRows(absl::Span<const float> staged_rows, absl::Span<float> weights,
                              absl::Span<float> state) const {
  for (int64_t i = 0; i < num_blocks(); ++i) {
    const float* row = &staged_rows[i * row_floats()];
    std::memcpy(&weights[arena_blocks_[i] * kDenseBlockFloats], row,
                kDenseBlockFloats * sizeof(float));
    if (state_floats_ > 0) {
      std::memcpy(&state[arena_blocks_[i] * state_floats_], row + kDenseBlockFloats,
                  state_floats_ * sizeof(float));
    }
  }
}

void DenseBlocks::StageGradients(absl::Span<const float> gradients,
                                 absl::Span<float> staged_gradients) const {
  for (int64_t i = 0; i < num_blocks(); ++i) {
    std::memcpy(&staged_gradients[i * kDenseBlockFloats],
                &gradients[arena_blocks_[i] * kDenseBlockFloats],
                kDenseBlockFloats * sizeof(float));
  }
}

void DenseBlocks::StageRows(absl::Span<const float> weights, absl::Span<const float> state,
                            absl::Span<float> staged_rows) const {
  for (int64_t i = 0; i < num_blocks(); ++i) {
    float* row = &staged_rows[i * row_floats()];
    std::memcpy(row, &weights[arena_blocks_[i] * kDenseBlockFloats],
                kDenseBlockFloats * sizeof(float));
    if (state_floats_ > 0) {
      std::memcpy(row + kDenseBlockFloats, &state[arena_blocks_[i] * state_floats_],
                  state_floats_ * sizeof(float));
    }
  }
}

}  // namespace thermocline
