#include "worker/model/pooled_vectors.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace thermocline {

PooledVectors::PooledVectors(Device* device, std::vector<int32_t> features, int32_t dim,
                             int32_t leading, int32_t max_batch)
    : device_(device),
      features_(std::move(features)),
      dim_(dim),
      leading_(leading),
      values_(device, max_batch, vectors() * dim),
      gradients_(device, max_batch, vectors() * dim) {
  CHECK_GE(dim, 1);
}

std::vector<VectorPlace> PooledVectors::places() const {
  return PlacesSideBySide(static_cast<int32_t>(features_.size()), leading_);
}

void PooledVectors::Forward(const SparseBatch& batch) {
  batch_ = &batch;
  pool_inputs_.clear();
  tables_.clear();
  for (const int32_t f : features_) {
    const FeatureBatch& feature = batch.features[f];
    const Matrix& rows = batch.tables[feature.table].rows;
    CHECK_EQ(rows.cols, dim_);
    pool_inputs_.push_back(
        {feature.pooling, rows, feature.row_indices, feature.offsets, feature.weights});
    tables_.push_back(feature.table);
  }
  std::sort(tables_.begin(), tables_.end());
  tables_.erase(std::unique(tables_.begin(), tables_.end()), tables_.end());
  device_->PoolForward(pool_inputs_, dim_, leading_, values(batch.batch_size));
}

void PooledVectors::Backward(absl::Span<const Matrix> row_gradients) {
  CHECK_EQ(row_gradients.size(), batch_->tables.size());
  const int32_t batch_size = batch_->batch_size;
  device_->PoolBackward(pool_inputs_, dim_, leading_, gradients(batch_size));
  segment_groups_.clear();
  for (const int32_t t : tables_) {
    const TableBatch& table = batch_->tables[t];
    segment_groups_.push_back(
        {table.segment_bags, table.segment_offsets, row_gradients[t], table.segment_weights});
  }
  const Matrix by_vector =
      FloatMatrix(gradients(batch_size).floats(), batch_size * vectors(), dim_);
  device_->SegmentSum(by_vector, segment_groups_);
}

}  // namespace thermocline
