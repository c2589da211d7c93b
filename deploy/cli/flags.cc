#include "deploy/cli/flags.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/text.h"

namespace thermocline {
namespace {

absl::StatusOr<const FlagSpec*> FindFlag(const std::vector<FlagSpec>& specs,
                                         const std::string& name) {
  for (const FlagSpec& spec : specs) {
    if (spec.name == name) return &spec;
  }
  std::vector<std::string> names;
  for (const FlagSpec& spec : specs) names.push_back("--" + spec.name);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name, DidYouMean("--" + name, names)));
}

}  // namespace

absl::StatusOr<Flags> Flags::Parse(const std::vector<FlagSpec>& specs,
                                   const std::vector<std::string>& arguments) {
  Flags flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      flags.positional_.insert(flags.positional_.end(), arguments.begin() + i + 1, arguments.end());
      break;
    }
    if (!absl::StartsWith(argument, "--")) {
      flags.positional_.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const bool has_value = equals != std::string::npos;
    const std::string name =
        absl::StrReplaceAll(argument.substr(2, has_value ? equals - 2 : equals), {{"_", "-"}});
    const auto spec = FindFlag(specs, name);
    if (!spec.ok()) return spec.status();
    std::string value = has_value ? argument.substr(equals + 1) : "";
    if ((*spec)->value.empty() && has_value) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
    }
    if (!(*spec)->value.empty() && !has_value) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, " needs a value: ", (*spec)->value));
      }
      value = arguments[++i];
    }
    std::vector<std::string>& values = flags.values_[name];
    if (!values.empty() && !(*spec)->repeated) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is given twice"));
    }
    values.push_back(std::move(value));
  }
  return flags;
}

std::string Flags::Get(absl::string_view name, absl::string_view fallback) const {
  const auto found = values_.find(std::string(name));
  return found == values_.end() ? std::string(fallback) : found->second.back();
}

std::vector<std::string> Flags::GetAll(absl::string_view name) const {
  const auto found = values_.find(std::string(name));
  return found == values_.end() ? std::vector<std::string>() : found->second;
}

absl::StatusOr<int64_t> Flags::GetInt(absl::string_view name, int64_t fallback, int64_t low,
                                      int64_t high) const {
  if (!Has(name)) return fallback;
  const std::string text = Get(name);
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", name, " is '", text, "'; it must be a whole number in [", low, ", ", high, "]"));
  }
  return value;
}

}  // namespace thermocline
