#include "deploy/controller/startup.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr absl::Duration kPollPeriod = absl::Milliseconds(5);

// The address in a port file, or "" while there is none. The file appears whole.
std::string ReadPortFile(const std::string& path) {
  std::ifstream file(path);
  std::string address;
  std::getline(file, address);
  return address;
}

std::string FileName(absl::string_view name, absl::string_view extension) {
  return absl::StrCat(absl::StrReplaceAll(name, {{" ", "-"}}), ".", extension);
}

}  // namespace

std::string ProcessFile(const RunDirectory& directory, absl::string_view name,
                        absl::string_view extension) {
  return directory.File(FileName(name, extension));
}

absl::Status RemoveProcessFile(const RunDirectory& directory, absl::string_view name,
                               absl::string_view extension) {
  return directory.Remove(FileName(name, extension));
}

absl::StatusOr<std::vector<std::string>> WaitForAddresses(const std::vector<std::string>& names,
                                                          const RunDirectory& directory,
                                                          absl::Duration timeout,
                                                          Supervisor* supervisor) {
  std::vector<std::string> addresses(names.size());
  const auto is_up = [&](size_t i) {
    // In this order: a process writes its file before it ends.
    const bool ended = !supervisor->IsRunning(names[i]);
    if (addresses[i].empty()) {
      addresses[i] = ReadPortFile(ProcessFile(directory, names[i], "port"));
    }
    return ended || !addresses[i].empty();
  };
  size_t up = 0;  // so many, from the first on
  const absl::Status waited = supervisor->WaitUntil(
      [&] {
        while (up < names.size() && is_up(up)) ++up;
        return up == names.size();
      },
      timeout, kPollPeriod, "processes to come up");
  if (absl::IsDeadlineExceeded(waited)) {
    return absl::DeadlineExceededError(absl::StrCat(
        names[up], " did not come up within ", absl::FormatDuration(timeout),
        " (cluster.startup_timeout_s); its log: ", ProcessFile(directory, names[up], "log")));
  }
  RETURN_IF_ERROR(waited);
  return addresses;
}

}  // namespace thermocline
