#include "deploy/cli/train_job.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/job/job_loader.h"
#include "deploy/cli/console.h"
#include "deploy/cli/version.h"
#include "deploy/runner/child_process.h"

namespace thermocline {
namespace {

std::string Absolute(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// The run directory's job file must mean the same from any working directory.
void MakePathsAbsolute(Job* job) {
  for (std::string* path :
       {job->mutable_data()->mutable_path(), job->mutable_data()->mutable_test_path()}) {
    *path = Absolute(*path);
  }
  if (job->has_checkpoint()) {
    std::string* directory = job->mutable_checkpoint()->mutable_directory();
    *directory = Absolute(*directory);
  }
  if (!job->cluster().has_tls()) return;
  Tls* tls = job->mutable_cluster()->mutable_tls();
  for (std::string* path :
       {tls->mutable_certificate(), tls->mutable_private_key(), tls->mutable_ca()}) {
    *path = Absolute(*path);
  }
}

// Tells early, and in the launcher's own words, what every process would stumble over.
absl::Status CheckReadable(const std::string& field, const std::string& path) {
  if (path.empty() || access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(field, " '", path, "': ", std::strerror(errno)));
}

// Held-out rows come from files of their own or from a share of the others, not from both.
absl::Status CheckHeldOut(const Data& data) {
  const std::string own = HeldOutFile(data);
  if (own.empty() || data.test_share() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.test_share is ", data.test_share(), ", and ",
                                                 data.path(), " has ", own,
                                                 " as well; choose one"));
}

absl::Status CheckFiles(const Job& job) {
  const Data& data = job.data();
  RETURN_IF_ERROR(CheckReadable("data.path", data.path()));
  RETURN_IF_ERROR(CheckReadable("data.test_path", data.test_path()));
  const bool is_folder = std::filesystem::is_directory(data.path());
  if (is_folder != (data.format() == Data::DLRM_NPY)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path '", data.path(), "' is a ", is_folder ? "folder" : "file", "; the format ",
        Data::Format_Name(data.format()), " reads a ", is_folder ? "file" : "folder"));
  }
  RETURN_IF_ERROR(CheckHeldOut(data));
  const Tls& tls = job.cluster().tls();
  RETURN_IF_ERROR(CheckReadable("cluster.tls.certificate", tls.certificate()));
  RETURN_IF_ERROR(CheckReadable("cluster.tls.private_key", tls.private_key()));
  return CheckReadable("cluster.tls.ca", tls.ca());
}

// At most what a pipe takes at once, with its end.
std::string Line(std::string text) {
  text.resize(std::min<size_t>(text.size(), PIPE_BUF - 1));
  return text + "\n";
}

std::string Plural(uint32_t count, const char* noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// What train.staleness_steps means where there are no other workers to be behind; "" where there
// are, or it is 0.
std::string StalenessOfOneWorker(const Job& job) {
  const uint32_t steps = job.train().staleness_steps();
  if (job.cluster().workers() > 1 || steps == 0) return "";
  if (job.has_cache()) {
    return "train.staleness_steps changes nothing: with a cache the one worker updates the rows "
           "that "
           "it reads itself";
  }
  return absl::StrCat("train.staleness_steps is ", steps,
                      ": rows may miss the one worker's own last ", Plural(steps, "step"),
                      "; 0 trains in sync");
}

}  // namespace

std::vector<FlagSpec> JobFlags() {
  return {
      {"data", "PATH", "the data, instead of data.path of the job"},
      {"servers", "N", "parameter servers, instead of cluster.servers"},
      {"workers", "N", "workers, instead of cluster.workers"},
      {"set", "FIELD=VALUE", "changes any field of the job: --set train.batch_size=512", true},
      {"clear", "FIELD", "takes a field out of the job, before any --set: --clear cache", true},
      {"insecure", "", "allows plain text beyond loopback"},
      {"bin-dir", "DIR", "where thermocline-server and thermocline-worker are"},
  };
}

std::vector<FlagSpec> EvaluationJobFlags() {
  std::vector<FlagSpec> flags = JobFlags();
  flags.erase(std::remove_if(flags.begin(), flags.end(),
                             [](const FlagSpec& flag) { return flag.name == "workers"; }),
              flags.end());
  return flags;
}

std::string HeldOutFile(const Data& data) {
  if (data.format() != Data::DLRM_NPY) return "";
  for (const char* name : {"test_dense.npy", "test_sparse.npy", "test_labels.npy"}) {
    if (std::filesystem::exists(std::filesystem::path(data.path()) / name)) return name;
  }
  return "";
}

