// Finds out which column of an inspected log is the label, and which of its texts are a 1. A wrong
// label trains as well as the right one, so the user is asked where it is not plain.
#ifndef THERMOCLINE_DEPLOY_INSPECT_LABEL_H_
#define THERMOCLINE_DEPLOY_INSPECT_LABEL_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace thermocline {

// The user's choice of the label; "" and {}: it is guessed.
struct LabelChoice {
  std::string column;
  std::vector<std::string> positive;  // Its texts that are a 1.
};

// Adds to the figures of an inspection "label" ("column"; "positive", unless the column has 0 and
// 1; "rate", "why"). If `choice` names no label and none is plain, adds "label_question" instead:
// the columns that may be the label, and what to do. Adds "warnings" if the rows are sorted by the
// label. Errors: kInvalidArgument (the chosen column can't be the label: says why).
absl::Status AddLabel(const LabelChoice& choice, nlohmann::ordered_json* figures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_LABEL_H_
