// What a job's sequences mean to its model: their names, and which lists it needs step by step
// alone.
#ifndef THERMOCLINE_COMMON_MODEL_SEQUENCES_H_
#define THERMOCLINE_COMMON_MODEL_SEQUENCES_H_

#include <optional>
#include <string>

#include "common/model/dense_tensor.h"
#include "common/model/model_spec.h"
#include "proto/job.pb.h"

namespace thermocline {

// Whether `name` is a word of Layer.input, which stands for several features.
bool IsReservedName(const std::string& name);

// Whether `name` may be that of a layer, group or sequence: letters, digits and '_', and no word of
// Layer.input.
bool IsInputName(const std::string& name);

// The same check, of what stands in a field of the job.
std::optional<ModelError> CheckInputName(const std::string& field, const std::string& name);

// What a layer reads beside its inputs: Attention.query, Gate.by or FeatureGate.by.
struct ContextNames {
  const char* field;
  const google::protobuf::RepeatedPtrField<std::string>& names;
};
ContextNames ContextNamesOf(const Layer& layer);

// Checks that no sequence has the name of another, of a feature, or of one of the job's layers and
// groups.
std::optional<ModelError> CheckSequenceNames(const Job& job);

// Whether a layer, group or task of `job`, which has no preset, names a feature, so that its pooled
// vector is read. is_list: it is not among `fields`.
bool IsReadPooled(const Job& job, const std::string& feature, bool is_list);

// Leaves the features out that a job's sequences alone read: as pooled ones, since they are
// features of their sequences. Others that no layer reads stay. `job` has no preset.
ModelInputs WithoutUnpooled(const Job& job, const ModelInputs& inputs);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_SEQUENCES_H_
