// A matrix of activations, or of their gradients, with room for the samples of the largest batch.
#ifndef THERMOCLINE_WORKER_MODEL_ACTIVATION_H_
#define THERMOCLINE_WORKER_MODEL_ACTIVATION_H_

#include <cstdint>
#include <memory>

#include "kernels/device.h"

namespace thermocline {

class Activation {
 public:
  // ld: the leading dimension, in floats; at least `columns`.
  Activation(Device* device, int32_t max_batch, int32_t columns, int64_t ld)
      : buffer_(device->Allocate(sizeof(float) * ld * max_batch)), columns_(columns), ld_(ld) {}
  Activation(Device* device, int32_t max_batch, int32_t columns)
      : Activation(device, max_batch, columns, columns) {}

  Matrix Rows(int32_t batch) const {  // [batch, columns] float32, device
    return FloatMatrix(buffer_->floats(), batch, columns_, ld_);
  }

 private:
  std::unique_ptr<DeviceBuffer> buffer_;
  int32_t columns_;
  int64_t ld_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_ACTIVATION_H_
