#include "worker/train/script_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"

namespace thermocline {
namespace {

template <typename T>
void CopyTo(void* to, const T& from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(from[0]));
}

bool IsLast(const StepContext& context) { return context.behind.kind == StepBehind::Kind::kEnd; }

}  // namespace

ScriptStep::ScriptStep(const JobTables& tables, Device* device, ScriptRun* script)
    : tables_(tables),
      device_(device),
      script_(script),
      table_places_(tables.sparse.size()),
      feature_offsets_(tables.features.size()),
      position_of_row_(tables.sparse.size()) {
  CHECK(device->is_host_memory());
  std::vector<int> dims;
  for (const TableLayout& table : tables_.sparse) dims.push_back(table.dim);
  std::sort(dims.begin(), dims.end());
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  groups_.resize(dims.size());
  for (size_t g = 0; g < dims.size(); ++g) groups_[g].dim = dims[g];
  for (size_t t = 0; t < table_places_.size(); ++t) {
    const auto dim = std::lower_bound(dims.begin(), dims.end(), tables_.sparse[t].dim);
    table_places_[t].group = static_cast<uint32_t>(dim - dims.begin());
  }
}

// Lays the arrays of the batch out; what the script writes lies behind what it reads.
void ScriptStep::PlaceArrays(const StepContext& context, bool is_scored) {
  const Batch& batch = *context.batch;
  const auto size = static_cast<size_t>(batch.size);
  layout_.Clear();
  numeric_offset_ = layout_.Add(TC_NUMERIC, 0, size * batch.num_dense, sizeof(float));
  labels_offset_ = layout_.Add(TC_LABELS, 0, size, sizeof(float));
  if (!batch.weights.empty()) weights_offset_ = layout_.Add(TC_WEIGHTS, 0, size, sizeof(float));
  for (DimGroup& group : groups_) group.rows = 0;
  for (size_t t = 0; t < table_places_.size(); ++t) {
    DimGroup& group = groups_[table_places_[t].group];
    table_places_[t].first_row = group.rows;
    group.rows += context.plan.tables[t].num_unique();
  }
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const size_t floats = size_t{1} * groups_[g].rows * groups_[g].dim;
    groups_[g].rows_offset = layout_.Add(TC_ROWS, g, floats, sizeof(float));
  }
  for (uint32_t f = 0; f < feature_offsets_.size(); ++f) {
    const FeatureLookups& lookups = batch.features[f];
    FeatureOffsets& offsets = feature_offsets_[f];
    const size_t count = context.plan.features[f].row_indices.size();
    offsets.indices = layout_.Add(TC_INDICES, f, count, sizeof(int32_t));
    if (!context.plan.features[f].single) {
      offsets.offsets = layout_.Add(TC_OFFSETS, f, size + 1, sizeof(int32_t));
    }
    if (!lookups.weights.empty()) {
      offsets.weights = layout_.Add(TC_LOOKUP_WEIGHTS, f, count, sizeof(float));
    }
  }
  if (is_scored) {
    scores_offset_ = layout_.Add(TC_SCORES_ARRAY, 0, size, sizeof(float));
    if (IsLast(context)) metric_offset_ = layout_.Add(TC_OWN_METRIC, 0, 1, sizeof(float));
    return;
  }
  for (uint32_t g = 0; g < groups_.size(); ++g) PlaceSegments(g, context);
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    DimGroup& group = groups_[g];
    const auto rows = static_cast<size_t>(group.rows);
    group.gradients_offset = layout_.Add(TC_GRADIENTS, g, rows * group.dim, sizeof(float));
    group.mask_offset = layout_.Add(TC_HAS_GRADIENT, g, rows, sizeof(uint8_t));
  }
}

void ScriptStep::PlaceSegments(uint32_t g, const StepContext& context) {
  DimGroup& group = groups_[g];
  size_t lookups = 0;
  group.has_weights = false;
  for (size_t t = 0; t < table_places_.size(); ++t) {
    if (table_places_[t].group != g) continue;
    lookups += context.plan.tables[t].segment_bags.size();
    group.has_weights = group.has_weights || !context.plan.tables[t].segment_weights.empty();
  }
  const auto rows = static_cast<size_t>(group.rows);
  group.segment_begins_offset = layout_.Add(TC_SEGMENT_OFFSETS, g, rows + 1, sizeof(int32_t));
  group.segments_offset = layout_.Add(TC_SEGMENTS, g, lookups, sizeof(int32_t));
  if (group.has_weights) {
    group.segment_weights_offset = layout_.Add(TC_SEGMENT_WEIGHTS, g, lookups, sizeof(float));
  }
}

