// The dense parameters of a model in device memory: the weights of all its tensors, their
// gradients, and the optimizer's state.
//
// Every tensor begins at a multiple of kDenseBlockFloats, in the order of JobTables::dense; the
// padding behind it is zero in the gradients.
#ifndef THERMOCLINE_WORKER_MODEL_DENSE_ARENA_H_
#define THERMOCLINE_WORKER_MODEL_DENSE_ARENA_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/job/resolved_job.h"
#include "common/model/dense_tensor.h"
#include "kernels/device.h"

namespace thermocline {

class DenseArena {
 public:
  // Weights and gradients are zero at first, the state is the optimizer's first one. `device`
  // outlives the arena. REQUIRES: all tensors have the same optimizer.
  DenseArena(Device* device, const std::vector<DenseTable>& tensors);

  DeviceSpan<float> weights() const { return {weights_->floats(), floats_}; }  // [blocks, 256]
  DeviceSpan<float> gradients() const { return {gradients_->floats(), floats_}; }
  DeviceSpan<float> state() const {  // [blocks, StateFloats(optimizer, 256)]
    return {state_->floats(), state_floats_};
  }

  // Where the tensor begins, in floats of weights() and gradients().
  // REQUIRES: the arena has a tensor of this name and shape.
  int64_t OffsetOf(const DenseTensor& tensor) const;

 private:
  struct Place {
    int64_t offset = 0;
    int rows = 0, cols = 0;
  };

  std::map<std::string, Place> places_;
  int64_t floats_ = 0, state_floats_ = 0;
  std::unique_ptr<DeviceBuffer> weights_, gradients_, state_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_DENSE_ARENA_H_
