// Reading JSON that another program wrote: what is missing or of another type is absent, no error.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_JSON_NUMBER_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_JSON_NUMBER_H_

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace thermocline {

// The finite number called `name` of an object.
inline std::optional<double> NumberAt(const nlohmann::ordered_json& json, const char* name) {
  if (!json.is_object()) return std::nullopt;
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_JSON_NUMBER_H_