// The segments of a dim's tables, one table after the other, as their rows are.
void ScriptStep::CopySegments(const StepContext& context) {
  std::vector<int32_t> lookups(groups_.size(), 0);
  for (const DimGroup& group : groups_) *At<int32_t>(group.segment_begins_offset) = 0;
  for (size_t t = 0; t < table_places_.size(); ++t) {
    const DimGroup& group = groups_[table_places_[t].group];
    const TablePlan& plan = context.plan.tables[t];
    int32_t& first = lookups[table_places_[t].group];
    int32_t* const ends = At<int32_t>(group.segment_begins_offset) + table_places_[t].first_row + 1;
    for (int32_t u = 0; u < plan.num_unique(); ++u) ends[u] = first + plan.segment_offsets[u + 1];
    CopyTo(At<int32_t>(group.segments_offset) + first, plan.segment_bags);
    if (group.has_weights) {
      float* const weights = At<float>(group.segment_weights_offset) + first;
      std::fill_n(weights, plan.segment_bags.size(), 1.0f);
      CopyTo(weights, plan.segment_weights);
    }
    first += static_cast<int32_t>(plan.segment_bags.size());
  }
}

void ScriptStep::CopyArrays(const StepContext& context, bool is_scored) {
  const Batch& batch = *context.batch;
  auto* numeric = At<float>(numeric_offset_);
  for (int b = 0; b < batch.size; ++b, numeric += batch.num_dense) {
    CopyTo(numeric, batch.dense_row(b));
  }
  CopyTo(At<float>(labels_offset_), batch.labels);
  if (!batch.weights.empty()) CopyTo(At<float>(weights_offset_), batch.weights);
  for (size_t t = 0; t < table_places_.size(); ++t) CopyRows(t, context);
  for (size_t f = 0; f < feature_offsets_.size(); ++f) CopyLookups(f, context);
  if (!is_scored) CopySegments(context);
}

// The rows of the table's distinct keys, in staging order.
void ScriptStep::CopyRows(size_t t, const StepContext& context) {
  const DimGroup& group = groups_[table_places_[t].group];
  const Matrix rows = context.tables[t].rows;
  const int32_t unique = context.plan.tables[t].num_unique();
  float* to = At<float>(group.rows_offset) + size_t{1} * table_places_[t].first_row * group.dim;
  if (context.row_plan.route == GradientRoute::kServer) {
    for (int32_t u = 0; u < unique; ++u, to += group.dim) {
      std::memcpy(to, rows.row(u), sizeof(float) * group.dim);
    }
    return;
  }
  std::vector<int32_t>& position_of_row = position_of_row_[t];
  if (position_of_row.size() < static_cast<size_t>(rows.rows)) position_of_row.resize(rows.rows);
  const UninitializedVector<int32_t>& held = context.row_plan.cache.tables[t].rows;
  for (int32_t u = 0; u < unique; ++u, to += group.dim) {
    std::memcpy(to, rows.row(held[u]), sizeof(float) * group.dim);
    position_of_row[held[u]] = u;
  }
}

void ScriptStep::CopyLookups(size_t f, const StepContext& context) {
  const FeaturePlan& plan = context.plan.features[f];
  const FeatureLookups& lookups = context.batch->features[f];
  const FeatureOffsets& offsets = feature_offsets_[f];
  const int32_t first = table_places_[plan.table].first_row;
  auto* const indices = At<int32_t>(offsets.indices);
  if (context.row_plan.route == GradientRoute::kServer) {
    for (size_t i = 0; i < plan.row_indices.size(); ++i) indices[i] = first + plan.row_indices[i];
  } else {
    const std::vector<int32_t>& position_of_row = position_of_row_[plan.table];
    for (size_t i = 0; i < plan.row_indices.size(); ++i) {
      indices[i] = first + position_of_row[plan.row_indices[i]];
    }
  }
  if (!plan.single) CopyTo(At<int32_t>(offsets.offsets), lookups.offsets);
  if (!lookups.weights.empty()) CopyTo(At<float>(offsets.weights), lookups.weights);
}

