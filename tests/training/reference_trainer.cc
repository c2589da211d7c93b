#include "tests/training/reference_trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/job/resolved_job.h"
#include "common/math/row_update.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/data/dataset.h"
#include "worker/model/dense_arena.h"
#include "worker/model/model.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {
namespace {

using Row = std::vector<float>;
using Rows = std::map<Key, Row>;  // of one table

// One worker's gradients by key, for every table.
using Gradients = std::vector<Rows>;

// [tasks, samples] of [samples, tasks]
std::vector<float> ByTask(const UninitializedVector<float>& by_sample, int tasks) {
  std::vector<float> by_task;
  for (int t = 0; t < tasks; ++t) {
    for (size_t i = t; i < by_sample.size(); i += tasks) by_task.push_back(by_sample[i]);
  }
  return by_task;
}

class ReferenceTrainer {
 public:
  explicit ReferenceTrainer(const Job& job)
      : job_(job),
        tables_(ResolveTables(job)),
        lookups_(tables_.sparse.size()),
        sparse_(tables_.sparse.size()),
        dense_(tables_.dense.size()),
        device_(MakeCpuDevice({1, CpuIsaLimit::kAuto})),
        arena_(device_.get(), tables_.dense),
        model_(DescribeModel(job), {device_.get(),
                                    &arena_,
                                    {job.train().batch_size(), job.train().batch_size()},
                                    {loss_sums_.data(), kMaxTasks},
                                    job.seed()}) {
    for (size_t t = 0; t < dense_.size(); ++t) {
      for (int64_t block = 0; block < tables_.dense[t].num_blocks(); ++block) {
        dense_[t][block] = NewRow(tables_.dense[t].layout, block);
      }
    }
  }

  absl::StatusOr<ReferenceResult> Run() {
    std::vector<std::unique_ptr<BatchReader>> readers;
    const uint32_t workers = job_.cluster().workers();
    for (uint32_t rank = 0; rank < workers; ++rank) {
      ASSIGN_OR_RETURN(readers.emplace_back(),
                       OpenReader(job_, Split::kTrain, WorkerRank(rank), workers));
    }
    ReferenceResult result;
    while (true) {
      Gradients sparse(sparse_.size()), dense(dense_.size());
      bool ended = false;
      for (std::unique_ptr<BatchReader>& reader : readers) {
        ASSIGN_OR_RETURN(std::unique_ptr<Batch> batch, reader->Next());
        ended = batch == nullptr;
        if (ended) break;
        RETURN_IF_ERROR(Compute(batch.get(), &sparse, &dense));
      }
      if (ended) break;
      Apply(Step(result.steps), sparse, dense);
      ++result.steps;
    }
    result.digest = ComputeDigest();
    return result;
  }

 private:
  Row NewRow(const TableLayout& layout, Key key) const {
    Row row(layout.row_floats());
    InitialRow(layout, job_.seed(), key, absl::MakeSpan(row));
    return row;
  }

  static void AddTo(Rows* sums, Key key, const float* gradient, int dim) {
    const auto [row, is_first] = sums->try_emplace(key, gradient, gradient + dim);
    if (is_first) return;
    for (int i = 0; i < dim; ++i) row->second[i] += gradient[i];
  }

