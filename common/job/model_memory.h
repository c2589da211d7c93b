// The memory that a worker's dense parameters, held rows and steps under way take where it
// computes: on a GPU, or on the CPU. Workers allocate so; `thermocline plan`, which runs nothing,
// computes with these formulas. A test in worker/train compares them with a device's allocations.
#ifndef THERMOCLINE_COMMON_JOB_MODEL_MEMORY_H_
#define THERMOCLINE_COMMON_JOB_MODEL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/job/resolved_job.h"
#include "common/model/model_spec.h"
#include "proto/job.pb.h"

namespace thermocline {

// What a CUDA device allocates at its start: scratch of its operations, which seldom grows, and the
// workspace of cuBLASLt's products.
inline constexpr size_t kDeviceScratchBytes = size_t{6} << 20;
inline constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20;

// Weights, gradients and optimizer state of the dense tensors, in blocks of kDenseBlockFloats; on
// the CPU also their copies in the products' own order. (ModelSpec::ActivationBytes has the
// activations.)
uint64_t DenseParameterBytes(const std::vector<DenseTable>& tensors, ComputeOn where);

// Floats that a row of `floats` takes where workers hold it: rows begin at multiples of 16 bytes,
// which is what a GPU loads at once.
constexpr int64_t DeviceRowFloats(int64_t floats) { return (floats + 3) / 4 * 4; }

// Whether a worker may hold rows of the table. Where servers decide which keys have a row, only
// they can tell what a gradient does to it; and only they know how many lookups a gradient stands
// for, which cow_clip needs.
bool MayHold(const TableLayout& table);

// Whether a worker may hold rows of table `t` and the job does not leave it to servers (placement
// REMOTE).
bool HoldsRows(const JobTables& tables, size_t t);

// What a step brings to a GPU and fetches back.
struct StepTraffic {
  double samples = 0;
  double lookups = 0;
  double steps = 0;   // Steps of all sequences, of which each is a lookup of several features.
  double keys = 0;    // Distinct keys of all tables together.
  double floats = 0;  // The floats of these keys' rows.
};
// Bytes of the arenas of one step (kernels/transfer.h), which are twice as large as needed: on the
// GPU, and as much again of pinned host memory. has_gradients: whether the step trains.
uint64_t TransferBytes(const Job& resolved, const StepTraffic& step, bool has_gradients);

// Steps whose arenas are in use at once: those fetched ahead (without a cache `staleness_steps`,
// see EmbeddingSource::fetch_ahead), one computed, one pipelined, one planned next, and pushes that
// are not acknowledged yet. In an evaluation: one computed, one fetched, one planned next.
int StepsUnderWay(const Job& resolved);
inline constexpr int kEvaluationStepsUnderWay = 3;

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_MODEL_MEMORY_H_