absl::StatusOr<Job> JobFromFlags(const Flags& flags, const std::string& default_path,
                                 const std::vector<std::string>& more_overrides,
                                 const std::vector<std::string>& more_cleared, JobUse use) {
  std::vector<std::string> paths = flags.positional();
  if (paths.empty() && !default_path.empty()) paths.push_back(default_path);
  if (paths.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("name one job file, not ", paths.size()));
  }
  std::vector<std::string> overrides = flags.GetAll("set");
  std::vector<std::pair<std::string, std::string>> said;  // how errors name an override, and how we
  for (const auto& [flag, field] :
       {std::pair("data", "data.path"), std::pair("servers", "cluster.servers"),
        std::pair("workers", "cluster.workers")}) {
    if (!flags.Has(flag)) continue;
    overrides.push_back(absl::StrCat(field, "=", flags.Get(flag)));
    said.emplace_back("--set " + overrides.back(), absl::StrCat("--", flag, " ", flags.Get(flag)));
  }
  overrides.insert(overrides.end(), more_overrides.begin(), more_overrides.end());
  if (flags.Has("insecure")) overrides.push_back("cluster.insecure=true");
  std::vector<std::string> cleared = flags.GetAll("clear");
  cleared.insert(cleared.end(), more_cleared.begin(), more_cleared.end());
  absl::StatusOr<Job> job = LoadJob(paths[0], overrides, cleared, use);
  if (!job.ok()) {
    return absl::Status(job.status().code(), absl::StrReplaceAll(job.status().message(), said));
  }
  MakePathsAbsolute(&*job);
  RETURN_IF_ERROR(CheckFiles(*job));
  return job;
}

absl::StatusOr<JobPrograms> ProgramsFromFlags(const Flags& flags) {
  JobPrograms programs;
  programs.build = kVersion;
  for (const auto& [name, path] : {std::pair("thermocline-server", &programs.server),
                                   std::pair("thermocline-worker", &programs.worker)}) {
    absl::StatusOr<std::string> found = FindProgram(name, flags.Get("bin-dir"));
    if (!found.ok()) {
      return absl::NotFoundError(
          absl::StrCat(found.status().message(), " (--bin-dir names its folder)"));
    }
    *path = *std::move(found);
  }
  return programs;
}

void FillCheckpointDirectory(const RunDirectory& directory, Job* job) {
  if (!job->has_checkpoint() || !job->checkpoint().directory().empty()) return;
  job->mutable_checkpoint()->set_directory(directory.CheckpointDirectory());
}

absl::StatusOr<JobResult> RunJobOnConsole(const Job& job, const JobOptions& options,
                                          const RunDirectory& directory, SignalWatch* signals,
                                          int fd) {
  // What is said while the job runs is dropped where nobody reads: the run never waits for it.
  Console out(fd, signals);
  out.TryWrite(Line(absl::StrCat(
      "job ", job.name(), ": ", Plural(job.cluster().servers(), "server"), ", ",
      Plural(job.cluster().workers(), "worker"), ", run directory ", directory.path())));
  if (job.has_cache() && job.cluster().workers() > 1 && job.train().staleness_steps() == 0) {
    out.TryWrite(
        Line("the cache keeps nothing: with several workers a row may be read again only "
             "within train.staleness_steps, which is 0"));
  }
  if (const std::string staleness = StalenessOfOneWorker(job); !staleness.empty()) {
    out.TryWrite(Line(staleness));
  }
  ProgressBar bar([&out](absl::string_view text) { return out.TryWrite(text); }, out.is_terminal());
  const Stopwatch watch;
  JobObserver observer;
  bool were_up = false;
  observer.on_servers_up = [&](const std::vector<std::string>& addresses) {
    const std::string when =
        were_up ? " again" : absl::StrFormat(" in %.1f s", absl::ToDoubleSeconds(watch.Elapsed()));
    were_up = true;
    out.TryWrite(Line(absl::StrCat("servers up", when, ": ", absl::StrJoin(addresses, ", "))));
  };
  observer.on_progress = [&](const Progress& progress) { bar.Update(progress, watch.Elapsed()); };
  observer.on_notice = [&](const std::string& text) {
    bar.Clear();
    out.TryWrite(Line(text));
  };
  observer.on_training_done = [&] { bar.Clear(); };
  return RunJob(job, options, directory, observer, signals);
}

void ReportFailure(absl::string_view message, SignalWatch* signals) {
  Console(STDERR_FILENO, signals).Write(absl::StrCat("thermocline: ", message, "\n"));
}

}  // namespace thermocline
