#include "common/model/sequences.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using Names = google::protobuf::RepeatedPtrField<std::string>;

template <typename Stanzas>
bool HasName(const Stanzas& stanzas, const std::string& name) {
  return std::any_of(stanzas.begin(), stanzas.end(),
                     [&](const auto& stanza) { return stanza.name() == name; });
}

// What has the name of a sequence already; null: nothing has.
const char* OwnerOf(const Job& job, const std::string& name) {
  if (HasName(job.feature(), name)) return "a feature";
  if (HasName(job.layer(), name)) return "a layer";
  if (HasName(job.group(), name)) return "a group";
  return nullptr;
}

}  // namespace

bool IsReservedName(const std::string& name) {
  return name == "numeric" || name == "categorical" || name == "fields";
}

bool IsInputName(const std::string& name) {
  return !name.empty() && !IsReservedName(name) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

std::optional<ModelError> CheckInputName(const std::string& field, const std::string& name) {
  if (IsReservedName(name)) {
    return ModelError{
        field, absl::StrCat("is '", name, "', a word for several features; name it otherwise")};
  }
  if (IsInputName(name)) return std::nullopt;
  return ModelError{field,
                    absl::StrCat("is '", name, "'; it must be a name of letters, digits and '_'")};
}

ContextNames ContextNamesOf(const Layer& layer) {
  if (layer.has_attention()) return {"attention.query", layer.attention().query()};
  if (layer.has_gate()) return {"gate.by", layer.gate().by()};
  return {"feature_gate.by", layer.feature_gate().by()};
}

std::optional<ModelError> CheckSequenceNames(const Job& job) {
  std::set<std::string> names;
  for (int i = 0; i < job.sequence_size(); ++i) {
    const std::string& name = job.sequence(i).name();
    const std::string field = absl::StrCat("sequence[", i, "].name");
    std::optional<ModelError> error = CheckInputName(field, name);
    if (error.has_value()) return error;
    if (!names.insert(name).second) {
      return ModelError{field, absl::StrCat("is '", name, "' a second time")};
    }
    if (const char* const owner = OwnerOf(job, name); owner != nullptr) {
      return ModelError{field, absl::StrCat("is '", name, "', the name of ", owner,
                                            "; name one of them otherwise")};
    }
  }
  return std::nullopt;
}

bool IsReadPooled(const Job& job, const std::string& feature, bool is_list) {
  const auto names_it = [&](const Names& names) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name == feature || name == "categorical" || (name == "fields" && !is_list);
    });
  };
  const auto reads = [&](const Layer& layer) {
    return names_it(layer.input()) || names_it(ContextNamesOf(layer).names);
  };
  return std::any_of(job.layer().begin(), job.layer().end(), reads) ||
         std::any_of(job.group().begin(), job.group().end(),
                     [&](const FeatureGroup& group) { return names_it(group.feature()); }) ||
         std::any_of(job.task().begin(), job.task().end(),
                     [&](const Task& task) { return names_it(task.input()); });
}

ModelInputs WithoutUnpooled(const Job& job, const ModelInputs& inputs) {
  std::set<std::string> in_sequence;
  for (const Sequence& sequence : job.sequence()) {
    in_sequence.insert(sequence.of().begin(), sequence.of().end());
    in_sequence.insert(sequence.then().begin(), sequence.then().end());
  }
  ModelInputs kept = inputs;
  kept.features.clear();
  for (const EmbeddedFeature& feature : inputs.features) {
    if (feature.sequence < 0 && in_sequence.count(feature.name) > 0 &&
        !IsReadPooled(job, feature.name, feature.is_sequence)) {
      continue;
    }
    kept.features.push_back(feature);
  }
  const auto left_out = static_cast<int>(inputs.features.size() - kept.features.size());
  for (StepSequence& sequence : kept.sequences) sequence.first_feature -= left_out;
  return kept;
}

}  // namespace thermocline
