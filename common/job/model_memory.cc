#include "common/job/model_memory.h"

#include <vector>

#include "common/job/job_data.h"

namespace thermocline {
namespace {

// Columns of the CPU's panels (kernels/cpu/gemm.h).
constexpr int64_t kCpuPanel = 64;
// Steps beyond those fetched ahead.
constexpr int kStepsBeyondFetched = 5;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

uint64_t DenseParameterBytes(const std::vector<DenseTable>& tensors, ComputeOn where) {
  uint64_t floats = 0;
  for (const DenseTable& tensor : tensors) {
    floats += tensor.num_blocks() * (2 * kDenseBlockFloats + tensor.layout.state_floats());
    // The weights as panels, and their transpose; biases stay as they are.
    if (where == ComputeOn::kCpu && tensor.rows > 1 && tensor.cols > 1) {
      floats += tensor.rows * RoundUp(tensor.cols, kCpuPanel) +
                tensor.cols * RoundUp(tensor.rows, kCpuPanel);
    }
  }
  return sizeof(float) * floats;
}

uint64_t TransferBytes(const Job& resolved, const StepTraffic& step, bool has_gradients) {
  // There is room for a weight of each label.
  const size_t labels = 2 * LearnedLabels(resolved).size();
  const double of_samples =
      step.samples * static_cast<double>(resolved.data().num_dense() + labels);
  // Row and bag of each lookup, the sample of each step, where the bags of a key begin; rows, and
  // gradients on the way back.
  const double floats = of_samples + 2 * step.lookups + step.steps + step.keys + step.floats;
  return static_cast<uint64_t>(2 * sizeof(float) * (floats + (has_gradients ? step.floats : 0)));
}

int StepsUnderWay(const Job& resolved) {
  const int staleness = static_cast<int>(resolved.train().staleness_steps());
  const int fetched_ahead =
      resolved.has_cache() ? static_cast<int>(PrefetchSteps(resolved.cache())) : staleness;
  return fetched_ahead + kStepsBeyondFetched;
}

bool MayHold(const TableLayout& table) {
  return table.min_count == 0 && table.unused_steps == 0 && table.max_rows == 0 &&
         !table.optimizer.has_cow_clip() &&
         !(table.first_order.has_value() && table.first_order->optimizer.has_cow_clip());
}

bool HoldsRows(const JobTables& tables, size_t t) {
  return MayHold(tables.sparse[t]) && tables.PlacementOf(t) != TableSettings::REMOTE;
}

}  // namespace thermocline
