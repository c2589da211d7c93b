#include "deploy/runner/checkpoint_requests.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/timing.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {
namespace {

constexpr char kPrefix[] = "checkpoint-";
constexpr char kRequest[] = ".request";
constexpr char kAnswer[] = ".answer";
constexpr absl::Duration kAnswerPollPeriod = absl::Milliseconds(50);

std::string FileOf(const std::string& directory, absl::string_view id, absl::string_view suffix) {
  return absl::StrCat(directory, "/", kPrefix, id, suffix);
}

std::vector<std::string> Waiting(const std::string& directory) {
  std::vector<std::string> ids;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view id = name;
    if (!absl::ConsumePrefix(&id, kPrefix) || !absl::ConsumeSuffix(&id, kRequest)) continue;
    ids.emplace_back(id);
  }
  return ids;
}

// Whether the client has died. The id begins with its process id and host; of processes of other
// hosts this one knows nothing.
bool IsOrphan(absl::string_view id) {
  const size_t end_of_pid = id.find('-'), end_of_host = id.rfind('-');
  if (end_of_pid == end_of_host) return false;
  pid_t asks;
  return id.substr(end_of_pid + 1, end_of_host - end_of_pid - 1) == HostName() &&
         absl::SimpleAtoi(id.substr(0, end_of_pid), &asks) && asks > 0 && kill(asks, 0) != 0 &&
         errno == ESRCH;
}

std::string StopFile(const std::string& directory) { return directory + "/stop.request"; }

// The launcher's answer, once it is there.
std::optional<absl::StatusOr<std::string>> ReadAnswer(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return {absl::AbortedError(absl::StrCat(path, " is no JSON object"))};
  const auto name = json.find("checkpoint");
  if (name != json.end() && name->is_string()) return {name->get<std::string>()};
  const auto error = json.find("error");
  return {absl::AbortedError(error != json.end() && error->is_string() ? error->get<std::string>()
                                                                       : "it doesn't say why")};
}

}  // namespace

std::vector<std::string> CheckpointRequests::TakeNew() {
  std::vector<std::string> fresh;
  for (std::string& id : Waiting(run_directory_)) {
    if (taken_.count(id) != 0) continue;
    if (IsOrphan(id)) {
      unlink(FileOf(run_directory_, id, kRequest).c_str());
      continue;
    }
    taken_.insert(id);
    fresh.push_back(std::move(id));
  }
  return fresh;
}

void CheckpointRequests::Answer(const std::string& id,
                                const absl::StatusOr<std::string>& checkpoint) {
  nlohmann::json json;
  if (checkpoint.ok()) {
    json["checkpoint"] = *checkpoint;
  } else {
    json["error"] = std::string(checkpoint.status().message());
  }
  const std::string request = FileOf(run_directory_, id, kRequest);
  // The client has withdrawn the request, and would not remove an answer.
  if (access(request.c_str(), F_OK) != 0) return;
  const std::string path = FileOf(run_directory_, id, kAnswer);
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::trunc);
  file << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  file.close();
  if (!file.good() || std::rename(temporary.c_str(), path.c_str()) != 0) {
    unlink(temporary.c_str());
  }
  unlink(request.c_str());
}

void CheckpointRequests::RefuseAll(const absl::Status& why) {
  for (const std::string& id : Waiting(run_directory_)) Answer(id, why);
}

bool CheckpointRequests::IsStopRequested() const {
  return access(StopFile(run_directory_).c_str(), F_OK) == 0;
}

absl::Status AskToStop(const std::string& run_directory) {
  const std::string path = StopFile(run_directory);
  if (std::ofstream(path, std::ios::app).good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("can't write ", path));
}

void WithdrawStop(const std::string& run_directory) { unlink(StopFile(run_directory).c_str()); }

absl::StatusOr<std::string> AskForCheckpoint(const std::string& run_directory,
                                             absl::Duration timeout,
                                             const std::function<bool()>& stopped) {
  const absl::Status nobody_there =
      absl::FailedPreconditionError(absl::StrCat("no launcher runs in ", run_directory));
  if (!RunLock::IsHeld(run_directory)) return nobody_there;
  const std::string id =
      absl::StrCat(getpid(), "-", HostName(), "-", absl::Hex(std::random_device()()));
  const std::string request = FileOf(run_directory, id, kRequest);
  const std::string answer_file = FileOf(run_directory, id, kAnswer);
  if (!std::ofstream(request).good()) {
    return absl::UnavailableError(absl::StrCat("can't write ", request));
  }
  const absl::Cleanup clean_up = [&] {
    unlink(request.c_str());
    unlink(answer_file.c_str());
  };
  const Stopwatch watch;
  while (true) {
    // Reads the lock first: a launcher answers before it ends.
    const bool anybody_there = RunLock::IsHeld(run_directory);
    if (const auto answer = ReadAnswer(answer_file)) return *answer;
    if (!anybody_there) return nobody_there;
    if (stopped()) return absl::CancelledError("stopped");
    if (watch.Elapsed() >= timeout) {
      return absl::DeadlineExceededError(absl::StrCat("no checkpoint within ",
                                                      absl::FormatDuration(timeout),
                                                      "; the job goes on, and may write one yet"));
    }
    absl::SleepFor(kAnswerPollPeriod);
  }
}

}  // namespace thermocline
