#include "deploy/cli/submit_flags.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "deploy/engines/scripts.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFlagsFile[] = "submit/flags.json";
constexpr char kFolder[] = "folder";

template <typename Value>
struct Named {
  const char* name;
  Value SubmitFlags::*value;
};

// Of the engine. A value that is the same as of new flags was not given.
constexpr Named<std::string> kTexts[] = {
    {"partition", &SubmitFlags::partition}, {"account", &SubmitFlags::account},
    {"time", &SubmitFlags::time},           {"memory", &SubmitFlags::memory},
    {"figures", &SubmitFlags::figures},     {"node-dir", &SubmitFlags::node_dir},
    {"program", &SubmitFlags::program}};
constexpr Named<int64_t> kNumbers[] = {{"notice", &SubmitFlags::notice_s},
                                       {"cores", &SubmitFlags::cores},
                                       {"gpus", &SubmitFlags::gpus},
                                       {"port", &SubmitFlags::port}};
constexpr Named<std::optional<std::string>> kJobFields[] = {{"data", &SubmitFlags::data},
                                                            {"servers", &SubmitFlags::servers},
                                                            {"workers", &SubmitFlags::workers}};
constexpr Named<std::vector<std::string>> kJobChanges[] = {{"set", &SubmitFlags::set},
                                                           {"clear", &SubmitFlags::clear}};

template <typename Value>
void Take(const Json& kept, const char* name, Value* value) {
  if (*value == Value() && kept.contains(name)) *value = kept.at(name).get<Value>();
}

void TakeOfEngine(const Json& kept, SubmitFlags* flags) {
  if (flags->hosts.empty()) {
    Take(kept, "hosts", &flags->hosts);
    Take(kept, "nodes", &flags->nodes);
    Take(kept, "controller", &flags->controller);
  }
  Take(kept, "sbatch", &flags->sbatch);
  for (const auto& [name, value] : kTexts) Take(kept, name, &(flags->*value));
  for (const auto& [name, value] : kNumbers) {
    if (flags->*value == SubmitFlags().*value && kept.contains(name)) {
      flags->*value = kept.at(name).get<int64_t>();
    }
  }
}

void TakeOfJob(const Json& kept, SubmitFlags* flags) {
  for (const auto& [name, value] : kJobFields) {
    if (!(flags->*value).has_value() && kept.contains(name)) {
      flags->*value = kept.at(name).get<std::string>();
    }
  }
  for (const auto& [name, value] : kJobChanges) {
    // Those that are given now come last, and so win.
    if (!kept.contains(name)) continue;
    auto all = kept.at(name).get<std::vector<std::string>>();
    all.insert(all.end(), (flags->*value).begin(), (flags->*value).end());
    flags->*value = std::move(all);
  }
}

}  // namespace

absl::Status KeepFlags(const SubmitFlags& flags, const RunDirectory& directory) {
  std::error_code error;
  Json kept = {
      {"engine", flags.engine},     {"hosts", flags.hosts},
      {"nodes", flags.nodes},       {"controller", flags.controller},
      {"sbatch", flags.sbatch},     {"bin-dir", AbsolutePath(flags.bin_dir)},
      {"insecure", flags.insecure}, {kFolder, std::filesystem::current_path(error).string()}};
  for (const auto& [name, value] : kTexts) kept[name] = flags.*value;
  for (const auto& [name, value] : kNumbers) kept[name] = flags.*value;
  for (const auto& [name, value] : kJobFields) {
    if ((flags.*value).has_value()) kept[name] = *(flags.*value);
  }
  for (const auto& [name, value] : kJobChanges) kept[name] = flags.*value;
  return directory.Write(kFlagsFile, kept.dump(2) + "\n");
}

absl::Status TakeKeptFlags(SubmitFlags* flags) {
  if (flags->run_dir.empty() || (!flags->resume && !flags->job.empty())) return absl::OkStatus();
  flags->run_dir = AbsolutePath(flags->run_dir);
  const std::string path = absl::StrCat(flags->run_dir, "/", kFlagsFile);
  std::ifstream file(path);
  if (!file && errno == ENOENT) return absl::OkStatus();
  if (!file) {
    return absl::UnavailableError(absl::StrCat("can't read ", path, ": ", std::strerror(errno)));
  }
  const Json kept = Json::parse(file, nullptr, false);
  try {
    const std::string engine = kept.at("engine").get<std::string>();
    if (flags->engine.empty()) flags->engine = engine;
    if (flags->engine == engine) TakeOfEngine(kept, flags);
    Take(kept, "bin-dir", &flags->bin_dir);
    if (!flags->insecure) flags->insecure = kept.at("insecure").get<bool>();
    if (flags->resume) return absl::OkStatus();
    TakeOfJob(kept, flags);
    flags->job = SubmitFolder(flags->run_dir) + "/job.textproto";
    std::error_code error;
    const std::string folder = kept.at(kFolder).get<std::string>();
    std::filesystem::current_path(folder, error);
    if (!error) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the job was submitted in the folder ", folder, ": ", error.message()));
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat(path, " can't be read: ", error.what()));
  }
}

}  // namespace thermocline
