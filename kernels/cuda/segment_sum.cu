// The canonical sum of every segment (kernels/device.h): chunks of 256 lookups, each summed in
// order, partials added in order.
//
// A segment of one chunk is summed by one team of threads (a thread holds Pack<kWidth> columns).
// The chunks of longer ones, which may hold most of a batch's lookups, are summed side by side
// first:
//
//   windows of 256 lookups:     |       0       |       1       |       2       |
//   segments:                    a  |  b                               |  c
//   b's chunks start:               ^ partial 0.1      ^ partial 1.0      ^ partial 2.0
//
// At most two segments longer than a window have a chunk that starts in a given window: one that
// began before the window (partial w.0), and the last that begins in it (partial w.1). So every
// window has two teams and two places for partial sums, and no thread needs to count chunks.
#include <vector>

#include "kernels/cuda/operations.h"
#include "kernels/cuda/slice.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

constexpr int kPartialsPerWindow = 2;
// Rows that a thread loads at a time. All are loaded before the first is added: where loads and
// sums take turns, the compiler keeps two or three.
constexpr int kRowsInFlight = 8;

struct SegmentWork {
  SegmentGroup group;
  float* partials = nullptr;  // [windows, kPartialsPerWindow, dim]
};

int64_t WindowsOf(const SegmentGroup& group) {
  // Without a second window there is no second chunk.
  return group.lookups.size > kSegmentChunk ? CeilDiv(group.lookups.size, kSegmentChunk) : 0;
}

// The last segment that begins at or before `position`. REQUIRES: 0 <= position
__device__ int32_t SegmentAt(const SegmentGroup& group, int32_t position) {
  int32_t low = 0, high = group.sums.rows - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (group.offsets.data[middle] <= position) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// The begin of the chunk of this partial of this window; where there is none, the segment's end.
struct Chunk {
  int32_t begin = 0, end = 0;
};

__device__ Chunk ChunkOfPartial(const SegmentGroup& group, int32_t window, int32_t partial) {
  if (group.sums.rows == 0) return {};
  const int32_t window_begin = window * kSegmentChunk;
  const int32_t window_end = window_begin + kSegmentChunk;
  const int32_t segment = SegmentAt(group, partial == 0 ? window_begin : window_end - 1);
  const int32_t first = group.offsets.data[segment], last = group.offsets.data[segment + 1];
  if (last - first <= kSegmentChunk) return {};
  const bool begins_before = first < window_begin;
  if (begins_before != (partial == 0)) return {};
  int32_t begin = first;
  if (partial == 0)
    begin += (window_begin - first + kSegmentChunk - 1) / kSegmentChunk * kSegmentChunk;
  if (begin >= last) return {};
  return {begin, last - begin < kSegmentChunk ? last : begin + kSegmentChunk};
}

// sum + load(0) + load(1) + ... + load(n - 1), in this order.
template <int kWidth, typename Load>
__device__ Pack<kWidth> AddInOrder(Pack<kWidth> sum, int32_t n, Load load) {
  Pack<kWidth> loaded[kRowsInFlight] = {};
  for (int32_t begin = 0; begin < n; begin += kRowsInFlight) {
    UNROLL(8)
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (begin + i < n) loaded[i] = load(begin + i);
    }
    UNROLL(8)
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (begin + i < n) sum.Add(loaded[i]);
    }
  }
  return sum;
}

template <int kWidth>
__device__ Pack<kWidth> SumInOrder(const Matrix& gradients, const SegmentGroup& group, Chunk chunk,
                                   int32_t column) {
  const int32_t* const lookups = group.lookups.data;
  const auto term = [&](int32_t j) {
    return LoadTerm<kWidth>(RowOf(gradients, lookups[j]) + column, group.weights, j);
  };
  const int32_t second = chunk.begin + 1;
  return AddInOrder<kWidth>(term(chunk.begin), chunk.end - second,
                            [&](int32_t i) { return term(second + i); });
}

