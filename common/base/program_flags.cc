#include "common/base/program_flags.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace thermocline {
namespace {

constexpr int kExitUsage = 2;

// Abseil takes these out before it looks for flags.
bool AsksForHelp(absl::string_view name) {
  return name == "help" || name == "helpfull" || name == "helpshort" || name == "helppackage" ||
         name == "helpon" || name == "helpmatch" || name == "version";
}

void ExitDone() {
  std::cout.flush();
  std::_Exit(0);
}

void ShowOurFlagsInHelp() {
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [](absl::string_view file) {
    return !absl::StrContains(file, "absl/flags/");
  };
  absl::SetFlagsUsageConfig(config);
}

}  // namespace

std::string CheckProgramFlags(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (argument == "--") break;
    if (argument == "-" || !absl::ConsumePrefix(&argument, "-")) continue;
    absl::ConsumePrefix(&argument, "-");
    const size_t equals = argument.find('=');
    const absl::string_view name = argument.substr(0, equals);
    if (AsksForHelp(name)) continue;
    absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) {
      absl::string_view positive = name;
      const bool is_negation = equals == absl::string_view::npos &&
                               absl::ConsumePrefix(&positive, "no") &&
                               absl::FindCommandLineFlag(positive) != nullptr &&
                               absl::FindCommandLineFlag(positive)->IsOfType<bool>();
      if (is_negation) continue;
      return absl::StrCat("unknown flag --", name, "; --help lists the flags");
    }
    if (equals == absl::string_view::npos && flag->IsOfType<bool>()) continue;
    if (equals == absl::string_view::npos && ++i == arguments.size()) {
      return absl::StrCat("--", name, " needs a value");
    }
    const absl::string_view value = equals == absl::string_view::npos
                                        ? absl::string_view(arguments[i])
                                        : argument.substr(equals + 1);
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::StrCat("--", name, " is '", value,
                          "': ", error.empty() ? "no such value" : error);
    }
  }
  return "";
}

std::vector<char*> ParseProgramFlags(absl::string_view usage, int argc, char** argv) {
  ShowOurFlagsInHelp();
  absl::SetProgramUsageMessage(usage);
  const std::string wrong = CheckProgramFlags({argv + 1, argv + argc});
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s: %s\n", argv[0], wrong.c_str());
    std::exit(kExitUsage);
  }
  // Abseil ends with code 1 after it has shown its page.
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--") break;
    if (!absl::ConsumePrefix(&argument, "-")) continue;
    absl::ConsumePrefix(&argument, "-");
    if (AsksForHelp(argument.substr(0, argument.find('=')))) std::atexit(ExitDone);
  }
  return absl::ParseCommandLine(argc, argv);
}

}  // namespace thermocline
