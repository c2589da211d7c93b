#include "worker/rows/row_gradients.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

absl::Status NotFinite(Step step, const TableLayout& table, absl::string_view what, Key key) {
  return absl::InvalidArgumentError(absl::StrCat("step ", step.value(), ": ", what, " of table '",
                                                 table.name, "', key ", key, " is not finite",
                                                 kRateHint));
}

}  // namespace

RowGradients::RowGradients(const std::vector<TableLayout>& tables, Device* device)
    : tables_(tables), device_(device), bad_gradient_(device->Allocate(sizeof(int64_t))) {}

absl::Status RowGradients::Place(StepContext* context) {
  size_t floats = 0;
  for (size_t t = 0; t < tables_.size(); ++t) {
    floats += context->plan.tables[t].keys.size() * tables_[t].dim;
  }
  if (size_ < floats) {
    RETURN_IF_ERROR(device_->Synchronize());
    size_ = floats + floats / 4;
    gradients_ = device_->Allocate(sizeof(float) * size_);
    RETURN_IF_ERROR(device_->Synchronize());
  }
  float* next = gradients_ != nullptr ? gradients_->floats() : nullptr;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const int32_t num_unique = context->plan.tables[t].num_unique();
    const int dim = tables_[t].dim;
    context->tables[t].gradients = FloatMatrix(next, num_unique, dim);
    next += size_t{1} * num_unique * dim;
  }
  return absl::OkStatus();
}

void RowGradients::FindBad(StepContext* context) {
  int64_t floats = 0;
  for (const TableOperands& table : context->tables) {
    floats += int64_t{table.gradients.rows} * table.gradients.cols;
  }
  if (gradients_ == nullptr || bad_gradient_->data() == nullptr) return;
  for (const TableOperands& table : context->tables) {
    for (size_t u = 0; u < table.has_gradient.size(); ++u) {
      if (table.has_gradient[u] != 0) continue;
      std::fill_n(table.gradients.row(static_cast<int64_t>(u)), table.gradients.cols, 0.0f);
    }
  }
  auto* const index = static_cast<int64_t*>(bad_gradient_->data());
  device_->FindNonFinite({gradients_->floats(), floats}, {index, 1});
  device_->CopyToHost(&context->outcome()->bad_row_gradient, index, sizeof(int64_t),
                      Stream::kCompute);
}

absl::Status RowGradients::Check(const StepContext& context) const {
  int64_t at = context.outcome()->bad_row_gradient;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const int64_t dim = tables_[t].dim;
    const int64_t floats = int64_t{context.tables[t].gradients.rows} * dim;
    if (at < floats) {
      return NotFinite(context.step(), tables_[t], "the gradient",
                       context.plan.tables[t].keys[at / dim]);
    }
    at -= floats;
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(Step step, const TableLayout& table, absl::Span<const float> values,
                         absl::string_view what, const std::function<Key(size_t)>& key_of) {
  const size_t bad = FindNonFinite(values);
  if (bad == values.size()) return absl::OkStatus();
  return NotFinite(step, table, what, key_of(bad / table.dim));
}

}  // namespace thermocline
