#include "common/job/job_source.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_override.h"

namespace thermocline {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// The text between the n-th pair of double quotes of a parser's message, counted from 0.
std::string Quoted(const std::string& message, int n) {
  const std::vector<std::string> parts = absl::StrSplit(message, '"');
  const size_t index = 2 * static_cast<size_t>(n) + 1;
  return index < parts.size() ? parts[index] : "";
}

// Adds the values of the enum field `name` of `type` and of the messages defined within it.
void AddEnumValues(const Descriptor* type, const std::string& name, std::set<std::string>* values) {
  const FieldDescriptor* field = type->FindFieldByName(name);
  if (field != nullptr && field->enum_type() != nullptr) {
    for (int v = 0; v < field->enum_type()->value_count(); ++v) {
      values->insert(field->enum_type()->value(v)->name());
    }
  }
  for (int i = 0; i < type->nested_type_count(); ++i) {
    AddEnumValues(type->nested_type(i), name, values);
  }
}

// The values of every enum field called `name`, in any message of a job.
std::vector<std::string> EnumValuesOf(const std::string& name) {
  std::set<std::string> values;
  const auto* file = Job::descriptor()->file();
  for (int i = 0; i < file->message_type_count(); ++i) {
    AddEnumValues(file->message_type(i), name, &values);
  }
  return {values.begin(), values.end()};
}

// The parser's message on a field or stanza that is there twice, or beside another of its oneof.
bool IsAboutOneTooMany(const std::string& message) {
  return absl::StrContains(message, "is specified multiple times") ||
         absl::StrContains(message, "is specified along with field");
}

// Says what the parser says in the words of a job file.
std::string Explain(const std::string& message) {
  if (absl::StrContains(message, "has no field named")) {
    const Descriptor* type =
        Job::descriptor()->file()->pool()->FindMessageTypeByName(Quoted(message, 0));
    const std::string name = Quoted(message, 1);
    if (type != nullptr) {
      return absl::StrCat("unknown field '", name, "' in ", type->name(),
                          DidYouMean(name, FieldNames(type)));
    }
  }
  if (absl::StrContains(message, "Unknown enumeration value")) {
    const std::vector<std::string> values = EnumValuesOf(Quoted(message, 1));
    return absl::StrCat("field '", Quoted(message, 1), "' has no value '", Quoted(message, 0), "'",
                        DidYouMean(Quoted(message, 0), values), "; it is one of ",
                        absl::StrJoin(values, ", "));
  }
  if (IsAboutOneTooMany(message)) {
    const std::string name = Quoted(message, 0), other = Quoted(message, 1);
    return other.empty() ? absl::StrCat("'", name, "' is there twice")
                         : absl::StrCat("'", name, "' and '", other,
                                        "' exclude each other; leave one of them out");
  }
  return message;
}

bool IsWordCharacter(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// The field whose value stands on `line` of the text, or "": the parser's messages on wrong values
// ("Expected integer, got: x") don't name it.
std::string FieldAt(absl::string_view text, int line) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (line < 0 || line >= static_cast<int>(lines.size())) return "";
  const absl::string_view code = lines[line].substr(0, lines[line].find('#'));
  const size_t colon = code.find(':');
  if (colon == absl::string_view::npos) return "";
  size_t end = colon;
  while (end > 0 && code[end - 1] == ' ') --end;
  size_t begin = end;
  while (begin > 0 && (IsWordCharacter(code[begin - 1]))) --begin;
  return std::string(code.substr(begin, end - begin));
}

struct Position {
  int line;    // from 0
  int column;  // from 0
};

// Where `word` stands last at or before `end`, else `end`: the parser notices a wrong name only at
// the token that follows it.
Position LastWordBefore(absl::string_view text, Position end, absl::string_view word) {
  if (word.empty() || end.line < 0) return end;
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (int line = std::min<int>(end.line, static_cast<int>(lines.size()) - 1); line >= 0; --line) {
    const absl::string_view code = lines[line];
    size_t from = line == end.line ? static_cast<size_t>(end.column) : absl::string_view::npos;
    while (true) {
      const size_t at = code.rfind(word, from);
      if (at == absl::string_view::npos) break;
      const size_t after = at + word.size();
      const bool begins = at == 0 || !IsWordCharacter(code[at - 1]);
      const bool ends = after == code.size() || !IsWordCharacter(code[after]);
      if (begins && ends) return {line, static_cast<int>(at)};
      if (at == 0) break;
      from = at - 1;
    }
  }
  return end;
}

// Collects the parser's errors as "FILE:LINE:COLUMN: what is wrong".
class ErrorList : public google::protobuf::io::ErrorCollector {
 public:
  ErrorList(absl::string_view file, absl::string_view text) : file_(file), text_(text) {}

