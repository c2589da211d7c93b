// Presets: models of the field's papers, each a stanza of the job that stands for layers and a task
// (docs/models.md).
#ifndef THERMOCLINE_COMMON_MODEL_PRESETS_H_
#define THERMOCLINE_COMMON_MODEL_PRESETS_H_

#include <optional>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "proto/job.pb.h"

namespace thermocline {

// The names of the stanzas: "dlrm", "wide_deep", ...
std::vector<std::string> PresetNames();

// The presets that the job has stanzas of.
std::vector<std::string> PresetsOf(const Job& job);

// The first wrong value of the job's preset, as far as it shows before its layers are made.
// REQUIRES: the job has one preset.
std::optional<ModelError> CheckPreset(const Job& job, const ModelInputs& inputs);

// Replaces the job's preset by its layers and its task, which learns the first label; leaves a job
// without one as it is. REQUIRES: CheckPreset finds nothing.
void ExpandPreset(const ModelInputs& inputs, Job* job);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_PRESETS_H_
