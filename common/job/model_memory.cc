#include "common/job/model_memory.h"

#include <algorithm>
#include <vector>

#include "common/job/job_data.h"

namespace thermocline {
namespace {

// Columns of a layer's output: a GPU's leading dimensions (kernels/matrix.h), the CPU's panels
// (kernels/cpu/gemm.h).
constexpr int64_t kGpuAlignment = 8;
constexpr int64_t kCpuPanel = 64;
// Partial sums of a bias gradient on a GPU (kernels/cuda/operations.h).
constexpr int64_t kBiasPartials = 128;
// Steps beyond those fetched ahead.
constexpr int kStepsBeyondFetched = 5;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Floats a sample of an MLP's hidden layers and their gradients; on the CPU also of a wide input,
// which is copied.
int64_t HiddenFloats(const std::vector<int>& widths, ComputeOn where) {
  const int64_t unit = where == ComputeOn::kGpu ? kGpuAlignment : kCpuPanel;
  int64_t floats = 0;
  for (size_t i = 1; i + 1 < widths.size(); ++i) floats += 2 * RoundUp(widths[i], unit);
  if (where == ComputeOn::kCpu && !widths.empty() && widths[0] > kCpuPanel) {
    floats += RoundUp(widths[0], kCpuPanel);
  }
  return floats;
}

}  // namespace

uint64_t DenseParameterBytes(const Job& resolved, ComputeOn where) {
  uint64_t floats = 0;
  for (const DenseTable& tensor : ResolveTables(resolved).dense) {
    floats += tensor.num_blocks() * (2 * kDenseBlockFloats + tensor.layout.state_floats());
    // The weights as panels, and their transpose; biases stay as they are.
    if (where == ComputeOn::kCpu && tensor.rows > 1 && tensor.cols > 1) {
      floats += tensor.rows * RoundUp(tensor.cols, kCpuPanel) +
                tensor.cols * RoundUp(tensor.rows, kCpuPanel);
    }
  }
  return sizeof(float) * floats;
}

uint64_t ActivationBytes(const Job& resolved, int64_t max_batch, ComputeOn where) {
  const std::vector<int> bottom = BottomWidths(resolved), top = TopWidths(resolved);
  const int64_t vectors =
      static_cast<int64_t>(EmbeddedFeatures(resolved).size()) + (bottom.empty() ? 0 : 1);
  // The interaction's input and output, the logits, and the gradient of each.
  const int64_t sample_floats = 2 * vectors * EmbeddingDim(resolved) +
                                2 * RoundUp(top.front(), kGpuAlignment) + 2 +
                                HiddenFloats(bottom, where) + HiddenFloats(top, where);
  int64_t floats = max_batch * sample_floats;
  for (const std::vector<int>& widths : {bottom, top}) {
    for (size_t i = 1; where == ComputeOn::kGpu && i < widths.size(); ++i) {
      floats += kBiasPartials * widths[i];
    }
  }
  return sizeof(float) * floats + sizeof(double);  // The loss.
}

uint64_t TransferBytes(const Job& resolved, const StepTraffic& step, bool has_gradients) {
  const double of_samples = step.samples * (resolved.data().num_dense() + 2);  // Label and weight.
  // Row and bag of each lookup, where the bags of a key begin; rows, and gradients on the way back.
  const double floats = of_samples + 2 * step.lookups + step.keys + step.floats;
  return static_cast<uint64_t>(2 * sizeof(float) * (floats + (has_gradients ? step.floats : 0)));
}

int StepsUnderWay(const Job& resolved) {
  const int staleness = static_cast<int>(resolved.train().staleness_steps());
  int fetched_ahead = staleness;
  if (resolved.has_cache()) {
    fetched_ahead = static_cast<int>(PrefetchSteps(resolved.cache()));
    if (resolved.cluster().workers() > 1) fetched_ahead = std::min(fetched_ahead, staleness / 2);
  }
  return fetched_ahead + kStepsBeyondFetched;
}

bool MayHold(const TableLayout& table) {
  return table.min_count == 0 && table.unused_steps == 0 && table.max_rows == 0;
}

bool HoldsRows(const JobTables& tables, size_t t) {
  return MayHold(tables.sparse[t]) && tables.PlacementOf(t) != TableSettings::REMOTE;
}

}  // namespace thermocline
