#include "common/job/job_source.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>

#include <algorithm>
#include <functional>
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

// Calls `visit` with `type` and the messages defined within it.
void VisitTypes(const Descriptor* type, const std::function<void(const Descriptor& type)>& visit) {
  visit(*type);
  for (int i = 0; i < type->nested_type_count(); ++i) VisitTypes(type->nested_type(i), visit);
}

// The same with all messages of a job.
void VisitJobTypes(const std::function<void(const Descriptor& type)>& visit) {
  const auto* file = Job::descriptor()->file();
  for (int i = 0; i < file->message_type_count(); ++i) VisitTypes(file->message_type(i), visit);
}

// The values of every enum field called `name`, in any message of a job.
std::vector<std::string> EnumValuesOf(const std::string& name) {
  std::set<std::string> values;
  VisitJobTypes([&](const Descriptor& type) {
    const FieldDescriptor* field = type.FindFieldByName(name);
    if (field == nullptr || field->enum_type() == nullptr) return;
    for (int v = 0; v < field->enum_type()->value_count(); ++v) {
      values.insert(field->enum_type()->value(v)->name());
    }
  });
  return {values.begin(), values.end()};
}

// " (it stands in 'settings')": the stanza of `type` that has the field `name`; "": none has.
std::string WhereItStands(const Descriptor& type, const std::string& name) {
  for (int i = 0; i < type.field_count(); ++i) {
    const Descriptor* stanza = type.field(i)->message_type();
    if (stanza == nullptr || stanza->FindFieldByName(name) == nullptr) continue;
    return absl::StrCat(" (it stands in '", type.field(i)->name(), "')");
  }
  return "";
}

// The stanza that there may be several of, each with one of the fields `a` and `b`; "": there is
// none.
std::string StanzaForEach(const std::string& a, const std::string& b) {
  std::string name;
  VisitJobTypes([&](const Descriptor& type) {
    for (int i = 0; i < type.field_count(); ++i) {
      const Descriptor* stanza = type.field(i)->message_type();
      if (stanza == nullptr || !type.field(i)->is_repeated()) continue;
      const FieldDescriptor* const field_a = stanza->FindFieldByName(a);
      const FieldDescriptor* const field_b = stanza->FindFieldByName(b);
      if (field_a == nullptr || field_b == nullptr) continue;
      if (field_a->containing_oneof() != field_b->containing_oneof()) continue;
      name = type.field(i)->name();
    }
  });
  return name;
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
      const std::string similar = DidYouMean(name, FieldNames(type));
      return absl::StrCat("unknown field '", name, "' in ", type->name(),
                          similar.empty() ? WhereItStands(*type, name) : similar);
    }
  }
  if (absl::StrContains(message, "Unknown enumeration value")) {
    const std::vector<std::string> values = EnumValuesOf(Quoted(message, 1));
    return absl::StrCat("field '", Quoted(message, 1), "' has no value '", Quoted(message, 0), "'",
                        EnumHint(Quoted(message, 0), values), "; it is one of ",
                        absl::StrJoin(values, ", "));
  }
  // The field is a stanza.
  if (absl::StrContains(message, "Expected \"{\", found")) {
    return absl::StrCat(Quoted(message, 1), " is no stanza, as { ... } is");
  }
  if (IsAboutOneTooMany(message)) {
    const std::string name = Quoted(message, 0), other = Quoted(message, 1);
    if (other.empty()) return absl::StrCat("'", name, "' is there twice");
    const std::string stanza = StanzaForEach(name, other);
    return absl::StrCat(
        "'", name, "' and '", other, "' exclude each other; ",
        stanza.empty() ? "leave one of them out" : absl::StrCat("write a '", stanza, "' for each"));
  }
  return message;
}

bool IsWordCharacter(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// The field whose value stands at the place in the text, or "": the parser's messages on wrong
// values ("Expected integer, got: x") don't name it.
std::string FieldAt(absl::string_view text, int line, int column) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (line < 0 || line >= static_cast<int>(lines.size())) return "";
  const absl::string_view code = lines[line].substr(0, lines[line].find('#'));
  // The last before the place; where the value itself is missing, the line's first.
  size_t colon = code.substr(0, std::max(column, 0)).rfind(':');
  if (colon == absl::string_view::npos) colon = code.find(':');
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

// The last position of `word` at or before `end`, else `end`. The parser notices a wrong name only
// at the token that follows it.
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
    const bool is_unknown_field = absl::StrContains(message, "has no field named");
    if (is_unknown_field) {
      position = LastWordBefore(text_, position, Quoted(message, 1));
    } else if (one_too_many || is_unknown_value) {
      position = LastWordBefore(text_, position, Quoted(message, 0));
    }
    std::string what = Explain(message);
    // The message already names a field or value that is unknown or one too many. Other fields on
    // its line have no part in the error.
    const bool names_itself = one_too_many || is_unknown_value || is_unknown_field;
    const std::string field = names_itself ? "" : FieldAt(text_, position.line, position.column);
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

}  // namespace thermocline
