#include <google/protobuf/descriptor.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_override.h"

namespace thermocline {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Splits "table[2]" into its name and index.
absl::StatusOr<int> SplitIndex(absl::string_view* name) {
  const size_t bracket = name->find('[');
  if (bracket == absl::string_view::npos) return -1;
  const absl::string_view digits = name->substr(bracket + 1);
  int index = 0;
  if (digits.empty() || digits.back() != ']' ||
      !absl::SimpleAtoi(digits.substr(0, digits.size() - 1), &index) || index < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", *name, "' is no field and index; write name[0]"));
  }
  *name = name->substr(0, bracket);
  return index;
}

absl::StatusOr<JobPathStep> ParseStep(absl::string_view text, const Descriptor* message,
                                      absl::string_view walked, bool is_last) {
  JobPathStep step;
  absl::string_view name = text;
  ASSIGN_OR_RETURN(step.index, SplitIndex(&name));
  step.field = message->FindFieldByName(std::string(name));
  if (step.field == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(walked.empty() ? "a job" : walked,
                                                   " has no field '", name, "'",
                                                   DidYouMean(name, FieldNames(message))));
  }
  if (step.index >= 0 && !step.field->is_repeated()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' has an index, but ", name, " is a single field"));
  }
  if (is_last) return step;
  if (step.field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is a value; it has no fields"));
  }
  if (step.field->is_repeated() && step.index < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is a list: say which one, as in ", name, "[0]"));
  }
  return step;
}

}  // namespace

absl::StatusOr<std::vector<JobPathStep>> ParseJobPath(absl::string_view path,
                                                      const Descriptor* root) {
  std::vector<JobPathStep> steps;
  const Descriptor* message = root;
  const std::vector<absl::string_view> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const absl::string_view walked = i == 0 ? "" : names[i - 1];
    ASSIGN_OR_RETURN(JobPathStep step, ParseStep(names[i], message, walked, i + 1 == names.size()));
    steps.push_back(step);
    message = step.field->message_type();
  }
  return steps;
}

std::string EnumHint(absl::string_view value, const std::vector<std::string>& names) {
  // By its letters it is nearer to CPU.
  const bool is_gpu = absl::AsciiStrToUpper(value) == "GPU";
  const bool has_cuda = std::find(names.begin(), names.end(), "CUDA") != names.end();
  return is_gpu && has_cuda ? " (did you mean 'CUDA'?)" : DidYouMean(value, names);
}

std::vector<std::string> FieldNames(const Descriptor* message) {
  std::vector<std::string> names;
  for (int i = 0; i < message->field_count(); ++i) names.push_back(message->field(i)->name());
  return names;
}

}  // namespace thermocline
