#include "deploy/plan/checkpoint_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/row_key.h"

namespace thermocline {
namespace {

// RocksDB adds 8 bytes to a key and 3 of lengths to a row; blocks have an index.
constexpr uint64_t kFileRowBytes = 12;

}  // namespace

uint64_t CheckpointRowBytes(uint64_t row_floats) {
  return kRowKeyBytes + RowValueBytes(row_floats) + kFileRowBytes;
}

PlanPart CheckpointPart(const Job& job, const CheckpointSizes& sizes) {
  const CheckpointPolicy& policy = job.checkpoint();
  const bool keeps_best = job.evaluate().keep_best();
  if (policy.every_steps() == 0 && !keeps_best) return {"one checkpoint", sizes.all_bytes};
  // The files of one that has all rows stay as long as one that builds on it is kept. So there may
  // be a whole row of those, the newer ones that are kept, the one that is being written, and the
  // row up to the best.
  const uint64_t row = std::max(1u, policy.full_every());
  uint64_t sets = row + policy.keep() + (keeps_best ? row : 0);
  if (sizes.steps > 0 && policy.every_steps() > 0 && !keeps_best) {
    const double made = std::ceil(sizes.steps / static_cast<double>(policy.every_steps())) + 1;
    sets = static_cast<uint64_t>(std::min(static_cast<double>(sets), made));
  }
  const uint64_t whole = (sets + row - 1) / row;
  if (row == 1) {
    return {absl::StrCat(sets, " checkpoints of all rows, at most"), sets * sizes.all_bytes};
  }
  const double every = static_cast<double>(policy.every_steps());
  const double changed =
      every > 0 ? every * sizes.changed_bytes_per_step : static_cast<double>(sizes.all_bytes);
  const double increment = std::min(static_cast<double>(sizes.all_bytes), changed);
  return {
      absl::StrCat("files of ", sets, " checkpoints, ", whole, " of them with all rows, at most"),
      whole * sizes.all_bytes +
          static_cast<uint64_t>(static_cast<double>(sets - whole) * increment)};
}

}  // namespace thermocline
