// Finds out which columns of an inspected log are labels, and which of their texts are a 1. A wrong
// label trains as well as the right one, so the user is asked where it is not plain.
#ifndef THERMOCLINE_DEPLOY_INSPECT_LABEL_H_
#define THERMOCLINE_DEPLOY_INSPECT_LABEL_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace thermocline {

// The user's choice of the labels; "" and {}: they are guessed.
struct LabelChoice {
  std::string columns;                // Separated by commas.
  std::vector<std::string> positive;  // Their texts that are a 1.
};

// Adds to the figures of an inspection "label" ("column"; "positive", unless the column has 0 and
// 1; "rate", "why") and, where `choice` or npy files have several, "more_labels", a list of the
// same. If `choice` names no label and none is plain, adds "label_question" instead: the columns
// that may be the label, and what to do. Adds "warnings" if the rows are sorted by a label. Errors:
// kInvalidArgument (a chosen column can't be a label: says why).
absl::Status AddLabels(const LabelChoice& choice, nlohmann::ordered_json* figures);

// The labels that AddLabels has found; {}: there is a question.
std::vector<nlohmann::ordered_json> LabelsOf(const nlohmann::ordered_json& figures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_LABEL_H_