absl::Status ScriptStep::Send(StepContext* context, bool is_scored) {
  RETURN_IF_ERROR(script_->Connect());
  const TraceSpan span("hand over batch", is_scored ? kNoStep : context->step());
  SendUploads(device_, context);
  RETURN_IF_ERROR(device_->Synchronize());
  const GradientRoute route = context->row_plan.route;
  CHECK(route == GradientRoute::kServer || route == GradientRoute::kLocal);
  PlaceArrays(*context, is_scored);
  ScriptChannel& channel = script_->channel();
  ASSIGN_OR_RETURN(slot_number_, channel.TakeSlot(layout_.bytes()));
  slot_ = channel.slot(slot_number_);
  CopyArrays(*context, is_scored);
  if (is_scored && IsLast(*context)) *At<float>(metric_offset_) = std::nanf("");
  tc_header header = {};
  header.kind = TC_BATCH;
  header.step = context->step().value();
  header.bytes = static_cast<uint64_t>(context->batch->size);
  header.flags = is_scored ? TC_EVALUATES : 0;
  const absl::Status sent = channel.SendBatch(slot_number_, header, layout_);
  // Where the script has closed its end, the wait for its answer has the reason.
  return absl::IsUnavailable(sent) ? absl::OkStatus() : sent;
}

absl::Status ScriptStep::Forward(StepContext* context) {
  return Send(context, /*is_scored=*/false);
}

absl::Status ScriptStep::BackwardToRows(StepContext* context) {
  const auto await = [&] {
    const TraceSpan span("wait for script", context->step());
    return script_->Await(TC_STEP);
  };
  ASSIGN_OR_RETURN(const ScriptMessage message, await());
  const tc_header& header = message.header;
  if (header.slot != slot_number_) return script_->Refuse("answers another batch than the last");
  if (header.step != context->step().value()) {
    return script_->Refuse(absl::StrCat("closes step ", header.step, " where step ",
                                        context->step().value(), " is open"));
  }
  if (!std::isnan(header.rate)) {
    if (!(header.rate >= 0) || std::isinf(header.rate)) {
      return script_->Refuse(absl::StrCat("gives step ", header.step, " a learning rate of ",
                                          header.rate, "; it must be finite, and 0 or more"));
    }
    context->learning_rate = header.rate;
  }
  context->is_skipped = (header.flags & TC_SKIPS) != 0;
  context->outcome()->loss_sums[0] = context->is_skipped ? 0 : header.value;
  return TakeGradients(context);
}

absl::Status ScriptStep::TakeGradients(StepContext* context) {
  const TraceSpan span("take gradients", context->step());
  for (size_t t = 0; t < table_places_.size(); ++t) {
    const TablePlace& place = table_places_[t];
    const DimGroup& group = groups_[place.group];
    TableOperands& table = context->tables[t];
    const int32_t unique = context->plan.tables[t].num_unique();
    table.has_gradient.assign(unique, 0);
    if (context->is_skipped) continue;
    const auto* const mask = At<const uint8_t>(group.mask_offset) + place.first_row;
    const auto* from =
        At<const float>(group.gradients_offset) + size_t{1} * place.first_row * group.dim;
    for (int32_t u = 0; u < unique; ++u, from += group.dim) {
      if (mask[u] == 0) continue;
      table.has_gradient[u] = 1;
      std::memcpy(table.gradients.row(u), from, sizeof(float) * group.dim);
    }
    const auto& has = table.has_gradient;
    if (std::find(has.begin(), has.end(), 0) == has.end()) table.has_gradient.clear();
  }
  return absl::OkStatus();
}

absl::Status ScriptStep::Score(StepContext* context, std::vector<float>* logits) {
  RETURN_IF_ERROR(Send(context, /*is_scored=*/true));
  ASSIGN_OR_RETURN(const ScriptMessage message, script_->Await(TC_SCORES));
  if (message.header.slot != slot_number_) {
    return script_->Refuse("answers another batch than the last");
  }
  if (IsLast(*context)) script_->set_own_metric(*At<const float>(metric_offset_));
  const auto* const scores = At<const float>(scores_offset_);
  logits->assign(scores, scores + context->batch->size);
  return absl::OkStatus();
}

}  // namespace thermocline
