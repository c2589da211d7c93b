#include "server/core/push_acceptance.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

template <typename Vector>
bool SameBytes(const Vector& a, const Vector& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

bool SameContent(const wire::PushChunk& a, const wire::PushChunk& b) {
  if (a.tables.size() != b.tables.size() || a.row_limits != b.row_limits) return false;
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

// Memory for larger tables is given back after the check.
constexpr size_t kMaxKeptKeys = size_t{1} << 19;
// How many keys ahead an entry is fetched, where there are too many for the nearest caches.
constexpr size_t kAhead = 16;
constexpr size_t kMinKeysToFetch = 20000;

}  // namespace

PushLedger::Order PushLedger::OrderOf(WorkerRank rank, Step step) const {
  CHECK_LT(rank.value(), num_workers());
  const Step accepted = accepted_through(rank);
  if (step <= accepted) return Order::kDuplicate;
  return step == accepted + 1 ? Order::kNext : Order::kEarly;
}

absl::Status PushLedger::CheckAcknowledged(WorkerRank rank, Step acked_through) const {
  CHECK_LT(rank.value(), num_workers());
  if (acked_through <= accepted_through(rank)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "rank ", rank.value(), " was acknowledged step ", acked_through.value(),
      ", but this server knows of no push beyond step ", accepted_through(rank).value()));
}

void PushLedger::Accept(WorkerRank rank, Step step) {
  CHECK(OrderOf(rank, step) == Order::kNext);
  accepted_through_[rank.value()] = step;
}

uint64_t BytesOf(const wire::PushChunk& chunk) {
  return sizeof(chunk) + chunk.tables.size() * sizeof(wire::PushRange) +
         chunk.row_limits.size() * sizeof(wire::RowLimit) + chunk.keys.size() * sizeof(Key) +
         chunk.counts.size() * sizeof(uint32_t) + chunk.values.size() * sizeof(float);
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

absl::Status DistinctKeys::Check(const std::map<uint32_t, wire::PushChunk>& chunks) {
  groups_.clear();
  if (chunks.empty()) return absl::OkStatus();
  for (const auto& [index, chunk] : chunks) {
    for (const wire::PushRange& range : chunk.tables) {
      groups_.push_back({range.table, range.kind, chunk.KeysOf(range)});
    }
  }
  const absl::Status status = CheckGroups(chunks.begin()->second);
  if (seen_.capacity() > kMaxKeptKeys) seen_ = {};
  return status;
}

absl::Status DistinctKeys::CheckGroups(const wire::PushChunk& first) {
  const auto place = [](const Group& group) { return std::tie(group.table, group.kind); };
  std::sort(groups_.begin(), groups_.end(),
            [&](const Group& a, const Group& b) { return place(a) < place(b); });
  for (auto begin = groups_.begin(); begin != groups_.end();) {
    size_t num_keys = 0;
    auto end = begin;
    for (; end != groups_.end() && place(*end) == place(*begin); ++end) {
      num_keys += end->keys.size();
    }
    if (num_keys >= KeyNumbers::kMaxKeys) {
      return absl::OutOfRangeError(absl::StrCat(
          "rank ", first.header.rank.value(), ", step ", first.step.value(), ": the push has ",
          num_keys, " keys of one table; at most ", KeyNumbers::kMaxKeys - 1, " are possible"));
    }
    seen_.Begin(num_keys);
    const size_t ahead = num_keys < kMinKeysToFetch ? num_keys : kAhead;
    for (; begin != end; ++begin) {
      const size_t twice = Insert(TableSalt(begin->table), begin->keys, ahead);
      if (twice == begin->keys.size()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", first.header.rank.value(), ", step ", first.step.value(), ": the push has key ",
          begin->keys[twice], " of table ", begin->table.value(), " twice"));
    }
  }
  return absl::OkStatus();
}

size_t DistinctKeys::Insert(uint64_t table_salt, absl::Span<const Key> keys, size_t ahead) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + ahead < keys.size()) seen_.Prefetch(KeyHash(table_salt, keys[i + ahead]));
    const uint32_t next = seen_.size();
    if (seen_.Add(keys[i], KeyHash(table_salt, keys[i])) != next) return i;
  }
  return keys.size();
}

}  // namespace thermocline
