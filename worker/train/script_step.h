// Steps that the user's script computes: a batch goes to it with the rows of its distinct keys, and
// the gradients of these rows come back (worker/api/script_channel.h has the memory).
#ifndef THERMOCLINE_WORKER_TRAIN_SCRIPT_STEP_H_
#define THERMOCLINE_WORKER_TRAIN_SCRIPT_STEP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/job/resolved_job.h"
#include "kernels/device.h"
#include "worker/api/script_channel.h"
#include "worker/rows/step_context.h"
#include "worker/train/model_step.h"
#include "worker/train/script_run.h"

namespace thermocline {

// Not thread-safe.
class ScriptStep final : public ModelStep {
 public:
  // All that is pointed to outlives it. REQUIRES: device->is_host_memory(); the routes of steps are
  // kServer and kLocal.
  ScriptStep(const JobTables& tables, Device* device, ScriptRun* script);

  std::vector<VectorPlace> vector_places() const override { return {}; }
  // Sends the batch. Errors: of the script (script_run.h) and its channel.
  absl::Status Forward(StepContext* context) override;
  // Waits until the script closes the step. Also sets the context's learning rate, where the script
  // has one, is_skipped, and which rows have a gradient. Errors: as Forward.
  absl::Status BackwardToRows(StepContext* context) override;
  void BackwardDense() override {}
  void RecordFinished(StepContext* context) override {
    device_->Record(Stream::kCompute, context->transfers->finished.get());
  }
  absl::Status Synchronize() override { return device_->Synchronize(); }
  absl::Status Score(StepContext* context, std::vector<float>* logits) override;
  // The script tells of no batch that it trains.
  absl::Status CopyLogits(std::vector<float>* logits) override {
    logits->clear();
    return absl::OkStatus();
  }
  bool is_asynchronous() const override { return false; }

 private:
  // Where the rows of a table lie among those of its dim.
  struct TablePlace {
    uint32_t group = 0;     // Index of the dim among all dims, ascending.
    int32_t first_row = 0;  // In the batch at hand.
  };
  struct DimGroup {
    int dim = 0;
    int32_t rows = 0;          // In the batch at hand.
    bool has_weights = false;  // Some of its lookups have weights.
    size_t rows_offset = 0, gradients_offset = 0, mask_offset = 0;
    size_t segment_begins_offset = 0, segments_offset = 0, segment_weights_offset = 0;
  };
  struct FeatureOffsets {
    size_t indices = 0, offsets = 0, weights = 0;
  };

  absl::Status Send(StepContext* context, bool is_scored);
  void PlaceArrays(const StepContext& context, bool is_scored);
  void CopyArrays(const StepContext& context, bool is_scored);
  void CopyRows(size_t table, const StepContext& context);
  void CopyLookups(size_t feature, const StepContext& context);
  void PlaceSegments(uint32_t group, const StepContext& context);
  void CopySegments(const StepContext& context);
  absl::Status TakeGradients(StepContext* context);
  template <typename T>
  T* At(size_t offset) const {
    return reinterpret_cast<T*>(slot_ + offset);
  }

  const JobTables tables_;
  Device* const device_;
  ScriptRun* const script_;
  std::vector<TablePlace> table_places_;         // [tables]
  std::vector<DimGroup> groups_;                 // [dims]
  std::vector<FeatureOffsets> feature_offsets_;  // [features]
  // [tables][rows of the slab] kLocal: position of the row among the batch's, for those that the
  // batch reads.
  std::vector<std::vector<int32_t>> position_of_row_;

  // The batch at hand.
  SlotLayout layout_;
  uint32_t slot_number_ = 0;
  uint8_t* slot_ = nullptr;
  size_t numeric_offset_ = 0, labels_offset_ = 0, weights_offset_ = 0, scores_offset_ = 0,
         metric_offset_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_SCRIPT_STEP_H_
