#include "common/job/job_override.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string& message) override {
    if (text.empty()) text = message;
  }
  std::string text;
};

bool IsQuoted(absl::string_view value) {
  return value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
         value.back() == value.front();
}

// The assignment as a line of a job file.
std::string AsText(const FieldDescriptor& field, absl::string_view value) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return absl::StrCat(field.name(), " ", value);
  }
  const bool is_list = field.is_repeated() && absl::StartsWith(value, "[");
  // A comma may be a part of a text.
  const bool is_text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  if (field.is_repeated() && !is_list && !is_text && !value.empty()) {
    return absl::StrCat(field.name(), ": [", value, "]");
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && !is_list && !IsQuoted(value)) {
    return absl::StrCat(field.name(), ": \"", absl::CEscape(value), "\"");
  }
  return absl::StrCat(field.name(), ": ", value);
}

// Walks to the message that holds the last field. What is not there yet is made, or, where `make`
// is false, the message is null.
absl::StatusOr<Message*> Descend(const std::vector<JobPathStep>& path, bool make,
                                 Message* message) {
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const Reflection* reflection = message->GetReflection();
    const auto& [field, index] = path[i];
    if (!field->is_repeated()) {
      if (!make && !reflection->HasField(*message, field)) return static_cast<Message*>(nullptr);
      message = reflection->MutableMessage(message, field);
      continue;
    }
    const int size = reflection->FieldSize(*message, field);
    if (index > size || (index == size && !make)) {
      const bool may_be_presets =
          size == 0 && (field->name() == "task" || field->name() == "layer");
      return absl::InvalidArgumentError(absl::StrCat(
          field->name(), "[", index, "]: there are ", size,
          may_be_presets ? "; those of a preset stand in the job.textproto of a run" : ""));
    }
    message = index == size ? reflection->AddMessage(message, field)
                            : reflection->MutableRepeatedMessage(message, field, index);
  }
  return message;
}

absl::Status Assign(const JobPathStep& step, absl::string_view value, Message* message) {
  const Reflection* reflection = message->GetReflection();
  const std::unique_ptr<Message> parsed(message->New());
  google::protobuf::TextFormat::Parser parser;
  FirstError error;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(AsText(*step.field, value), parsed.get())) {
    return absl::InvalidArgumentError(error.text);
  }
  // A value such as "1 seed: 2" would set a second field.
  std::vector<const FieldDescriptor*> fields;
  parsed->GetReflection()->ListFields(*parsed, &fields);
  if (fields.size() > 1 || (fields.size() == 1 && fields[0] != step.field)) {
    return absl::InvalidArgumentError(absl::StrCat("'", value, "' is more than one value"));
  }
  if (step.index < 0) {
    reflection->ClearField(message, step.field);
    message->MergeFrom(*parsed);
    return absl::OkStatus();
  }
  const int size = reflection->FieldSize(*message, step.field);
  if (step.index > size) {
    return absl::InvalidArgumentError(
        absl::StrCat("index ", step.index, " is past the end; there are ", size));
  }
  if (reflection->FieldSize(*parsed, step.field) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", value, "' is not one value"));
  }
  message->MergeFrom(*parsed);  // appends
  if (step.index < size) {
    reflection->SwapElements(message, step.field, step.index, size);
    reflection->RemoveLast(message, step.field);
  }
  return absl::OkStatus();
}

absl::Status Clear(const std::vector<JobPathStep>& path, Message* message) {
  if (path.back().index >= 0) {
    return absl::InvalidArgumentError(
        "an element can't be taken out of its list; clear the list, or set it anew");
  }
  ASSIGN_OR_RETURN(message, Descend(path, /*make=*/false, message));
  if (message == nullptr) return absl::OkStatus();
  message->GetReflection()->ClearField(message, path.back().field);
  return absl::OkStatus();
}

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

absl::StatusOr<std::string> ApplyOverride(absl::string_view assignment, Job* job) {
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", assignment, ": ", what));
  };
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return error("write path.to.field=value");
  }
  const absl::string_view path = assignment.substr(0, equals);
  const absl::string_view value = assignment.substr(equals + 1);
  auto steps = ParseJobPath(path, Job::descriptor());
  if (!steps.ok()) return error(steps.status().message());
  auto holder = Descend(*steps, /*make=*/true, job);
  if (!holder.ok()) return error(holder.status().message());
  const absl::Status assigned = Assign(steps->back(), value, *holder);
  if (!assigned.ok()) {
    std::string hint;
    if (const auto* type = steps->back().field->enum_type()) {
      std::vector<std::string> names;
      for (int i = 0; i < type->value_count(); ++i) names.push_back(type->value(i)->name());
      hint = EnumHint(value, names);
    }
    return error(absl::StrCat(path, ": ", assigned.message(), hint));
  }
  return std::string(path);
}

absl::Status ClearField(absl::string_view path, Job* job) {
  const auto steps = ParseJobPath(path, Job::descriptor());
  const absl::Status status = steps.ok() ? Clear(*steps, job) : steps.status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--clear ", path, ": ", status.message()));
}

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
