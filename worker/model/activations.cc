#include "worker/model/activations.h"

#include <algorithm>

#include "common/base/check.h"

namespace thermocline {
namespace {

// Vectors in a row of the group's buffer.
int32_t VectorsOf(const PooledFeatures& group) {
  return group.leading + static_cast<int32_t>(group.features.size());
}

}  // namespace

Activations::Activations(Device* device, const ModelGraph& graph, int num_sequences,
                         const BatchRoom& room)
    : device_(device),
      graph_(graph),
      rows_(1 + num_sequences, 0),
      room_(1 + num_sequences, {kStepRows, room.trained == 0 ? 0 : kStepRows}),
      buffers_(graph.buffers.size()) {
  CHECK_GE(room.computed, std::max<int64_t>(room.trained, 1));
  room_[0] = room;
  MakeArenas();
  for (int sequence = kSamples; sequence < num_sequences; ++sequence) {
    AllocateValues(sequence);
    if (room.trained > 0) AllocateGradients(sequence);
  }
}

void Activations::MakeArenas() {
  // Rows with first-order weights are read by samples alone.
  for (int samples = 1; samples >= 0; --samples) {
    for (size_t g = 0; g < graph_.pooled.size(); ++g) {
      const PooledFeatures& group = graph_.pooled[g];
      if ((group.sequence == kSamples) != (samples == 1)) continue;
      const auto shared = std::find_if(arenas_.begin(), arenas_.end(), [&](const Arena& arena) {
        const PooledFeatures& first = graph_.pooled[arena.groups[0]];
        return arena.dim == group.dim && first.first_order == kNoBuffer;
      });
      if (samples == 0 && shared != arenas_.end()) {
        shared->groups.push_back(static_cast<int>(g));
      } else {
        arenas_.push_back({group.dim, {static_cast<int>(g)}});
      }
    }
  }
  for (size_t a = 0; a < arenas_.size(); ++a) {
    if (!HasSteps(arenas_[a])) continue;
    for (const int g : arenas_[a].groups) {
      buffers_[graph_.pooled[g].vectors].arena = static_cast<int>(a);
    }
  }
  arena_memory_.resize(arenas_.size());
  arena_vectors_.resize(arenas_.size());
}

bool Activations::HasSteps(const Arena& arena) const {
  return graph_.pooled[arena.groups.back()].sequence != kSamples;
}

std::vector<VectorPlace> Activations::PlacesOf(int num_features) const {
  std::vector<VectorPlace> places(num_features);
  for (const Arena& arena : arenas_) {
    int32_t first = 0, behind = -1;
    for (const int g : arena.groups) {
      const PooledFeatures& group = graph_.pooled[g];
      const int32_t stride = VectorsOf(group);
      const bool is_by_step = group.sequence != kSamples;
      for (size_t i = 0; i < group.features.size(); ++i) {
        places[group.features[i]] = {first + group.leading + static_cast<int32_t>(i), stride,
                                     is_by_step, behind};
      }
      if (is_by_step) {
        behind = group.features[0];
      } else {
        first = static_cast<int32_t>(room_[0].trained) * stride;
      }
    }
  }
  return places;
}

std::unique_ptr<DeviceBuffer> Activations::AllocateFloats(int64_t floats) {
  return device_->Allocate(sizeof(float) * std::max<int64_t>(floats, 1));
}

void Activations::AllocateValues(int sequence) {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const GraphBuffer& graph = graph_.buffers[b];
    if (graph.sequence != sequence || !graph.has_value) continue;
    buffers_[b].values.reset();  // Its memory may be needed.
    buffers_[b].values = AllocateFloats(graph.ld * RoomOf(sequence).computed);
  }
}

