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

bool SameContent(const wire::PushPart& a, const wire::PushPart& b) {
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

std::string Describe(const wire::PushPart& part) {
  return absl::StrCat("part ", part.part, " of ", part.num_parts, " of the push of rank ",
                      part.header.rank.value(), " for step ", part.step.value());
}

}  // namespace

uint64_t BytesOf(const wire::PushPart& part) {
  return sizeof(part) + part.tables.size() * sizeof(wire::PushRange) +
         part.keys.size() * sizeof(Key) + part.counts.size() * sizeof(uint32_t) +
         part.values.size() * sizeof(float);
}

absl::StatusOr<PushAssembly::Added> PushAssembly::Add(wire::PushPart&& part) {
  if (part.num_parts > kMaxParts || part.part >= part.num_parts) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(part), ": a push has between 1 and ", kMaxParts, " parts"));
  }
  if (empty()) {
    rank_ = part.header.rank;
    step_ = part.step;
    learning_rate_ = part.learning_rate;
    num_parts_ = part.num_parts;
  }
  CHECK_EQ(part.header.rank, rank_);
  if (part.step != step_ || part.num_parts != num_parts_ || part.learning_rate != learning_rate_) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(part), " with learning rate ", part.learning_rate,
                     " contradicts the parts before: ", num_parts_, " parts, step ", step_.value(),
                     ", learning rate ", learning_rate_));
  }
  const auto stored = parts_.find(part.part);
  if (stored != parts_.end()) {
    if (SameContent(stored->second, part)) return Added::kDuplicate;
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(part), " came before with another content"));
  }
  bytes_ += BytesOf(part);
  const uint32_t index = part.part;
  parts_.emplace(index, std::move(part));
  return parts_.size() == num_parts_ ? Added::kComplete : Added::kStored;
}

void PushAssembly::Drop(uint32_t part) {
  const auto stored = parts_.find(part);
  CHECK(stored != parts_.end());
  bytes_ -= BytesOf(stored->second);
  parts_.erase(stored);
}

AssembledPush PushAssembly::Take() {
  CHECK(!empty());
  CHECK_EQ(parts_.size(), num_parts_);
  AssembledPush push;
  push.rank = rank_;
  push.step = step_;
  push.learning_rate = learning_rate_;
  push.bytes = bytes_;
  push.parts.reserve(parts_.size());
  for (auto& [index, part] : parts_) push.parts.push_back(std::move(part));
  *this = PushAssembly();
  return push;
}

}  // namespace thermocline
