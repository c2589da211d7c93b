// Which column of an inspected log is the label, and which of its texts are
// a 1. Wrong labels train as well as right ones: what is not plain is asked
// for.
#ifndef THERMOCLINE_DEPLOY_INSPECT_LABEL_H_
#define THERMOCLINE_DEPLOY_INSPECT_LABEL_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace thermocline {

// What the user says of the label; "" and {}: it is to be guessed.
struct LabelChoice {
  std::string column;
  std::vector<std::string> positive;  // Its texts that are a 1.
};

// Adds to the figures of an inspection "label" ("column", "positive" but where the column has 0 and
// 1, "rate", "why"), or, where `choice` names none and none is plain, "label_question": the columns
// that may be it, and what to do. Also "warnings", where the rows are sorted by it. Errors:
// kInvalidArgument (the chosen one can't be: says why).
absl::Status AddLabel(const LabelChoice& choice, nlohmann::ordered_json* figures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_LABEL_H_