  void AddError(int line, int column, const std::string& message) override {
    Position position = {line, column};
    const bool one_too_many = IsAboutOneTooMany(message);
    const bool is_unknown_value = absl::StrContains(message, "Unknown enumeration value");
    if (absl::StrContains(message, "has no field named")) {
      position = LastWordBefore(text_, position, Quoted(message, 1));
    } else if (one_too_many || is_unknown_value) {
      position = LastWordBefore(text_, position, Quoted(message, 0));
    }
    std::string what = Explain(message);
    // What is one too many names itself, as does a wrong value: others on its line have no part in
    // it.
    const std::string field = one_too_many || is_unknown_value ? "" : FieldAt(text_, position.line);
    if (!field.empty() && !absl::StrContains(what, field)) {
      what = absl::StrCat("field '", field, "': ", what);
    }
    const std::string where =
        line < 0 ? file_ : absl::StrCat(file_, ":", position.line + 1, ":", position.column + 1);
    errors_.push_back(absl::StrCat(where, ": ", what));
  }

  std::string Text() const { return absl::StrJoin(errors_, "\n"); }

 private:
  const std::string file_;
  const absl::string_view text_;
  std::vector<std::string> errors_;
};

bool IsPrefix(absl::string_view prefix, absl::string_view path) {
  return absl::StartsWith(path, prefix) &&
         (path.size() == prefix.size() || path[prefix.size()] == '.' || path[prefix.size()] == '[');
}

}  // namespace

absl::StatusOr<JobSource> JobSource::Parse(absl::string_view text, absl::string_view file,
                                           const std::vector<std::string>& overrides,
                                           const std::vector<std::string>& cleared) {
  JobSource source;
  source.file_ = std::string(file);
  source.lines_ = std::make_unique<TextFormat::ParseInfoTree>();
  ErrorList errors(file, text);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(source.lines_.get());
  if (!parser.ParseFromString(std::string(text), &source.job_)) {
    return absl::InvalidArgumentError(errors.Text());
  }
  for (const std::string& path : cleared) {
    RETURN_IF_ERROR(ClearField(path, &source.job_));
    source.changes_.push_back({path, absl::StrCat("--clear ", path)});
  }
  for (const std::string& assignment : overrides) {
    ASSIGN_OR_RETURN(std::string path, ApplyOverride(assignment, &source.job_));
    source.changes_.push_back({std::move(path), absl::StrCat("--set ", assignment)});
  }
  return source;
}

std::string JobSource::Locate(absl::string_view path) const {
  for (auto it = changes_.rbegin(); it != changes_.rend(); ++it) {
    if (IsPrefix(it->path, path)) return it->flag;
  }
  const auto steps = ParseJobPath(path, Job::descriptor());
  if (!steps.ok()) return file_;
  const TextFormat::ParseInfoTree* tree = lines_.get();
  int line = -1;
  for (const JobPathStep& step : *steps) {
    if (tree == nullptr) break;
    const int index = step.field->is_repeated() ? std::max(step.index, 0) : -1;
    const int here = tree->GetLocation(step.field, index).line;
    if (here < 0) break;
    line = here;
    tree =
        step.field->message_type() == nullptr ? nullptr : tree->GetTreeForNested(step.field, index);
  }
  return line < 0 ? file_ : absl::StrCat(file_, ":", line + 1);
}

absl::Status JobSource::Error(absl::string_view path, absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(Locate(path), ": ", path, " ", what));
}

}  // namespace thermocline