  // Adds one worker's gradients to the sums over the workers before it.
  absl::Status Compute(Batch* batch, Gradients* sparse, Gradients* dense) {
    CopyWeightsToModel();
    const int num_features = static_cast<int>(batch->features.size());
    std::vector<std::vector<Key>> keys(sparse_.size());
    std::vector<std::vector<float>> rows(sparse_.size()), gradients(sparse_.size());
    std::vector<std::vector<int32_t>> offsets(sparse_.size()), bags(sparse_.size());
    std::vector<std::vector<float>> weights(sparse_.size());
    std::vector<std::vector<int32_t>> row_indices(num_features);
    std::vector<std::vector<int32_t>> step_samples;  // [sequences][steps]
    const std::vector<VectorPlace> places = model_.vector_places();
    SparseBatch sparse_batch;
    sparse_batch.batch_size = batch->size;
    for (size_t t = 0; t < sparse_.size(); ++t) {
      // Lookups of each key in canonical order; keys ascending.
      std::map<Key, std::vector<int32_t>> lookups;
      std::map<Key, std::vector<float>> of_lookups;  // Their weights.
      for (int sample = 0; sample < batch->size; ++sample) {
        for (int f = 0; f < num_features; ++f) {
          if (tables_.features[f].table_index != static_cast<int>(t)) continue;
          const FeatureLookups& feature = batch->features[f];
          for (int i = feature.offsets[sample]; i < feature.offsets[sample + 1]; ++i) {
            const int64_t first = FirstRowOf(places, f, [batch](int32_t other) {
              return static_cast<int64_t>(batch->features[other].keys.size());
            });
            lookups[feature.keys[i]].push_back(static_cast<int32_t>(
                first + (places[f].is_by_step ? i : sample) * places[f].stride));
            of_lookups[feature.keys[i]].push_back(feature.weights.empty() ? 1 : feature.weights[i]);
          }
        }
      }
      const int dim = tables_.sparse[t].dim;
      offsets[t].push_back(0);
      for (const auto& [key, key_bags] : lookups) {
        keys[t].push_back(key);
        step_lookups_[{t, key}] += static_cast<uint32_t>(key_bags.size());
        const Row row = sparse_[t].count(key) ? sparse_[t][key] : NewRow(tables_.sparse[t], key);
        rows[t].insert(rows[t].end(), row.begin(), row.begin() + dim);
        bags[t].insert(bags[t].end(), key_bags.begin(), key_bags.end());
        weights[t].insert(weights[t].end(), of_lookups[key].begin(), of_lookups[key].end());
        offsets[t].push_back(static_cast<int32_t>(bags[t].size()));
      }
      gradients[t].resize(rows[t].size());
      TableBatch table;
      table.rows = FloatMatrix(rows[t].data(), static_cast<int32_t>(keys[t].size()), dim);
      table.segment_offsets = {offsets[t].data(), static_cast<int64_t>(offsets[t].size())};
      table.segment_bags = {bags[t].data(), static_cast<int64_t>(bags[t].size())};
      table.segment_weights = {weights[t].data(), static_cast<int64_t>(weights[t].size())};
      sparse_batch.tables.push_back(table);
    }
    for (int f = 0; f < num_features; ++f) {
      const FeatureLookups& lookups = batch->features[f];
      FeatureBatch feature;
      feature.table = tables_.features[f].table_index;
      const bool is_mean = tables_.features[f].pooling == MEAN && lookups.weights.empty();
      feature.pooling = is_mean ? PoolingMode::kMean : PoolingMode::kSum;
      const std::vector<Key>& sorted = keys[feature.table];
      for (Key key : lookups.keys) {
        row_indices[f].push_back(std::lower_bound(sorted.begin(), sorted.end(), key) -
                                 sorted.begin());
      }
      if (!places[f].is_by_step) {
        feature.offsets = {lookups.offsets.data(), static_cast<int64_t>(lookups.offsets.size())};
      }
      feature.row_indices = {row_indices[f].data(), static_cast<int64_t>(row_indices[f].size())};
      feature.weights = {lookups.weights.data(), static_cast<int64_t>(lookups.weights.size())};
      sparse_batch.features.push_back(feature);
      // The features of a sequence have the same steps.
      if (tables_.features[f].sequence != static_cast<int>(step_samples.size())) continue;
      std::vector<int32_t>& samples = step_samples.emplace_back();
      for (int sample = 0; sample < batch->size; ++sample) {
        samples.insert(samples.end(), lookups.offsets[sample + 1] - lookups.offsets[sample],
                       sample);
      }
      sparse_batch.sequences.push_back(
          {static_cast<int32_t>(samples.size()),
           {lookups.offsets.data(), static_cast<int64_t>(lookups.offsets.size())},
           {samples.data(), static_cast<int64_t>(samples.size())}});
    }

    const SamplePlace place = {batch->step.value(), batch->slice_begin};
    model_.Forward(
        FloatMatrix(batch->dense.data(), batch->size, batch->num_dense, batch->dense_stride),
        sparse_batch, {&place, 1});
    std::vector<Matrix> gradient_views;
    for (size_t t = 0; t < sparse_.size(); ++t) {
      gradient_views.push_back(FloatMatrix(
          gradients[t].data(), static_cast<int32_t>(keys[t].size()), tables_.sparse[t].dim));
    }
    const std::vector<float> labels = ByTask(batch->labels, batch->num_tasks);
    const std::vector<float> label_weights = ByTask(batch->weights, batch->num_tasks);
    model_.BackwardToRows({{labels.data(), static_cast<int64_t>(labels.size())},
                           {label_weights.data(), static_cast<int64_t>(label_weights.size())},
                           1.0f / static_cast<float>(job_.train().batch_size())},
                          gradient_views);
    model_.BackwardDense();
    RETURN_IF_ERROR(device_->Synchronize());
    for (size_t t = 0; t < sparse_.size(); ++t) {
      const int dim = tables_.sparse[t].dim;
      for (size_t u = 0; u < keys[t].size(); ++u) {
        AddTo(&(*sparse)[t], keys[t][u], &gradients[t][u * dim], dim);
      }
    }
    const float* gradient = arena_.gradients().data;
    for (size_t t = 0; t < dense_.size(); ++t) {
      for (int64_t block = 0; block < tables_.dense[t].num_blocks(); ++block) {
        AddTo(&(*dense)[t], block, gradient, kDenseBlockFloats);
        gradient += kDenseBlockFloats;
      }
    }
    return absl::OkStatus();
  }

