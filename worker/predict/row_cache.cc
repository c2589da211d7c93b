#include "worker/predict/row_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr uint32_t kRowsPerChunk = 4096;
// The memory of the index for one row, with its slack.
constexpr uint64_t kIndexBytes = 40;

}  // namespace

float* RowCache::Rows::At(uint32_t row) const {
  return chunks_[row / kRowsPerChunk].get() + static_cast<size_t>(row % kRowsPerChunk) * dim_;
}

const float* RowCache::Rows::Find(Key key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : At(found->second);
}

float* RowCache::Rows::Add(Key key) {
  const auto row = static_cast<uint32_t>(index_.size());
  CHECK(index_.emplace(key, row).second);
  if (row / kRowsPerChunk == chunks_.size()) {
    chunks_.emplace_back(new float[size_t{kRowsPerChunk} * dim_]);
  }
  return At(row);
}

RowCache::RowCache(RowLookup* lookup, std::vector<TableLayout> tables, uint64_t seed,
                   uint64_t memory_bytes)
    : lookup_(lookup),
      tables_(std::move(tables)),
      seed_(seed),
      generation_bytes_(memory_bytes / 2),
      young_(NoRows()),
      old_(NoRows()) {}

std::vector<RowCache::Rows> RowCache::NoRows() const {
  std::vector<Rows> rows;
  for (const TableLayout& table : tables_) rows.emplace_back(table.dim);
  return rows;
}

uint64_t RowCache::BytesOf(const BatchPlan& plan) const {
  uint64_t bytes = 0;
  for (size_t t = 0; t < tables_.size(); ++t) {
    bytes += plan.tables[t].keys.size() * (kIndexBytes + tables_[t].dim * sizeof(float));
  }
  return bytes;
}

absl::StatusOr<bool> RowCache::Want(const BatchPlan& plan) {
  const uint64_t bytes = BytesOf(plan);
  if (bytes > generation_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the rows that a batch reads take ", bytes, " bytes, and half of --memory is ",
                     generation_bytes_,
                     "; give it more memory, or smaller batches (--set "
                     "train.eval_batch_size=...)"));
  }
  if (young_bytes_ + bytes > generation_bytes_) {
    if (block_bytes_ > 0) return false;
    old_ = std::exchange(young_, NoRows());
    young_bytes_ = 0;
  }
  block_bytes_ += bytes;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const int dim = tables_[t].dim;
    for (const Key key : plan.tables[t].keys) {
      if (young_[t].Find(key) != nullptr) continue;
      float* const row = young_[t].Add(key);
      young_bytes_ += kIndexBytes + dim * sizeof(float);
      if (const float* const old = old_[t].Find(key)) {
        std::memcpy(row, old, dim * sizeof(float));
      } else {
        missing_.push_back({RowKeyOf(tables_[t].id, key), static_cast<int>(t), row});
      }
    }
  }
  return true;
}

absl::Status RowCache::Load() {
  std::sort(missing_.begin(), missing_.end(),
            [](const Missing& a, const Missing& b) { return a.key < b.key; });
  std::vector<RowKey> keys;
  std::vector<char> found(missing_.size());  // Not bool, since several threads write it.
  for (const Missing& missing : missing_) keys.push_back(missing.key);
  RETURN_IF_ERROR(lookup_->Read(keys, [&](size_t i, const SavedRow& row) {
    found[i] = 1;
    std::copy_n(row.values.begin(), tables_[missing_[i].table].dim, missing_[i].row);
  }));
  std::vector<float> initial;
  for (size_t i = 0; i < missing_.size(); ++i) {
    if (found[i] != 0) {
      ++rows_read_;
      continue;
    }
    const TableLayout& table = tables_[missing_[i].table];
    initial.resize(table.row_floats());
    InitialRow(table, seed_, missing_[i].key.key, absl::MakeSpan(initial));
    std::copy_n(initial.begin(), table.dim, missing_[i].row);
  }
  missing_.clear();
  return absl::OkStatus();
}

void RowCache::CopyRows(const TablePlan& plan, int table, absl::Span<float> rows) const {
  const int dim = tables_[table].dim;
  CHECK_EQ(rows.size(), plan.keys.size() * dim);
  float* to = rows.data();
  for (const Key key : plan.keys) {
    const float* const row = young_[table].Find(key);
    CHECK(row != nullptr);
    std::memcpy(to, row, dim * sizeof(float));
    to += dim;
  }
}

}  // namespace thermocline
