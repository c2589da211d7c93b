#include "common/job/cache_layout.h"

#include <algorithm>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/job/model_memory.h"

namespace thermocline {
namespace {

bool KeepsRows(const JobTables& tables, size_t t) {
  return HoldsRows(tables, t) && tables.PlacementOf(t) == TableSettings::DEVICE;
}

bool IsOfGroup(const JobTables& tables, const CacheGroupLayout& group, size_t t) {
  const TableLayout& first = tables.sparse[group.tables.front()];
  return first.dim == tables.sparse[t].dim &&
         first.row_optimizer() == tables.sparse[t].row_optimizer() &&
         group.holds_rows == HoldsRows(tables, t) && group.keeps_rows == KeepsRows(tables, t);
}

// Columns that read the tables of the group.
int64_t ColumnsOf(const JobTables& tables, const CacheGroupLayout& group) {
  int64_t columns = 0;
  for (const FeatureSpec& feature : tables.features) {
    if (std::count(group.tables.begin(), group.tables.end(), feature.table_index) > 0) {
      columns += feature.columns;
    }
  }
  return columns;
}

uint64_t BatchBytes(const CacheGroupLayout& group) {
  return static_cast<uint64_t>(group.batch_rows) * group.row_bytes();
}

// The bytes that a worker needs for the rows of a group that it does not hold.
uint64_t StagingBytes(const CacheGroupLayout& group, CacheUse use) {
  if (use != CacheUse::kShared) return BatchBytes(group);
  return sizeof(float) * group.batch_rows * group.dim * (group.holds_rows ? 3 : 1);
}

absl::Status TooSmall(const JobTables& tables, const CacheLayout& layout, CacheUse use,
                      uint64_t needed) {
  std::string message = absl::StrCat(
      "cache.budget is ", layout.budget_bytes, " bytes; at least ", needed,
      use == CacheUse::kShared ? " are needed by each worker, for the rows of its batch, for those "
                                 "that it sends other workers, their gradients, "
                                 "and one more that it holds:"
                               : " are needed, for the rows of one batch and one more:");
  for (const CacheGroupLayout& group : layout.groups) {
    const uint64_t staged_bytes = use == CacheUse::kShared ? group.dim * sizeof(float) : 0;
    absl::StrAppend(&message, " ");
    if (staged_bytes == 0) {
      absl::StrAppend(&message, group.batch_rows, group.holds_rows ? " + 1" : "", " rows of ",
                      group.row_bytes(), " bytes");
    } else {
      absl::StrAppend(&message, group.holds_rows ? "3 x " : "", group.batch_rows, " rows of ",
                      staged_bytes, " bytes");
      if (group.holds_rows) absl::StrAppend(&message, " and one of ", group.row_bytes());
    }
    absl::StrAppend(&message, " for ", group.tables.size(), " table",
                    group.tables.size() == 1 ? "" : "s", " like '",
                    tables.sparse[group.tables.front()].name, "'");
    if (&group != &layout.groups.back()) absl::StrAppend(&message, ",");
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace

std::vector<CacheGroupLayout> GroupTables(const JobTables& tables) {
  std::vector<CacheGroupLayout> groups;
  for (size_t t = 0; t < tables.sparse.size(); ++t) {
    const TableLayout& table = tables.sparse[t];
    auto group = std::find_if(groups.begin(), groups.end(), [&](const CacheGroupLayout& other) {
      return IsOfGroup(tables, other, t);
    });
    if (group == groups.end()) {
      group = groups.emplace(groups.end());
      group->dim = table.dim;
      group->holds_rows = HoldsRows(tables, t);
      group->keeps_rows = KeepsRows(tables, t);
      group->row_floats = table.row_floats();
      group->stride = DeviceRowFloats(group->row_floats);
    }
    group->tables.push_back(static_cast<int32_t>(t));
  }
  return groups;
}

int64_t CacheLayout::capacity_rows() const {
  int64_t rows = 0;
  for (const CacheGroupLayout& group : groups) rows += group.capacity;
  return rows;
}

int64_t CacheLayout::kept_capacity_rows() const {
  int64_t rows = 0;
  for (const CacheGroupLayout& group : groups) rows += group.keeps_rows ? group.capacity : 0;
  return rows;
}

uint64_t CacheLayout::capacity_bytes() const {
  uint64_t bytes = 0;
  for (const CacheGroupLayout& group : groups) {
    bytes += static_cast<uint64_t>(group.capacity) * group.row_bytes();
  }
  return bytes;
}

absl::Status NoRoomToKeep(const CacheLayout& layout, int32_t table, const std::string& name,
                          int64_t rows) {
  const auto group =
      std::find_if(layout.groups.begin(), layout.groups.end(), [&](const CacheGroupLayout& g) {
        return std::count(g.tables.begin(), g.tables.end(), table) > 0;
      });
  CHECK(group != layout.groups.end());
  const size_t others = group->tables.size() - 1;
  return absl::InvalidArgumentError(absl::StrCat(
      "table '", name, "' has placement DEVICE, and its rows",
      others == 0 ? "" : absl::StrCat(", with those of ", others, " more such table"),
      others > 1 ? "s" : "", others == 0 ? "" : ",", " take ", rows * group->row_bytes(),
      " bytes so far; cache.budget is ", layout.budget_bytes, " bytes, of which ",
      group->capacity * group->row_bytes(), " are for them"));
}

absl::StatusOr<CacheLayout> LayOutCache(const JobTables& tables, int64_t batch_samples,
                                        CacheUse use, uint64_t budget_bytes) {
  CacheLayout layout;
  layout.budget_bytes = budget_bytes;
  layout.groups = GroupTables(tables);
  uint64_t batch_bytes = 0, least_bytes = 0;  // batch_bytes: of the groups that hold rows
  for (CacheGroupLayout& group : layout.groups) {
    group.batch_rows = static_cast<int32_t>(
        std::min<int64_t>(batch_samples * ColumnsOf(tables, group), int64_t{1} << 30));
    group.staging_rows = use == CacheUse::kShared || group.keeps_rows ? 0 : group.batch_rows;
    const uint64_t bytes = StagingBytes(group, use);
    batch_bytes += group.holds_rows ? BatchBytes(group) : 0;
    least_bytes += bytes + (group.holds_rows ? group.row_bytes() : 0);
  }
  if (budget_bytes < least_bytes) return TooSmall(tables, layout, use, least_bytes);
  // Each group gets what is left by the bytes that a batch reads of it.
  const absl::uint128 left_bytes = budget_bytes - least_bytes;
  for (CacheGroupLayout& group : layout.groups) {
    if (!group.holds_rows) continue;
    const absl::uint128 more = left_bytes * group.batch_rows / std::max<uint64_t>(batch_bytes, 1);
    // Rows of a batch that need no staging are held.
    const int64_t least =
        1 + (use == CacheUse::kShared ? 0 : group.batch_rows - group.staging_rows);
    group.capacity = static_cast<int32_t>(std::min<absl::uint128>(more + least, kMaxCacheCapacity));
  }
  return layout;
}

absl::StatusOr<uint64_t> StaticRowBytes(const JobTables& tables, int64_t batch_samples,
                                        uint64_t budget_bytes) {
  ASSIGN_OR_RETURN(const CacheLayout layout,
                   LayOutCache(tables, batch_samples, CacheUse::kOwned, budget_bytes));
  uint64_t bytes = budget_bytes;
  for (const CacheGroupLayout& group : layout.groups)
    bytes -= StagingBytes(group, CacheUse::kOwned);
  return bytes;
}

}  // namespace thermocline
