#include "deploy/bench/picture.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "deploy/engines/engine.h"
#include "deploy/processes/child_process.h"

namespace thermocline {
namespace {

constexpr char kScript[] = "bench_picture.py";
constexpr char kSources[] = "thermocline/deploy/python";

// In a package, or among what the build puts beside a program; "": nowhere.
std::string FindScript() {
  const std::filesystem::path program = ThisProgram();
  const std::filesystem::path folder = program.parent_path();
  std::error_code error;
  for (const std::filesystem::path& candidate :
       {folder.parent_path() / "python" / kScript,
        std::filesystem::path(program.string() + ".runfiles") / kSources / kScript}) {
    if (std::filesystem::exists(candidate, error)) return candidate.string();
  }
  return "";
}

}  // namespace

std::string DrawPicture(const std::string& kind, const std::string& folder) {
  const std::string script = FindScript();
  if (script.empty()) return absl::StrCat("no picture: can't find ", kScript, "\n");
  const auto done = RunCommand({"python3", script, kind, folder});
  if (!done.ok()) return absl::StrCat("no picture: ", done.status().message(), "\n");
  if (done->exit_code == 0) return absl::StrCat("picture: ", folder, "/", kind, ".png\n");
  return absl::StrCat("no picture: ", absl::StripAsciiWhitespace(done->text), "\n");
}

}  // namespace thermocline
