#include "common/base/process.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/process_limits.h"

namespace thermocline {
namespace {

// Abseil handles these before it looks for flags.
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

const std::chrono::steady_clock::time_point kLoaded = std::chrono::steady_clock::now();

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
  // Abseil would exit with code 1 after it has printed its help.
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--") break;
    if (!absl::ConsumePrefix(&argument, "-")) continue;
    absl::ConsumePrefix(&argument, "-");
    if (AsksForHelp(argument.substr(0, argument.find('=')))) std::atexit(ExitDone);
  }
  return absl::ParseCommandLine(argc, argv);
}

void LogLine(absl::string_view text) {
  const std::string line = absl::StrCat(
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ", text, "\n");
  // One write, so that lines of several threads and processes don't mix.
  const ssize_t ignored = write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(ignored);
}

void TuneMallocForMessages() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);   // The largest value that glibc takes.
  mallopt(M_TRIM_THRESHOLD, 512 << 20);  // Bytes free at the heap's end before it shrinks.
}

void TurnOffMutexChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

uint64_t OpenFileLimit() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

void RaiseOpenFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // If it fails, CheckOpenFiles sees the old limit.
}

absl::Status CheckOpenFiles(absl::string_view who, uint64_t connections) {
  const uint64_t needed = connections + kFilesBesideConnections;
  const uint64_t available = OpenFileLimit();
  if (needed <= available) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(who, " needs ", needed, " open files for ",
                                                    connections, " connections; the limit is ",
                                                    available, " (raise it with `ulimit -Hn`)"));
}

uint64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long long total = 0, resident = 0;  // pages
  const int read = std::fscanf(file, "%llu %llu", &total, &resident);
  std::fclose(file);
  return read == 2 ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

double UptimeSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - kLoaded).count();
}

}  // namespace thermocline
