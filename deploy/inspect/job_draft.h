// A first job file for an inspected log: it trains as it is, and says in comments what was guessed
// and what else might be tried.
#ifndef THERMOCLINE_DEPLOY_INSPECT_JOB_DRAFT_H_
#define THERMOCLINE_DEPLOY_INSPECT_JOB_DRAFT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace thermocline {

// figures: of an inspection, with suggestions. `paths`: of the log, absolute. `file`: the job
// file's name, for the comment; the job is named after it. Errors: kFailedPrecondition (there is no
// label, or no feature: says what to do).
absl::StatusOr<std::string> DraftJob(const nlohmann::ordered_json& figures,
                                     const std::vector<std::string>& paths,
                                     const std::string& file);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_JOB_DRAFT_H_