void Activations::AllocateGradients(int sequence) {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const GraphBuffer& graph = graph_.buffers[b];
    if (graph.sequence != sequence || !graph.has_gradient || buffers_[b].arena >= 0) continue;
    buffers_[b].gradients.reset();
    buffers_[b].gradients = AllocateFloats(graph.ld * RoomOf(sequence).trained);
  }
  for (size_t a = 0; a < arenas_.size(); ++a) {
    if (!HasSteps(arenas_[a])) continue;
    bool is_affected = false;
    int64_t vectors = 0;
    for (const int g : arenas_[a].groups) {
      const PooledFeatures& group = graph_.pooled[g];
      is_affected = is_affected || group.sequence == sequence;
      vectors += RoomOf(group.sequence).trained * VectorsOf(group);
    }
    if (!is_affected) continue;
    arena_memory_[a].reset();
    arena_memory_[a] = AllocateFloats(vectors * arenas_[a].dim);
  }
}

std::vector<int> Activations::Begin(const SparseBatch& batch, bool is_trained) {
  CHECK_LE(batch.batch_size, is_trained ? room_[0].trained : room_[0].computed);
  CHECK_EQ(batch.sequences.size() + 1, rows_.size());
  rows_[0] = batch.batch_size;
  std::vector<int> moved;
  for (int s = 0; s + 1 < static_cast<int>(rows_.size()); ++s) {
    const int64_t steps = batch.sequences[s].steps;
    rows_[s + 1] = static_cast<int32_t>(device_->is_host_memory() ? steps : PaddedSteps(steps));
    BatchRoom& room = room_[s + 1];
    const bool needs_values = rows_[s + 1] > room.computed;
    const bool needs_gradients = is_trained && rows_[s + 1] > room.trained;
    // A quarter more than is needed, since batches differ.
    const int64_t more = PaddedSteps(steps + steps / 4);
    if (needs_values) {
      room.computed = more;
      AllocateValues(s);
    }
    if (needs_gradients) {
      room.trained = more;
      AllocateGradients(s);
    }
    if (needs_values || needs_gradients) moved.push_back(s);
  }
  PlaceGradients();
  return moved;
}

void Activations::PlaceGradients() {
  for (size_t a = 0; a < arenas_.size(); ++a) {
    int64_t vectors = 0;
    for (const int g : arenas_[a].groups) {
      const PooledFeatures& group = graph_.pooled[g];
      if (group.vectors != kNoBuffer) buffers_[group.vectors].first_float = vectors * group.dim;
      const int64_t rows = !HasSteps(arenas_[a])        ? RowsOf(kSamples)
                           : group.sequence == kSamples ? RoomOf(kSamples).trained
                                                        : PaddedSteps(RowsOf(group.sequence));
      vectors += rows * VectorsOf(group);
    }
    arena_vectors_[a] = vectors;
  }
}

Matrix Activations::ValueOf(const Columns& columns) const {
  const GraphBuffer& graph = graph_.buffers[columns.buffer];
  const Matrix all = FloatMatrix(buffers_[columns.buffer].values->floats(), RowsOf(graph.sequence),
                                 graph.columns, graph.ld);
  return ColumnsOf(all, columns.first, columns.width);
}

Matrix Activations::GradientOf(const Columns& columns) const {
  const GraphBuffer& graph = graph_.buffers[columns.buffer];
  const Buffer& buffer = buffers_[columns.buffer];
  float* const floats = buffer.arena < 0
                            ? buffer.gradients->floats()
                            : PartOf(arena_memory_[buffer.arena]->floats(), buffer.first_float);
  return ColumnsOf(FloatMatrix(floats, RowsOf(graph.sequence), graph.columns, graph.ld),
                   columns.first, columns.width);
}

Matrix Activations::VectorGradients(size_t arena) const {
  const int buffer = graph_.pooled[arenas_[arena].groups[0]].vectors;
  float* const floats = arena_memory_[arena] != nullptr ? arena_memory_[arena]->floats()
                                                        : buffers_[buffer].gradients->floats();
  return FloatMatrix(floats, static_cast<int32_t>(arena_vectors_[arena]), arenas_[arena].dim);
}

}  // namespace thermocline
