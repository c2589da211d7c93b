#include "tests/simulation/sabotaged_device.h"

#include <algorithm>

namespace thermocline {

bool SabotagedDevice::ReadsBefore() const {
  switch (reads_) {
    case Reads::kEvicted:
      return saboteur_.Has(PlantedFault::kEvictedEarly);
    case Reads::kSent:
      return saboteur_.Has(PlantedFault::kStaleHeldRows);
    case Reads::kWritten:
      return saboteur_.Has(PlantedFault::kWrittenEarly);
  }
  return false;
}

std::vector<RowCopy> SabotagedDevice::OfBefore(absl::Span<const RowCopy> copies) {
  std::vector<RowCopy> of_before;
  for (const RowCopy& copy : copies) {
    const auto slab = before_.find(copy.scattered.data);
    if (slab == before_.end()) continue;
    const auto is_there = [&](int32_t row) { return row < slab->second.rows; };
    if (!std::all_of(copy.rows.data, copy.rows.data + copy.rows.size, is_there)) continue;
    of_before.push_back(copy);
    of_before.back().scattered.data = slab->second.floats.data();
  }
  return of_before;
}

void SabotagedDevice::SparseUpdate(absl::Span<const RowUpdateGroup> groups) {
  for (const RowUpdateGroup& group : groups) {
    Before& before = before_[group.rows.data];
    before.rows = group.rows.rows;
    const int64_t floats = group.rows.rows * group.rows.ld;
    before.floats.assign(group.rows.floats(), group.rows.floats() + floats);
  }
  real_->SparseUpdate(groups);
}

void SabotagedDevice::GatherRows(absl::Span<const RowCopy> copies) {
  real_->GatherRows(copies);
  if (ReadsBefore()) real_->GatherRows(OfBefore(copies));
}

void SabotagedDevice::ScatterRows(absl::Span<const RowCopy> copies) {
  real_->ScatterRows(copies);
  real_->ScatterRows(OfBefore(copies));
  if (reads_ == Reads::kEvicted) reads_ = Reads::kSent;
}

}  // namespace thermocline
