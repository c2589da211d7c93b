// Drafts a first job file for an inspected log. It trains as it is, and its comments say what was
// guessed and what else might be tried.
#ifndef THERMOCLINE_DEPLOY_INSPECT_JOB_DRAFT_H_
#define THERMOCLINE_DEPLOY_INSPECT_JOB_DRAFT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace thermocline {

// Returns the text of the job file.
//   figures: those of an inspection, with suggestions
//   paths: the log's, absolute
//   file: the job file's name; the job is named after it
//   model: one of PresetNames()
// Errors: kFailedPrecondition (there is no label, or no feature that the model can use: says what
// to do).
absl::StatusOr<std::string> DraftJob(const nlohmann::ordered_json& figures,
                                     const std::vector<std::string>& paths, const std::string& file,
                                     const std::string& model);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_JOB_DRAFT_H_
