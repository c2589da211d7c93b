#include "server/core/push_assembly.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

template <typename Vector>
bool SameBytes(const Vector& a, const Vector& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

bool SameContent(const wire::PushChunk& a, const wire::PushChunk& b) {
  if (a.tables.size() != b.tables.size()) return false;
  for (size_t i = 0; i < a.tables.size(); ++i) {
    const wire::PushRange& x = a.tables[i];
    const wire::PushRange& y = b.tables[i];
    if (x.table != y.table || x.kind != y.kind || x.begin != y.begin || x.count != y.count ||
        x.value_begin != y.value_begin || x.value_floats != y.value_floats) {
      return false;
    }
  }
  return SameBytes(a.keys, b.keys) && SameBytes(a.counts, b.counts) &&
         SameBytes(a.values, b.values);
}

std::string Describe(const wire::PushChunk& chunk) {
  return absl::StrCat("chunk ", chunk.chunk, " of ", chunk.num_chunks, " of the push of rank ",
                      chunk.header.rank.value(), " for step ", chunk.step.value());
}

}  // namespace

uint64_t BytesOf(const wire::PushChunk& chunk) {
  return sizeof(chunk) + chunk.tables.size() * sizeof(wire::PushRange) +
         chunk.keys.size() * sizeof(Key) + chunk.counts.size() * sizeof(uint32_t) +
         chunk.values.size() * sizeof(float);
}

absl::StatusOr<PushAssembly::Added> PushAssembly::Add(wire::PushChunk&& chunk) {
  if (chunk.num_chunks > kMaxChunks || chunk.chunk >= chunk.num_chunks) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(chunk), ": a push has between 1 and ", kMaxChunks, " chunks"));
  }
  if (empty()) {
    rank_ = chunk.header.rank;
    step_ = chunk.step;
    learning_rate_ = chunk.learning_rate;
    num_chunks_ = chunk.num_chunks;
  }
  CHECK_EQ(chunk.header.rank, rank_);
  if (chunk.step != step_ || chunk.num_chunks != num_chunks_ ||
      chunk.learning_rate != learning_rate_) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(chunk), " with learning rate ", chunk.learning_rate,
                     " contradicts the chunks before: ", num_chunks_, " chunks, step ",
                     step_.value(), ", learning rate ", learning_rate_));
  }
  const auto stored = chunks_.find(chunk.chunk);
  if (stored != chunks_.end()) {
    if (SameContent(stored->second, chunk)) return Added::kDuplicate;
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(chunk), " came before with another content"));
  }
  bytes_ += BytesOf(chunk);
  const uint32_t index = chunk.chunk;
  chunks_.emplace(index, std::move(chunk));
  return chunks_.size() == num_chunks_ ? Added::kComplete : Added::kStored;
}

void PushAssembly::Drop(uint32_t chunk) {
  const auto stored = chunks_.find(chunk);
  CHECK(stored != chunks_.end());
  bytes_ -= BytesOf(stored->second);
  chunks_.erase(stored);
}

AssembledPush PushAssembly::Take() {
  CHECK(!empty());
  CHECK_EQ(chunks_.size(), num_chunks_);
  AssembledPush push;
  push.rank = rank_;
  push.step = step_;
  push.learning_rate = learning_rate_;
  push.bytes = bytes_;
  push.chunks.reserve(chunks_.size());
  for (auto& [index, chunk] : chunks_) push.chunks.push_back(std::move(chunk));
  *this = PushAssembly();
  return push;
}

}  // namespace thermocline
