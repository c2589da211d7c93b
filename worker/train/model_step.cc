#include "worker/train/model_step.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

ModelParts PartsOf(const Job& job, Device* device, const DenseArena& parameters,
                   const BatchRoom& room, DeviceSpan<double> loss_sum) {
  ModelParts parts;
  parts.device = device;
  parts.parameters = &parameters;
  parts.room = room;
  parts.loss_sum = loss_sum;
  parts.seed = job.seed();
  parts.steps_before = static_cast<int64_t>(job.init().steps());
  return parts;
}

// The steps of a sequence. lookups: those of one of its features
SequenceBatch DescribeSteps(const FeatureLookups& lookups, UploadArena* upload) {
  const UninitializedVector<int32_t>& offsets = lookups.offsets;
  const UploadArena::Array<int32_t> samples = upload->Reserve<int32_t>(lookups.keys.size());
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    std::fill(samples.host.begin() + offsets[b], samples.host.begin() + offsets[b + 1],
              static_cast<int32_t>(b));
  }
  return {static_cast<int32_t>(lookups.keys.size()), upload->Add(absl::MakeConstSpan(offsets)),
          samples.device};
}

}  // namespace

DeviceModelStep::DeviceModelStep(const Job& job, const JobTables& tables, Device* device,
                                 const BatchRoom& room)
    : tables_(tables),
      num_tasks_(static_cast<int>(DescribeModel(job).tasks.size())),
      gradient_scale_(1.0f / static_cast<float>(job.train().batch_size())),
      device_(device),
      parameters_(device, tables.dense),
      loss_sums_(device->Allocate(num_tasks_ * sizeof(double))),
      model_(DescribeModel(job), PartsOf(job, device, parameters_, room, LossSums())) {
  batch_.tables.resize(tables.sparse.size());
  batch_.features.resize(tables.features.size());
  row_gradients_.resize(tables.sparse.size());
}

const SparseBatch& DeviceModelStep::Describe(StepContext* context) {
  const auto upload = [context](const auto& values) {
    return context->upload().Add(absl::MakeConstSpan(values));
  };
  const auto upload_weights = [&upload](const UninitializedVector<float>& weights) {
    return weights.empty() ? DeviceSpan<const float>{} : upload(weights);
  };
  batch_.batch_size = context->batch->size;
  for (size_t t = 0; t < tables_.sparse.size(); ++t) {
    const TablePlan& plan = context->plan.tables[t];
    batch_.tables[t].rows = context->tables[t].rows;
    batch_.tables[t].segment_offsets = upload(plan.segment_offsets);
    batch_.tables[t].segment_bags = upload(plan.segment_bags);
    batch_.tables[t].segment_weights = upload_weights(plan.segment_weights);
    row_gradients_[t] = context->tables[t].gradients;
  }
  batch_.sequences.clear();
  for (size_t f = 0; f < tables_.features.size(); ++f) {
    const FeaturePlan& plan = context->plan.features[f];
    FeatureBatch& feature = batch_.features[f];
    feature.table = plan.table;
    const FeatureLookups& lookups = context->batch->features[f];
    const bool is_mean = tables_.features[f].pooling == MEAN && lookups.weights.empty();
    feature.pooling = is_mean ? PoolingMode::kMean : PoolingMode::kSum;
    feature.row_indices = upload(plan.row_indices);
    feature.offsets = plan.single ? DeviceSpan<const int32_t>{} : upload(lookups.offsets);
    feature.weights = upload_weights(lookups.weights);
    // The features of a sequence are neighbours, and have the same steps.
    if (tables_.features[f].sequence == static_cast<int>(batch_.sequences.size())) {
      batch_.sequences.push_back(DescribeSteps(lookups, &context->upload()));
    }
  }
  return batch_;
}

absl::Status DeviceModelStep::Compute(StepContext* context, DeviceSpan<const SamplePlace> place) {
  const Batch& batch = *context->batch;
  const SparseBatch& sparse = Describe(context);
  SendUploads(device_, context);
  // The model only reads them.
  model_.Forward(FloatMatrix(const_cast<float*>(context->dense.data), batch.size, batch.num_dense,
                             batch.dense_stride),
                 sparse, place);
  // Where a batch has more steps than any before, the device may have no memory for them.
  const std::string growth = model_.DescribeGrowth();
  if (growth.empty()) return absl::OkStatus();
  const absl::Status status = device_->Synchronize();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", growth));
}

absl::Status DeviceModelStep::Forward(StepContext* context) {
  return Compute(context, context->place);
}

absl::Status DeviceModelStep::BackwardToRows(StepContext* context) {
  model_.BackwardToRows({context->labels, context->weights, gradient_scale_}, row_gradients_);
  device_->CopyToHost(context->outcome()->loss_sums.data(), loss_sums_->data(),
                      num_tasks_ * sizeof(double), Stream::kCompute);
  return absl::OkStatus();
}

absl::Status DeviceModelStep::Score(StepContext* context, std::vector<float>* logits) {
  RETURN_IF_ERROR(Compute(context, /*place=*/{}));
  return CopyLogits(logits);
}

absl::Status DeviceModelStep::CopyLogits(std::vector<float>* logits) {
  const size_t batch = batch_.batch_size;
  logits->resize(num_tasks_ * batch);
  if (batch == 0) return device_->Synchronize();
  std::vector<std::vector<float>> rows(num_tasks_);
  for (int t = 0; t < num_tasks_; ++t) {
    const Matrix of_task = model_.Logits(t);
    rows[t].resize(of_task.ld * (batch - 1) + 1);
    device_->CopyToHost(rows[t].data(), of_task.floats(), rows[t].size() * sizeof(float),
                        Stream::kCompute);
  }
  RETURN_IF_ERROR(device_->Synchronize());
  for (int t = 0; t < num_tasks_; ++t) {
    const int64_t ld = model_.Logits(t).ld;
    for (size_t b = 0; b < batch; ++b) (*logits)[t * batch + b] = rows[t][b * ld];
  }
  return absl::OkStatus();
}

}  // namespace thermocline
