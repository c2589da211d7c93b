#include <algorithm>

#include "worker/session/transport.h"

namespace thermocline {
namespace {

size_t KeyBytes(const PullSlice&, size_t width) { return sizeof(Key) + width * sizeof(float); }
size_t KeyBytes(const wire::PushSlice&, size_t width) {
  return sizeof(Key) + sizeof(uint32_t) + width * sizeof(float);
}

PullSlice Cut(const PullSlice& slice, size_t begin, size_t n, size_t width) {
  return {slice.table, slice.keys.subspan(begin, n), slice.rows.subspan(begin * width, n * width)};
}
wire::PushSlice Cut(const wire::PushSlice& slice, size_t begin, size_t n, size_t width) {
  return {slice.table, slice.kind, slice.keys.subspan(begin, n), slice.counts.subspan(begin, n),
          slice.values.subspan(begin * width, n * width)};
}

size_t DivideUp(size_t a, size_t b) { return (a + b - 1) / b; }

// Returns the bytes for the next chunk, so that all remaining chunks get the same size. The chunk
// begins a slice or continues a cut one; that slice's header is not in `left_bytes`.
size_t EvenChunkBytes(size_t left_bytes, size_t max_bytes) {
  const size_t chunks_left = DivideUp(left_bytes, max_bytes - kMaxSliceHeaderBytes);
  return DivideUp(left_bytes, chunks_left) + kMaxSliceHeaderBytes;
}

// Returns how many keys bring a chunk from `chunk_bytes` nearest to `aim_bytes` within `max_bytes`.
size_t KeysToAdd(size_t chunk_bytes, size_t aim_bytes, size_t max_bytes, size_t key_bytes) {
  const size_t wanted_bytes = aim_bytes - std::min(aim_bytes, chunk_bytes);
  const size_t room_bytes = max_bytes - std::min(max_bytes, chunk_bytes);
  return std::min((wanted_bytes + key_bytes / 2) / key_bytes, room_bytes / key_bytes);
}

template <typename Slice>
std::vector<std::vector<Slice>> Split(absl::Span<const Slice> slices, size_t max_message_bytes,
                                      WidthOf<Slice> width_of) {
  // Room for one chunk's slices; at least some bytes, even where a single key does not fit.
  const size_t max_bytes =
      std::max(max_message_bytes, kMaxHeaderBytes + kMaxSliceHeaderBytes + 1) - kMaxHeaderBytes;
  size_t left_bytes = 0;  // Bytes that are not in a chunk yet.
  for (const Slice& slice : slices) {
    if (slice.keys.empty()) continue;
    left_bytes += kMaxSliceHeaderBytes + slice.keys.size() * KeyBytes(slice, width_of(slice));
  }
  std::vector<std::vector<Slice>> chunks;
  size_t chunk_bytes = 0, aim_bytes = 0;
  for (const Slice& slice : slices) {
    if (slice.keys.empty()) continue;
    const size_t width = width_of(slice);
    const size_t key_bytes = KeyBytes(slice, width);
    left_bytes -= kMaxSliceHeaderBytes;
    for (size_t begin = 0; begin < slice.keys.size();) {
      chunk_bytes += kMaxSliceHeaderBytes;
      size_t n = KeysToAdd(chunk_bytes, aim_bytes, max_bytes, key_bytes);
      if (n == 0) {
        chunks.emplace_back();
        chunk_bytes = kMaxSliceHeaderBytes;
        aim_bytes = EvenChunkBytes(left_bytes, max_bytes);
        n = std::max<size_t>(1, KeysToAdd(chunk_bytes, aim_bytes, max_bytes, key_bytes));
      }
      n = std::min(n, slice.keys.size() - begin);
      chunks.back().push_back(Cut(slice, begin, n, width));
      begin += n;
      chunk_bytes += n * key_bytes;
      left_bytes -= n * key_bytes;
    }
  }
  return chunks;
}

}  // namespace

std::vector<std::vector<PullSlice>> SplitPull(absl::Span<const PullSlice> slices,
                                              size_t max_message_bytes,
                                              WidthOf<PullSlice> width_of) {
  return Split(slices, max_message_bytes, width_of);
}

std::vector<std::vector<wire::PushSlice>> SplitPush(absl::Span<const wire::PushSlice> slices,
                                                    size_t max_message_bytes,
                                                    WidthOf<wire::PushSlice> width_of) {
  return Split(slices, max_message_bytes, width_of);
}

}  // namespace thermocline
