#include "worker/predict/predictor.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/checkpoint/row_lookup.h"
#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"
#include "worker/plan/batch_plan.h"
#include "worker/predict/row_cache.h"
#include "worker/rows/step_context.h"
#include "worker/train/model_step.h"
#include "worker/train/run_options.h"

namespace thermocline {
namespace {

// Batches that wait take one part in so many of the memory; rows have the rest.
constexpr uint64_t kShareOfBatches = 8;
// Scores and labels take up to one part in so many beside it: kLabelBytes a row, while their
// metrics are computed.
constexpr uint64_t kShareOfLabels = 4;
constexpr uint64_t kLabelBytes = 24;
// How much memory a batch and its plan take for each lookup, and for each sample beside its dense
// columns, labels and scores.
constexpr uint64_t kLookupBytes = 40;
constexpr uint64_t kSampleBytes = 16;
constexpr int kMaxThreads = 16;

int NumThreads() { return std::min(HardwareThreads(), kMaxThreads); }

// Reads the blocks of the dense parameters into the model.
absl::Status LoadDense(const JobTables& tables, uint64_t seed, RowLookup* lookup, Device* device,
                       DeviceModelStep* model) {
  std::vector<RowKey> keys;
  std::vector<float*> blocks;  // [256], of keys[i]
  std::vector<float> weights(model->dense().weights.size);
  float* next = weights.data();
  for (const DenseTable& tensor : tables.dense) {
    std::vector<float> row(tensor.layout.row_floats());
    std::vector<std::pair<RowKey, float*>> of_tensor;
    for (int64_t block = 0; block < tensor.num_blocks(); ++block, next += kDenseBlockFloats) {
      InitialRow(tensor.layout, seed, static_cast<Key>(block), absl::MakeSpan(row));
      std::copy_n(row.begin(), kDenseBlockFloats, next);
      of_tensor.push_back({RowKeyOf(tensor.layout.id, static_cast<Key>(block)), next});
    }
    std::sort(of_tensor.begin(), of_tensor.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [key, floats] : of_tensor) {
      keys.push_back(key);
      blocks.push_back(floats);
    }
  }
  RETURN_IF_ERROR(lookup->Read(keys, [&](size_t i, const SavedRow& row) {
    std::copy_n(row.values.begin(), kDenseBlockFloats, blocks[i]);
  }));
  device->CopyToDevice(model->dense().weights.data, weights.data(), sizeof(float) * weights.size(),
                       Stream::kCompute);
  return device->Synchronize();
}

// A batch that waits for its rows.
struct Planned {
  std::unique_ptr<Batch> batch;
  BatchPlan plan;
};

uint64_t BytesOf(const Batch& batch) {
  const uint64_t numbers = batch.dense_stride + 3 * batch.num_tasks;  // Labels, weights, scores.
  uint64_t bytes = batch.size * (kSampleBytes + numbers * sizeof(float));
  for (const FeatureLookups& feature : batch.features) bytes += feature.keys.size() * kLookupBytes;
  for (const std::vector<std::string>& column : batch.carried) {
    for (const std::string& text : column) bytes += sizeof(text) + text.size();
  }
  return bytes;
}

class Predictor {
 public:
  Predictor(const Job& job, const PredictOptions& options, bool has_labels, WorkerDevice device,
            RowLookup* lookup, ScoreFile* file)
      : options_(options),
        job_(job),
        tables_(ResolveTables(job)),
        device_(std::move(device.device)),
        model_(job, tables_, device_.get(), {job.train().eval_batch_size(), /*trained=*/0}),
        planner_(MakePlanner(tables_, /*num_servers=*/1, model_.vector_places())),
        cache_(lookup, tables_.sparse, options.manifest.seed(),
               options.memory_bytes - options.memory_bytes / kShareOfBatches),
        file_(*file),
        transfers_(std::make_unique<StepTransfers>(device_.get())),
        keeps_labels_(has_labels),
        labeled_(job, /*count_alike=*/true) {}

  absl::StatusOr<PredictResult> Run(RowLookup* lookup, BatchReader* reader) {
    RETURN_IF_ERROR(LoadDense(tables_, options_.manifest.seed(), lookup, device_.get(), &model_));
    bool more = true;
    while (more) {
      ASSIGN_OR_RETURN(more, GatherBlock(reader));
      RETURN_IF_ERROR(cache_.Load());
      for (Planned& planned : block_) {
        RETURN_IF_ERROR(Score(&planned));
        reader->Recycle(std::move(planned.batch));
      }
      block_.clear();
      block_bytes_ = 0;
      cache_.EndBlock();
    }
    const BatchReader::Progress read = reader->progress();
    RETURN_IF_ERROR(file_.Finish(next_row_));
    PredictResult result{scored_, read.bad_lines, read.first_bad_line, cache_.rows_read(), {}};
    if (keeps_labels_ && labeled_.num_labels() > 0) result.metrics = labeled_.Compute();
    return result;
  }

