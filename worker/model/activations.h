// The matrices of a graph's activations and of their gradients in device memory, with a row for
// each sample or step of the batch under way. There is room for the samples of the largest batches
// from the start; room for steps grows, that of gradients with batches that are trained alone.
//
// The gradients of pooled vectors that tables with rows of one dim may share lie in one arena,
// which is seen as [vectors, dim]: those of samples, then those of each sequence's steps. So a
// key's gradients are summed wherever it is read (VectorPlace).
#ifndef THERMOCLINE_WORKER_MODEL_ACTIVATIONS_H_
#define THERMOCLINE_WORKER_MODEL_ACTIVATIONS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/model_graph.h"
#include "kernels/device.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {

class Activations {
 public:
  // Pooled features whose vectors' gradients lie in one arena.
  struct Arena {
    int32_t dim = 0;
    std::vector<int> groups;  // Indices of ModelGraph::pooled, samples' first.
  };

  // `device` and `graph` outlive it. num_sequences: of the model's inputs.
  Activations(Device* device, const ModelGraph& graph, int num_sequences, const BatchRoom& room);

  const std::vector<Arena>& arenas() const { return arenas_; }
  // Where a model has the vectors of each feature of the groups. Constant.
  std::vector<VectorPlace> PlacesOf(int num_features) const;

  // Sets the rows that the matrices below have, and makes room for them; for gradients where the
  // batch is trained. Returns the sequences whose memory has moved: what was in it is lost.
  std::vector<int> Begin(const SparseBatch& batch, bool is_trained);

  // sequence: kSamples, or whose steps.
  int32_t RowsOf(int sequence) const { return rows_[sequence + 1]; }
  BatchRoom RoomOf(int sequence) const { return room_[sequence + 1]; }  // In rows.
  int SequenceOf(const Columns& columns) const { return graph_.buffers[columns.buffer].sequence; }

  Matrix ValueOf(const Columns& columns) const;     // [rows, width] float32, device
  Matrix GradientOf(const Columns& columns) const;  // The same. REQUIRES: the batch is trained
  Matrix ValueOf(int buffer) const { return ValueOf(AllOf(buffer)); }
  Matrix GradientOf(int buffer) const { return GradientOf(AllOf(buffer)); }
  Matrix VectorGradients(size_t arena) const;  // [vectors, dim]

 private:
  struct Buffer {
    std::unique_ptr<DeviceBuffer> values, gradients;  // Null: it has none of its own.
    int arena = -1;                                   // The gradients lie there; -1: in a buffer.
    int64_t first_float = 0;                          // They begin there, in the batch at hand.
  };

  Columns AllOf(int buffer) const { return {buffer, 0, graph_.buffers[buffer].columns}; }
  std::unique_ptr<DeviceBuffer> AllocateFloats(int64_t floats);
  void MakeArenas();
  bool HasSteps(const Arena& arena) const;
  // What lies in the memory is lost.
  void AllocateValues(int sequence);
  void AllocateGradients(int sequence);
  void PlaceGradients();

  Device* const device_;
  const ModelGraph& graph_;
  std::vector<int32_t> rows_;    // [1 + sequences] samples first
  std::vector<BatchRoom> room_;  // the same
  std::vector<Buffer> buffers_;  // [graph's buffers]
  std::vector<Arena> arenas_;
  std::vector<std::unique_ptr<DeviceBuffer>> arena_memory_;  // [arenas] null: its one buffer's.
  std::vector<int64_t> arena_vectors_;                       // [arenas] in the batch at hand
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_ACTIVATIONS_H_
