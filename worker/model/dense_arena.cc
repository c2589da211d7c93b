#include "worker/model/dense_arena.h"

#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"

namespace thermocline {

DenseArena::DenseArena(Device* device, const std::vector<DenseTable>& tensors) {
  for (const DenseTable& tensor : tensors) {
    CHECK(tensor.layout.optimizer == tensors[0].layout.optimizer);
    const bool is_new =
        places_.insert({tensor.layout.name, {floats_, tensor.rows, tensor.cols}}).second;
    CHECK(is_new);
    floats_ += tensor.num_blocks() * kDenseBlockFloats;
    state_floats_ += tensor.num_blocks() * tensor.layout.state_floats();
  }
  weights_ = device->Allocate(sizeof(float) * floats_);
  gradients_ = device->Allocate(sizeof(float) * floats_);
  state_ = device->Allocate(sizeof(float) * state_floats_);
  if (tensors.empty()) return;
  std::vector<float> first_state(state_floats_);
  const int block_floats = tensors[0].layout.state_floats();
  for (int64_t begin = 0; begin < state_floats_; begin += block_floats) {
    InitState(tensors[0].layout.optimizer, kDenseBlockFloats,
              absl::MakeSpan(first_state).subspan(begin, block_floats));
  }
  device->CopyToDevice(state_->data(), first_state.data(), sizeof(float) * state_floats_,
                       Stream::kCompute);
}

int64_t DenseArena::OffsetOf(const DenseTensor& tensor) const {
  const auto found = places_.find(tensor.name);
  CHECK(found != places_.end());
  CHECK_EQ(found->second.rows, tensor.rows());
  CHECK_EQ(found->second.cols, tensor.cols());
  return found->second.offset;
}

}  // namespace thermocline
