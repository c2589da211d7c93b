#include "deploy/controller/programs.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace thermocline {
namespace {

// Packages of the source tree that hold programs.
constexpr const char* kPackages[] = {"server", "worker", "deploy", "tests/benchmarks"};

std::vector<std::string> Candidates(absl::string_view name, const std::string& bin_dir) {
  if (!bin_dir.empty()) return {absl::StrCat(bin_dir, "/", name)};
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::string folder = self.parent_path().string();
  std::vector<std::string> candidates = {absl::StrCat(folder, "/", name)};
  // The build puts this program into <root>/deploy.
  for (const char* package : kPackages) {
    candidates.push_back(absl::StrCat(folder, "/../", package, "/", name));
  }
  return candidates;
}

bool IsProgram(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

absl::StatusOr<std::string> FindProgram(absl::string_view name, const std::string& bin_dir) {
  const std::vector<std::string> candidates = Candidates(name, bin_dir);
  for (const std::string& candidate : candidates) {
    if (!IsProgram(candidate)) continue;
    std::error_code error;
    const std::filesystem::path path = std::filesystem::canonical(candidate, error);
    return error ? candidate : path.string();
  }
  return absl::NotFoundError(absl::StrCat("can't find the program ", name, "; looked for ",
                                          absl::StrJoin(candidates, ", ")));
}

}  // namespace thermocline