  void CopyWeightsToModel() {
    float* weights = arena_.weights().data;
    for (const Rows& blocks : dense_) {
      for (const auto& [block, row] : blocks) {
        weights = std::copy(row.begin(), row.begin() + kDenseBlockFloats, weights);
      }
    }
  }

  RowScalars ScalarsAt(const TableLayout& layout, Step step) const {
    return ScalarsForStep(layout.row_optimizer(),
                          LearningRateAt(job_.train().learning_rate(), step), step);
  }

  void ApplyTo(size_t t, Step step, const Rows& gradients) {
    const TableLayout& layout = tables_.sparse[t];
    const RowScalars scalars = ScalarsAt(layout, step);
    for (const auto& [key, gradient] : gradients) {
      Row& row = sparse_[t].try_emplace(key, NewRow(layout, key)).first->second;
      UpdateRow(scalars, gradient.data(), step_lookups_.at({t, key}), row.data(),
                row.data() + layout.dim, layout.dim);
    }
  }

  void ApplyToDense(Step step, const Gradients& gradients) {
    if (dense_.empty()) return;
    const TableLayout& layout = tables_.dense[0].layout;
    const RowScalars scalars = ScalarsAt(layout, step);
    double lanes[256] = {};
    int block = 0;
    for (const Rows& of_tensor : gradients) {
      for (const auto& [key, gradient] : of_tensor) {
        Row clipped = gradient;
        for (float& value : clipped) value = ClipValue(scalars.vector, value);
        lanes[block++ % 256] += SumOfSquares(clipped.data(), kDenseBlockFloats);
      }
    }
    for (int half = 128; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    const double length = std::sqrt(lanes[0]), most = layout.optimizer.clip_global_norm;
    for (size_t t = 0; t < dense_.size(); ++t) {
      for (const auto& [key, gradient] : gradients[t]) {
        float* const row = dense_[t].at(key).data();
        if (most > 0) {
          UpdateScaled(scalars.vector, length > most ? static_cast<float>(most / length) : 1.0f,
                       gradient.data(), row, row + layout.dim, layout.dim);
        } else {
          UpdateRow(scalars, gradient.data(), /*lookups=*/0, row, row + layout.dim, layout.dim);
        }
      }
    }
  }

  // Leaves the gradients of keys that have a row, or get one in this step.
  Rows Admitted(size_t t, Step step, const Rows& gradients) {
    Rows admitted;
    for (const auto& [key, gradient] : gradients) {
      Lookups& lookups = lookups_[t][key];
      lookups.count += step_lookups_[{t, key}];
      lookups.last = step;
      if (sparse_[t].count(key) > 0 || lookups.count >= tables_.sparse[t].min_count) {
        admitted[key] = gradient;
      }
    }
    return admitted;
  }

  // The last step of the rows that are too many, of a table whose rows are counted now; else
  // kNoStep.
  Step BeyondLimit(size_t t, Step counted) const {
    const TableLayout& table = tables_.sparse[t];
    const int64_t period =
        std::clamp<int64_t>(static_cast<int64_t>(table.max_rows) / 4096, 4, 1024);
    if (table.max_rows == 0 || counted == kNoStep || (counted.value() + 1) % period != 0 ||
        sparse_[t].size() <= table.max_rows) {
      return kNoStep;
    }
    std::vector<Step> last;
    for (const auto& [key, row] : sparse_[t]) last.push_back(lookups_[t].at(key).last);
    std::sort(last.rbegin(), last.rend());
    return last[table.max_rows];
  }

  void Forget(size_t t, Step through) {
    for (auto it = lookups_[t].begin(); it != lookups_[t].end();) {
      const auto lookups = it++;
      if (lookups->second.last > through) continue;
      sparse_[t].erase(lookups->first);
      lookups_[t].erase(lookups);
    }
  }

  void ForgetUnused(size_t t, Step step) {
    const auto unused = static_cast<int64_t>(tables_.sparse[t].unused_steps);
    if (unused == 0 || (step.value() + 1) % std::max<int64_t>(1, unused / 8) != 0) return;
    Forget(t, step - unused);
  }

  void Apply(Step step, const Gradients& sparse, const Gradients& dense) {
    for (size_t t = 0; t < sparse_.size(); ++t) {
      const Step beyond_limit = BeyondLimit(t, step - 1);
      ApplyTo(t, step, Admitted(t, step, sparse[t]));
      Forget(t, beyond_limit);
      ForgetUnused(t, step);
    }
    step_lookups_.clear();
    ApplyToDense(step, dense);
  }

  Digest ComputeDigest() const {
    Digest digest;
    for (size_t t = 0; t < sparse_.size(); ++t) {
      for (const auto& [key, row] : sparse_[t]) {
        digest.Add(RowDigest(tables_.sparse[t].id, key, row));
      }
      for (const auto& [key, lookups] : lookups_[t]) {
        if (sparse_[t].count(key) > 0) continue;
        digest.Add(CandidateDigest(tables_.sparse[t].id, key, lookups.count));
      }
    }
    for (size_t t = 0; t < dense_.size(); ++t) {
      for (const auto& [key, row] : dense_[t]) {
        digest.Add(RowDigest(tables_.dense[t].layout.id, key, row));
      }
    }
    return digest;
  }

  const Job job_;
  const JobTables tables_;
  struct Lookups {
    uint32_t count = 0;
    Step last;
  };
  std::map<std::pair<size_t, Key>, uint32_t>
      step_lookups_;                             // The gradients of all workers, by table and key.
  std::vector<std::map<Key, Lookups>> lookups_;  // Lookups of keys that are not forgotten.
  std::vector<Rows> sparse_, dense_;
  const std::unique_ptr<Device> device_;
  std::array<double, kMaxTasks> loss_sums_{};
  DenseArena arena_;
  Model model_;
};

}  // namespace

absl::StatusOr<ReferenceResult> TrainReference(const Job& job) {
  return ReferenceTrainer(job).Run();
}

}  // namespace thermocline
