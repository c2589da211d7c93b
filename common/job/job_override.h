// Paths to fields of a job, and changes to one field from the command line:
// `--set train.batch_size=2048`, `--clear cache`.
#ifndef THERMOCLINE_COMMON_JOB_JOB_OVERRIDE_H_
#define THERMOCLINE_COMMON_JOB_JOB_OVERRIDE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Descriptor;
class FieldDescriptor;
}  // namespace google::protobuf

namespace thermocline {

class Job;

// One step of a path to a field of a job: "train.batch_size", "table[2].settings.dim".
struct JobPathStep {
  const google::protobuf::FieldDescriptor* field = nullptr;
  int index = -1;  // -1: no index was given
};

// Resolves a path against a message type.
// Errors: kInvalidArgument: a name that the message doesn't have (with a suggestion), an index on a
// single field, a step through a field that is no message, or a repeated message without an index.
absl::StatusOr<std::vector<JobPathStep>> ParseJobPath(absl::string_view path,
                                                      const google::protobuf::Descriptor* root);

std::vector<std::string> FieldNames(const google::protobuf::Descriptor* message);

// " (did you mean 'HEX'?)" if an enum value has a similar name; else "".
std::string EnumHint(absl::string_view value, const std::vector<std::string>& names);

// Applies "path.to.field=value" and returns the path.
//
// An element of a repeated field is `name[i]`; the index one past the end appends. The value is
// written as in a job file: a number, true or false, an enum's name, text (quotes may be left out),
// a list `[512, 256]`, which replaces the whole field (of numbers also `512,256`), or a message
// `{...}`.
//
// Errors: kInvalidArgument (names the assignment, the path and what was wrong).
absl::StatusOr<std::string> ApplyOverride(absl::string_view assignment, Job* job);

// Removes the field at `path` from the job: a value, a message or a whole list. Does nothing if it
// is not set.
//
// Errors: kInvalidArgument (names the path and what was wrong; an element of a list cannot be
// removed).
absl::Status ClearField(absl::string_view path, Job* job);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_OVERRIDE_H_
