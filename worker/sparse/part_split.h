// Cuts the work for one server into calls of about equal size.
#ifndef THERMOCLINE_WORKER_SPARSE_PART_SPLIT_H_
#define THERMOCLINE_WORKER_SPARSE_PART_SPLIT_H_

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "worker/sparse/transport.h"

namespace thermocline {

// Floats in one row or gradient of a slice.
template <typename Slice>
using WidthOf = absl::FunctionRef<size_t(const Slice&)>;

// Cuts `slices` into the fewest parts of at most about `max_bytes` (one key more at the most), all
// of about the same size, in the order of the keys. Slices without keys vanish; without any key the
// result is empty. Bytes are those of keys, counts and values.
std::vector<std::vector<PullSlice>> SplitPull(absl::Span<const PullSlice> slices, size_t max_bytes,
                                              WidthOf<PullSlice> width_of);
std::vector<std::vector<PushSlice>> SplitPush(absl::Span<const PushSlice> slices, size_t max_bytes,
                                              WidthOf<PushSlice> width_of);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_PART_SPLIT_H_
