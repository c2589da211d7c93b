#include "tests/benchmarks/server_process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"

namespace thermocline {

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "thermocline-bench-XXXXXX").string();
  CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    const std::vector<std::string>& arguments, const std::string& log_path) {
  ChildProcessOptions options;
  options.name = arguments[0];
  options.command = arguments;
  if (arguments[0].find('/') == std::string::npos) {
    options.command.insert(options.command.begin(), "/usr/bin/env");  // looks on PATH
  }
  options.log_path = log_path;
  ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(options));
  return std::unique_ptr<ServerProcess>(new ServerProcess(std::move(child)));
}

absl::StatusOr<std::string> ServerProcess::WaitForFile(const std::string& path,
                                                       absl::Duration timeout) {
  const Stopwatch watch;
  struct stat info;
  while (stat(path.c_str(), &info) != 0) {
    if (child_.HasEnded()) {
      return absl::UnavailableError(
          absl::StrCat(child_.name(), " ", child_.DescribeEnd(), " at once"));
    }
    if (watch.Elapsed() > timeout) {
      return absl::DeadlineExceededError(absl::StrCat(child_.name(), " did not come up"));
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  std::string line;
  if (S_ISREG(info.st_mode)) {
    std::ifstream file(path);
    std::getline(file, line);
  }
  return line;
}

double ServerProcess::CpuSeconds() const {
  std::ifstream file(absl::StrCat("/proc/", child_.pid(), "/stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  unsigned long user = 0, system = 0;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1,
                  " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) {
    return 0;
  }
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace thermocline
