// The layers and the task of a job, checked and turned into the nodes of a graph. Each kind of
// layer stands in one function of layers.cc; docs/models.md has them for users.
#ifndef THERMOCLINE_COMMON_MODEL_LAYERS_H_
#define THERMOCLINE_COMMON_MODEL_LAYERS_H_

#include <cstdint>
#include <optional>

#include "common/model/model_spec.h"
#include "proto/job.pb.h"

namespace thermocline {

// Above it a width is a typo, not a wish.
inline constexpr uint32_t kMaxLayerWidth = 65536;

// Fills the tensors, the graph and the first-order weights of `spec`, whose inputs are set. Returns
// the first error in the job's `group`, `layer` and `task` instead.
std::optional<ModelError> AddLayers(const Job& job, ModelSpec* spec);

// Looks for a width that no layer may have. field: of the job, "dlrm.top".
std::optional<ModelError> CheckWidths(const std::string& field,
                                      const google::protobuf::RepeatedField<uint32_t>& widths);
// A share of units that a step may drop is in [0, 1).
std::optional<ModelError> CheckDropout(const std::string& field, float dropout);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_LAYERS_H_