// threads of a group: [windows, kPartialsPerWindow, dim / kWidth]
template <int kWidth>
__global__ void ChunkSumKernel(GRID_CONSTANT(Slice<SegmentWork>) slice, Matrix gradients) {
  const int item = ItemOfBlock(slice);
  const SegmentWork& work = slice.items[item];
  const int32_t packs = gradients.cols / kWidth;
  const int64_t thread = ThreadOfItem(slice, item);
  const int64_t place = thread / packs;
  const int32_t window = static_cast<int32_t>(place / kPartialsPerWindow);
  if (int64_t{window} * kSegmentChunk >= work.group.lookups.size) return;
  const Chunk chunk =
      ChunkOfPartial(work.group, window, static_cast<int32_t>(place % kPartialsPerWindow));
  if (chunk.begin == chunk.end) return;
  const int32_t column = static_cast<int32_t>(thread % packs) * kWidth;
  SumInOrder<kWidth>(gradients, work.group, chunk, column)
      .Store(work.partials + place * gradients.cols + column);
}

// The partial sums of one segment of several chunks, added in order.
template <int kWidth>
__device__ Pack<kWidth> AddPartials(const float* partials, int32_t dim, int32_t first, int32_t last,
                                    int32_t column) {
  const int64_t first_place = int64_t{first / kSegmentChunk} * kPartialsPerWindow + 1;
  const Pack<kWidth> sum = Pack<kWidth>::Load(partials + first_place * dim + column);
  const int32_t second = first + kSegmentChunk;
  const int32_t chunks = (last - second + kSegmentChunk - 1) / kSegmentChunk;
  return AddInOrder<kWidth>(sum, chunks, [&](int32_t i) {
    const int64_t place = int64_t{second / kSegmentChunk + i} * kPartialsPerWindow;
    return Pack<kWidth>::Load(partials + place * dim + column);
  });
}

// threads of a group: [segments, dim / kWidth]
template <int kWidth>
__global__ void SegmentSumKernel(GRID_CONSTANT(Slice<SegmentWork>) slice, Matrix gradients) {
  const int item = ItemOfBlock(slice);
  const SegmentWork& work = slice.items[item];
  const int32_t packs = gradients.cols / kWidth;
  const int64_t thread = ThreadOfItem(slice, item);
  const int64_t segment = thread / packs;
  if (segment >= work.group.sums.rows) return;
  const int32_t column = static_cast<int32_t>(thread % packs) * kWidth;
  const int32_t first = work.group.offsets.data[segment];
  const int32_t last = work.group.offsets.data[segment + 1];
  Pack<kWidth> sum = {};
  if (last - first > kSegmentChunk) {
    sum = AddPartials<kWidth>(work.partials, gradients.cols, first, last, column);
  } else if (last > first) {
    sum = SumInOrder<kWidth>(gradients, work.group, {first, last}, column);
  }
  sum.Store(RowOf(work.group.sums, segment) + column);
}

template <int kWidth>
void LaunchOfWidth(Matrix gradients, absl::Span<const SegmentWork> work, cudaStream_t stream) {
  const int64_t packs = gradients.cols / kWidth;
  const auto chunk_kernel = ChunkSumKernel<kWidth>;
  const auto segment_kernel = SegmentSumKernel<kWidth>;
  ForEachSlice(
      work,
      [packs](const SegmentWork& w) {
        return CeilDiv(WindowsOf(w.group) * kPartialsPerWindow * packs, kBlockThreads);
      },
      [&](const Slice<SegmentWork>& slice) {
        LAUNCH(chunk_kernel, slice.num_blocks(), kBlockThreads, stream, slice, gradients);
      });
  ForEachSlice(
      work,
      [packs](const SegmentWork& w) { return CeilDiv(w.group.sums.rows * packs, kBlockThreads); },
      [&](const Slice<SegmentWork>& slice) {
        LAUNCH(segment_kernel, slice.num_blocks(), kBlockThreads, stream, slice, gradients);
      });
}

}  // namespace

int64_t SegmentSumScratchFloats(absl::Span<const SegmentGroup> groups, int32_t dim) {
  int64_t windows = 0;
  for (const SegmentGroup& group : groups) windows += WindowsOf(group);
  return windows * kPartialsPerWindow * dim;
}

cudaError_t LaunchSegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups,
                             float* scratch, cudaStream_t stream) {
  std::vector<SegmentWork> work;
  bool packed = gradients.cols % 4 == 0 && RowsArePacked(gradients);
  for (const SegmentGroup& group : groups) {
    work.push_back({group, scratch});
    scratch += WindowsOf(group) * kPartialsPerWindow * gradients.cols;
    packed = packed && RowsArePacked(group.sums);
  }
  if (packed) {
    LaunchOfWidth<4>(gradients, work, stream);
  } else {
    LaunchOfWidth<1>(gradients, work, stream);
  }
  return cudaGetLastError();
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
