// Many tables in one launch: the kernel's parameter is a slice of their descriptors, and every
// block works on one of them.
#ifndef THERMOCLINE_KERNELS_CUDA_SLICE_H_
#define THERMOCLINE_KERNELS_CUDA_SLICE_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cuda/launch.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

template <typename Item>
struct Slice {
  // So many items fit into a kernel's parameters, beside its scalars.
  static constexpr int kMaxItems =
      (kMaxParameterBytes - 256) / static_cast<int>(sizeof(Item) + sizeof(int32_t));

  int32_t num_items = 0;
  int32_t first_block[kMaxItems + 1] = {};
  Item items[kMaxItems];

  int32_t num_blocks() const { return first_block[num_items]; }
};

// The item that block blockIdx.x works on.
template <typename Item>
__device__ inline int ItemOfBlock(const Slice<Item>& slice) {
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  int low = 0, high = slice.num_items - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (slice.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The index of this thread among those of its item.
template <typename Item>
__device__ inline int64_t ThreadOfItem(const Slice<Item>& slice, int item) {
  const int64_t block = static_cast<int32_t>(blockIdx.x) - slice.first_block[item];
  return block * blockDim.x + threadIdx.x;
}

// Calls launch(slice) for as many slices as the items need: one, but for models with very many
// tables. blocks_of(item) blocks work on an item; slices without blocks are left out.
template <typename Item, typename BlocksOf, typename Launch>
void ForEachSlice(absl::Span<const Item> items, BlocksOf blocks_of, Launch launch) {
  static_assert(sizeof(Slice<Item>) + 128 <= kMaxParameterBytes, "and room for other parameters");
  for (size_t begin = 0; begin < items.size(); begin += Slice<Item>::kMaxItems) {
    Slice<Item> slice;
    const size_t end = std::min(begin + Slice<Item>::kMaxItems, items.size());
    for (size_t i = begin; i < end; ++i) {
      slice.items[slice.num_items] = items[i];
      slice.first_block[slice.num_items + 1] =
          slice.first_block[slice.num_items] + static_cast<int32_t>(blocks_of(items[i]));
      ++slice.num_items;
    }
    if (slice.num_blocks() > 0) launch(slice);
  }
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_SLICE_H_
