// Paths to fields of a job: "train.batch_size", "table[2].settings.dim".
#ifndef THERMOCLINE_COMMON_JOB_JOB_PATH_H_
#define THERMOCLINE_COMMON_JOB_JOB_PATH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Descriptor;
class FieldDescriptor;
}  // namespace google::protobuf

namespace thermocline {

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

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_PATH_H_
