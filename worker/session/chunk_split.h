// Cuts the work for one server into calls of about equal size.
#ifndef THERMOCLINE_WORKER_SESSION_CHUNK_SPLIT_H_
#define THERMOCLINE_WORKER_SESSION_CHUNK_SPLIT_H_

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "worker/session/transport.h"

namespace thermocline {

// What a message takes beside keys, counts and values, at the most: once, with a job id of the
// longest kind, and for each of its slices (tags, lengths, table, kind). chunk_split_test.cc holds
// both against the codec.
inline constexpr size_t kMaxHeaderBytes = 384;
inline constexpr size_t kMaxSliceHeaderBytes = 32;

// Floats in one row or gradient of a slice.
template <typename Slice>
using WidthOf = absl::FunctionRef<size_t(const Slice&)>;

// Cuts `slices` into parts of at most `max_message_bytes` on the wire, in the order of the keys,
// not many more than are needed and all of about the same size. Only a part of a single key may be
// larger. Slices without keys vanish; without any key the result is empty.
//
// A pull's keys and rows count together, although they travel in two messages: both keep the limit.
std::vector<std::vector<PullSlice>> SplitPull(absl::Span<const PullSlice> slices,
                                              size_t max_message_bytes,
                                              WidthOf<PullSlice> width_of);
std::vector<std::vector<wire::PushSlice>> SplitPush(absl::Span<const wire::PushSlice> slices,
                                                    size_t max_message_bytes,
                                                    WidthOf<wire::PushSlice> width_of);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SESSION_CHUNK_SPLIT_H_
