// Which fields of two jobs differ.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "deploy/page/run_document.h"

namespace thermocline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxFields = 500;

// Fields by their path, in the order of the messages.
struct FlatFields {
  std::vector<std::string> paths;
  std::map<std::string, std::string> values;

  void Add(const std::string& path, const std::string& value) {
    const auto [found, is_new] = values.emplace(path, value);
    if (is_new) paths.push_back(path);
    if (!is_new) absl::StrAppend(&found->second, ", ", value);
  }
};

// An element of a list is named by its field `name`, where it has one; else by its place.
std::string NameOf(const Message& element, int index) {
  const FieldDescriptor* const name = element.GetDescriptor()->FindFieldByName("name");
  if (name == nullptr || name->cpp_type() != FieldDescriptor::CPPTYPE_STRING ||
      name->is_repeated()) {
    return absl::StrCat(index);
  }
  const std::string text = element.GetReflection()->GetString(element, name);
  return text.empty() ? absl::StrCat(index) : text;
}

void Flatten(const Message& message, const std::string& prefix, FlatFields* fields) {
  const Reflection* const reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> present;
  reflection->ListFields(message, &present);
  for (const FieldDescriptor* field : present) {
    const std::string path = absl::StrCat(prefix, prefix.empty() ? "" : ".", field->name());
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const int size = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    if (is_message && !field->is_repeated()) {
      const Message& part = reflection->GetMessage(message, field);
      fields->Add(path, "set");
      Flatten(part, path, fields);
      continue;
    }
    for (int i = 0; i < size; ++i) {
      if (is_message) {
        const Message& element = reflection->GetRepeatedMessage(message, field, i);
        const std::string name = absl::StrCat(path, "[", NameOf(element, i), "]");
        fields->Add(name, "set");
        Flatten(element, name, fields);
        continue;
      }
      std::string value;
      TextFormat::PrintFieldValueToString(message, field, field->is_repeated() ? i : -1, &value);
      fields->Add(path, value);
    }
  }
}

Json ValueOf(const FlatFields& fields, const std::string& path) {
  const auto found = fields.values.find(path);
  return found == fields.values.end() ? Json() : Json(found->second);
}

// The texts of both by their names, in the order of the first.
Json CompareFigures(const Json& a, const Json& b) {
  const auto text_in = [](const Json& figures, const Json& name) {
    for (const Json& figure : figures) {
      if (figure[0] == name) return figure[1];
    }
    return Json();
  };
  Json rows = Json::array();
  for (const Json& figure : a) rows.push_back({figure[0], figure[1], text_in(b, figure[0])});
  for (const Json& figure : b) {
    if (text_in(a, figure[0]).is_null()) rows.push_back({figure[0], nullptr, figure[1]});
  }
  return rows;
}

}  // namespace

Json CompareRuns(const Json& a, const Json& b, const std::optional<Job>& job_a,
                 const std::optional<Job>& job_b) {
  Json compare = {{"figures", CompareFigures(a["figures"], b["figures"])},
                  {"fields", Json::array()},
                  {"num_fields", nullptr}};
  if (!job_a.has_value() || !job_b.has_value()) return compare;
  FlatFields fields_a, fields_b;
  Flatten(*job_a, "", &fields_a);
  Flatten(*job_b, "", &fields_b);
  std::vector<std::string> paths = fields_a.paths;
  for (const std::string& path : fields_b.paths) {
    if (fields_a.values.count(path) == 0) paths.push_back(path);
  }
  size_t num_fields = 0;
  for (const std::string& path : paths) {
    const Json value_a = ValueOf(fields_a, path), value_b = ValueOf(fields_b, path);
    if (value_a == value_b) continue;
    if (++num_fields <= kMaxFields) compare["fields"].push_back({path, value_a, value_b});
  }
  compare["num_fields"] = num_fields;
  return compare;
}

}  // namespace thermocline
