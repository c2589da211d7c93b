// Suggests what to do with the columns of an inspected log: which is the label, which are features
// of which kind, and how large their tables get.
#ifndef THERMOCLINE_DEPLOY_INSPECT_SUGGESTIONS_H_
#define THERMOCLINE_DEPLOY_INSPECT_SUGGESTIONS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "deploy/inspect/label.h"

namespace thermocline {

// These return a figure or a text of an inspection's object. REQUIRES: it has one of this name
inline double Figure(const nlohmann::ordered_json& figures, const char* name) {
  return figures.at(name).get<double>();
}
inline std::string FigureText(const nlohmann::ordered_json& figures, const char* name) {
  return figures.at(name).get<std::string>();
}

// Uses of a column ("use" in the figures).
inline constexpr char kUseLabel[] = "label";
inline constexpr char kUseNumeric[] = "numeric";
inline constexpr char kUseCategorical[] = "categorical";  // Also for lists and sequences ("type").
inline constexpr char kUseHour[] = "hour";                // The hour of the day of a time.
inline constexpr char kUseNone[] = "none";

// Adds to the figures of an inspection: what AddLabels() does, "dim" of all tables, and for each
// column "use", "use_why" and, where it reads a table, "table_bytes". Errors: AddLabels'.
absl::Status AddSuggestions(const LabelChoice& choice, nlohmann::ordered_json* figures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_SUGGESTIONS_H_
