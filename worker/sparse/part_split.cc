#include "worker/sparse/part_split.h"

#include <algorithm>

#include "common/check.h"

namespace thermocline {
namespace {

size_t KeyBytes(const PullSlice&, size_t width) { return sizeof(Key) + width * sizeof(float); }
size_t KeyBytes(const PushSlice&, size_t width) {
  return sizeof(Key) + sizeof(uint32_t) + width * sizeof(float);
}

PullSlice Cut(const PullSlice& slice, size_t begin, size_t n, size_t width) {
  return {slice.table, slice.keys.subspan(begin, n), slice.rows.subspan(begin * width, n * width)};
}
PushSlice Cut(const PushSlice& slice, size_t begin, size_t n, size_t width) {
  return {slice.table, slice.kind, slice.keys.subspan(begin, n), slice.counts.subspan(begin, n),
          slice.values.subspan(begin * width, n * width)};
}

template <typename Slice>
std::vector<std::vector<Slice>> Split(absl::Span<const Slice> slices, size_t max_bytes,
                                      WidthOf<Slice> width_of) {
  CHECK_GT(max_bytes, 0u);
  size_t total_bytes = 0;
  for (const Slice& slice : slices) {
    total_bytes += slice.keys.size() * KeyBytes(slice, width_of(slice));
  }
  const size_t num_parts = (total_bytes + max_bytes - 1) / max_bytes;
  std::vector<std::vector<Slice>> parts;
  if (num_parts == 0) return parts;
  const size_t target_bytes = (total_bytes + num_parts - 1) / num_parts;
  size_t room_bytes = 0;  // Left in the last part.
  for (const Slice& slice : slices) {
    const size_t width = width_of(slice);
    const size_t key_bytes = KeyBytes(slice, width);
    for (size_t begin = 0; begin < slice.keys.size();) {
      if (room_bytes == 0) {
        parts.emplace_back();
        room_bytes = target_bytes;
      }
      const size_t fit = (room_bytes + key_bytes - 1) / key_bytes;
      const size_t n = std::min(fit, slice.keys.size() - begin);
      parts.back().push_back(Cut(slice, begin, n, width));
      room_bytes -= std::min(room_bytes, n * key_bytes);
      begin += n;
    }
  }
  return parts;
}

}  // namespace

std::vector<std::vector<PullSlice>> SplitPull(absl::Span<const PullSlice> slices, size_t max_bytes,
                                              WidthOf<PullSlice> width_of) {
  return Split(slices, max_bytes, width_of);
}

std::vector<std::vector<PushSlice>> SplitPush(absl::Span<const PushSlice> slices, size_t max_bytes,
                                              WidthOf<PushSlice> width_of) {
  return Split(slices, max_bytes, width_of);
}

}  // namespace thermocline
