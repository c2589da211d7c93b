#include "worker/model/pooled_vectors.h"

#include <algorithm>

#include "common/base/check.h"

namespace thermocline {
PooledVectors::PooledVectors(Device* device, const PooledFeatures& features, PooledBuffer vectors,
                             PooledBuffer first_order)
    : device_(device), features_(features) {
  if (vectors.values != nullptr) parts_.push_back({vectors, features.dim, 0, {}});
  if (first_order.values != nullptr) parts_.push_back({first_order, 1, features.dim, {}});
}

std::vector<VectorPlace> PooledVectors::places() const {
  return PlacesSideBySide(static_cast<int32_t>(features_.features.size()), features_.leading);
}

void PooledVectors::Forward(const SparseBatch& batch) {
  batch_ = &batch;
  tables_.clear();
  for (Part& part : parts_) part.pool_inputs.clear();
  for (const int32_t f : features_.features) {
    const FeatureBatch& feature = batch.features[f];
    const Matrix& rows = batch.tables[feature.table].rows;
    CHECK_EQ(rows.cols, parts_.back().first_column + parts_.back().dim);
    for (Part& part : parts_) {
      part.pool_inputs.push_back({feature.pooling, ColumnsOf(rows, part.first_column, part.dim),
                                  feature.row_indices, feature.offsets, feature.weights});
    }
    tables_.push_back(feature.table);
  }
  std::sort(tables_.begin(), tables_.end());
  tables_.erase(std::unique(tables_.begin(), tables_.end()), tables_.end());
  for (const Part& part : parts_) {
    device_->PoolForward(part.pool_inputs, part.dim, features_.leading,
                         part.buffer.values->Rows(batch.batch_size));
  }
}

void PooledVectors::Backward(absl::Span<const Matrix> row_gradients) {
  CHECK_EQ(row_gradients.size(), batch_->tables.size());
  for (const Part& part : parts_) {
    const Matrix gradients = part.buffer.gradients->Rows(batch_->batch_size);
    device_->PoolBackward(part.pool_inputs, part.dim, features_.leading, gradients);
    segment_groups_.clear();
    for (const int32_t t : tables_) {
      const TableBatch& table = batch_->tables[t];
      segment_groups_.push_back({table.segment_bags, table.segment_offsets,
                                 ColumnsOf(row_gradients[t], part.first_column, part.dim),
                                 table.segment_weights});
    }
    const int32_t vectors = gradients.cols / part.dim;
    device_->SegmentSum(FloatMatrix(gradients.floats(), gradients.rows * vectors, part.dim),
                        segment_groups_);
  }
}

}  // namespace thermocline