 private:
  // Takes batches until there is room for no further one. Returns false if these were the last.
  absl::StatusOr<bool> GatherBlock(BatchReader* reader) {
    while (block_.empty() || block_bytes_ < options_.memory_bytes / kShareOfBatches) {
      if (waiting_ == nullptr) {
        waiting_ = std::make_unique<Planned>();
        ASSIGN_OR_RETURN(waiting_->batch, reader->Next());
        if (waiting_->batch == nullptr) return false;
        planner_.Plan(*waiting_->batch, &waiting_->plan);
      }
      ASSIGN_OR_RETURN(const bool fits, cache_.Want(waiting_->plan));
      if (!fits) break;
      block_bytes_ += BytesOf(*waiting_->batch);
      block_.push_back(std::move(*waiting_));
      waiting_.reset();
    }
    return true;
  }

  absl::Status Score(Planned* planned) {
    StepContext& context = context_;
    context.batch = std::move(planned->batch);
    std::swap(context.plan, planned->plan);
    largest_.Cover(*transfers_);
    context.Begin(std::move(transfers_), largest_);
    context.tables.resize(tables_.sparse.size());
    for (size_t t = 0; t < tables_.sparse.size(); ++t) {
      const TablePlan& plan = context.plan.tables[t];
      const int dim = tables_.sparse[t].dim;
      const auto rows = context.upload().Reserve<float>(plan.keys.size() * dim);
      cache_.CopyRows(plan, static_cast<int>(t), rows.host);
      // Only read.
      context.tables[t].rows =
          FloatMatrix(const_cast<float*>(rows.device.data), plan.num_unique(), dim);
    }
    RETURN_IF_ERROR(model_.Score(&context, &logits_));
    RETURN_IF_ERROR(Write(*context.batch));
    transfers_ = std::move(context.transfers);
    planned->batch = std::move(context.batch);
    return options_.on_progress({scored_, planned->batch->progress});
  }

  absl::Status Write(const Batch& batch) {
    ScoredBatch scored;
    scored.batch = &batch;
    scored.logits = logits_;  // [tasks, size]
    auto left_out = batch.left_out.begin();
    for (int64_t row = 0; row < batch.global_samples; ++row) {
      if (left_out != batch.left_out.end() && *left_out == row) {
        ++left_out;
      } else {
        scored.rows.push_back(batch.first_row + row);
      }
    }
    CHECK_EQ(scored.rows.size() * batch.num_tasks, logits_.size());
    const size_t bad = FindNonFinite(logits_);
    if (bad < logits_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model gives ", logits_[bad], " for row ", scored.rows[bad % batch.size],
                       " (counted from 0): its dense features are too large"));
    }
    next_row_ = batch.first_row + batch.global_samples;
    scored_ += batch.size;
    KeepLabels(batch);
    return file_.Append(scored);
  }

  void KeepLabels(const Batch& batch) {
    if (!keeps_labels_) return;
    labeled_.Add(batch, logits_);
    const auto labels = static_cast<uint64_t>(labeled_.num_labels());
    if (labels <= options_.memory_bytes / kShareOfLabels / kLabelBytes) return;
    keeps_labels_ = false;
    labeled_ = TaskSamples(job_, /*count_alike=*/true);
  }

  const PredictOptions& options_;
  const Job& job_;
  const JobTables tables_;
  const std::unique_ptr<Device> device_;
  DeviceModelStep model_;
  BatchPlanner planner_;
  RowCache cache_;
  ScoreFile& file_;

  std::unique_ptr<Planned> waiting_;  // The next block's first batch; null: there is none yet.
  std::vector<Planned> block_;
  uint64_t block_bytes_ = 0;
  StepContext context_;  // The context of the batch that is being scored.
  std::unique_ptr<StepTransfers> transfers_;
  TransferSizes largest_;
  std::vector<float> logits_;
  int64_t scored_ = 0;
  int64_t next_row_ = 0;
  bool keeps_labels_;
  TaskSamples labeled_;  // The samples that the metrics are computed over.
};

}  // namespace

absl::StatusOr<PredictResult> Predict(const Job& job, const PredictOptions& options,
                                      Dataset* dataset, WorkerDevice device, Disk* disk,
                                      ScoreFile* file) {
  ThreadPool threads(NumThreads());
  ASSIGN_OR_RETURN(const std::unique_ptr<RowLookup> lookup,
                   RowLookup::Open(disk, options.checkpoint_directory, options.manifest, &threads));
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader,
                   dataset->OpenReader(Split::kTest, WorkerRank(0), 1, Step(0)));
  Predictor predictor(job, options, dataset->has_labels(Split::kTest), std::move(device),
                      lookup.get(), file);
  return predictor.Run(lookup.get(), reader.get());
}

}  // namespace thermocline
