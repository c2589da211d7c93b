// thermocline checkpoint: lists, verifies, exports and makes checkpoints.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/verify_checkpoint.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "deploy/checkpoints/export_checkpoint.h"
#include "deploy/checkpoints/resume.h"
#include "deploy/cli/checkpoint_path.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/cli/run_setup.h"
#include "deploy/processes/run_directory.h"
#include "deploy/processes/signal_watch.h"
#include "deploy/report/format.h"
#include "deploy/runner/checkpoint_requests.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// The flags of all actions of `checkpoint`; each action reads its own.
struct CheckpointFlags {
  std::string path;
  bool json = false;             // list
  std::string out;               // export
  bool optimizer_state = false;  // export
  std::string run_dir;           // now
  int64_t timeout_s = 600;       // now
};

// What PATH means. A checkpoint that is passed over is named on standard error.
absl::StatusOr<CheckpointPath> CheckpointArgument(const std::string& path) {
  std::vector<std::string> notices;
  auto resolved = ResolveCheckpointPath(path, /*scan=*/nullptr, &notices);
  if (!resolved.ok()) return resolved;  // Its message repeats them.
  for (const std::string& notice : notices) Complain(notice, kExitDone);
  return resolved;
}

// "damaged", or "unreadable": another format version or a failing disk says nothing against the
// checkpoint.
const char* WholenessOf(const absl::Status& status) {
  if (status.ok()) return "whole";
  return absl::IsDataLoss(status) ? "damaged" : "unreadable";
}

// Sums over the files of a checkpoint.
struct Contents {
  uint64_t files = 0, bytes = 0;
  // In the files that it wrote itself; it shares the others with older checkpoints.
  uint64_t new_rows = 0, new_bytes = 0;
  const char* kind = "";
};

Contents ContentsOf(const ListedCheckpoint& listed) {
  Contents contents;
  int full_shards = 0;
  for (const CheckpointShard& shard : listed.manifest.shards()) {
    if (shard.base_step() == kNoStep.value()) ++full_shards;
    for (const CheckpointFile& file : shard.files()) {
      ++contents.files;
      contents.bytes += file.bytes();
      if (!absl::StartsWith(file.path(), listed.name + "/")) continue;
      contents.new_rows += file.rows();
      contents.new_bytes += file.bytes();
    }
  }
  const bool full = full_shards == listed.manifest.shards_size();
  contents.kind = full ? "full" : full_shards == 0 ? "incremental" : "mixed";
  return contents;
}

using BestCheckpointId = std::optional<CheckpointId>;

// The best checkpoint as the newest whole one names it; nullopt: there is none.
BestCheckpointId BestOf(const std::vector<ListedCheckpoint>& list) {
  for (auto listed = list.rbegin(); listed != list.rend(); ++listed) {
    if (listed->status.ok()) return BestCheckpointOf(listed->manifest.evaluations());
  }
  return std::nullopt;
}

bool HasManifest(const ListedCheckpoint& listed) { return listed.manifest.shards_size() > 0; }

std::string RenderJson(const std::string& directory, const std::vector<ListedCheckpoint>& list,
                       const BestCheckpointId& best) {
  Json checkpoints = Json::array();
  for (const ListedCheckpoint& listed : list) {
    Json json = {{"name", listed.name},
                 {"generation", listed.id.generation},
                 {"step", listed.id.step.value()},
                 {"status", WholenessOf(listed.status)},
                 {"best", best == listed.id}};
    if (!listed.status.ok()) json["reason"] = std::string(listed.status.message());
    if (HasManifest(listed)) {
      const Contents contents = ContentsOf(listed);
      json["job_id"] = listed.manifest.job_id();
      json["samples"] = listed.manifest.samples();
      json["servers"] = listed.manifest.num_servers();
      json["workers"] = listed.manifest.num_workers();
      json["cpu_isa"] = listed.manifest.cpu_isa();
      json["build"] = listed.manifest.build();
      json["kind"] = contents.kind;
      json["new_rows"] = contents.new_rows;
      json["new_bytes"] = contents.new_bytes;
      json["files"] = contents.files;
      json["bytes"] = contents.bytes;
    }
    checkpoints.push_back(std::move(json));
  }
  const Json all = {{"directory", directory},
                    {"read", "manifests and sizes"},  // `checkpoint verify` reads the contents.
                    {"checkpoints", std::move(checkpoints)}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string RenderTable(const std::string& directory, const std::vector<ListedCheckpoint>& list,
                        const BestCheckpointId& best) {
  if (list.empty()) return absl::StrCat("no checkpoint in ", directory, "\n");
  std::vector<std::vector<std::string>> rows = {
      {"checkpoint", "step", "generation", "samples", "servers", "new rows", "new bytes",
       "all bytes", "kind"},
      {}};
  std::string not_whole;
  for (const ListedCheckpoint& listed : list) {
    std::vector<std::string> row = {listed.name, absl::StrCat(listed.id.step.value()),
                                    absl::StrCat(listed.id.generation)};
    if (HasManifest(listed)) {
      const Contents contents = ContentsOf(listed);
      row.insert(row.end(),
                 {FormatCount(listed.manifest.samples()),
                  absl::StrCat(listed.manifest.num_servers()), FormatCount(contents.new_rows),
                  FormatBytes(contents.new_bytes), FormatBytes(contents.bytes),
                  absl::StrCat(contents.kind, best == listed.id ? ", the best" : "")});
    }
    rows.push_back(std::move(row));
    if (!listed.status.ok()) {
      absl::StrAppend(&not_whole, listed.name, " is ", WholenessOf(listed.status), ": ",
                      listed.status.message(), "\n");
    }
  }
  return absl::StrCat(FormatTable(rows), not_whole,
                      "contents are not read, only manifests and the sizes of files; to read every "
                      "byte: thermocline checkpoint verify ",
                      directory, "\n");
}

absl::StatusOr<VerifiedCheckpoint> VerifyListed(Disk* disk, const std::string& directory,
                                                const ListedCheckpoint& listed) {
  RETURN_IF_ERROR(listed.status);
  return VerifyCheckpoint(disk, directory, listed.manifest, HardwareThreads());
}

std::string Describe(const VerifiedCheckpoint& verified) {
  uint64_t rows = 0;
  for (const auto& [table, count] : verified.rows) rows += count;
  return absl::StrFormat("%s rows of %d tables, %s in %d files, model digest %016x%016x",
                         FormatCount(rows), verified.rows.size(), FormatBytes(verified.bytes),
                         verified.files, verified.model_digest.high, verified.model_digest.low);
}

// What a folder without a manifest, named as a checkpoint, is.
std::string DescribeFolder(const std::vector<ListedCheckpoint>& list, const std::string& name) {
  std::string needed_by;
  for (const ListedCheckpoint& listed : list) {
    for (const CheckpointShard& shard : listed.manifest.shards()) {
      for (const CheckpointFile& file : shard.files()) {
        if (absl::StartsWith(file.path(), name + "/")) needed_by = listed.name;
      }
    }
  }
  if (needed_by.empty()) {
    return absl::StrCat(name,
                        " has no manifest: it was never finished, or newer ones took its place");
  }
  return absl::StrCat(name, " is no checkpoint any more (checkpoint.keep), but ", needed_by,
                      " needs its files");
}

// Removed by the job since it was read, or replaced.
bool IsGone(const CheckpointStore& store, const ListedCheckpoint& listed) {
  return absl::IsNotFound(store.Load(listed.name, listed.manifest.generation()).status());
}

// The checkpoint called `name`; "": the newest.
absl::StatusOr<ListedCheckpoint> ChooseToExport(const CheckpointStore& store,
                                                const std::string& name) {
  ListedCheckpoint chosen;
  if (!name.empty()) {
    chosen.name = name;
    ASSIGN_OR_RETURN(chosen.manifest, store.Load(name));
    return chosen;
  }
  ASSIGN_OR_RETURN(const std::vector<ListedCheckpoint> list, store.List());
  if (list.empty())
    return absl::NotFoundError(absl::StrCat("no checkpoint in ", store.directory()));
  chosen = list.back();
  RETURN_IF_ERROR(chosen.status);
  return chosen;
}

int ListCheckpoints(const CheckpointFlags& flags) {
  const auto path = CheckpointArgument(flags.path);
  if (!path.ok()) return Complain(path.status().message(), kExitUsage);
  PosixDisk disk;
  auto list = CheckpointStore(&disk, path->directory).List();
  if (!list.ok()) return Complain(list.status().message(), kExitFailed);
  const BestCheckpointId best = BestOf(*list);
  if (!path->name.empty()) {
    list->erase(std::remove_if(list->begin(), list->end(),
                               [&](const auto& listed) { return listed.name != path->name; }),
                list->end());
  }
  const std::string text = flags.json ? RenderJson(path->directory, *list, best)
                                      : RenderTable(path->directory, *list, best);
  std::fputs(text.c_str(), stdout);
  for (const ListedCheckpoint& listed : *list) {
    if (!listed.status.ok()) return kExitFailed;
  }
  return kExitDone;
}

int VerifyCheckpoints(const CheckpointFlags& flags) {
  const auto path = CheckpointArgument(flags.path);
  if (!path.ok()) return Complain(path.status().message(), kExitUsage);
  PosixDisk disk;
  const CheckpointStore store(&disk, path->directory);
  const auto list = store.List();
  if (!list.ok()) return Complain(list.status().message(), kExitFailed);
  int verified_checkpoints = 0;
  bool all_whole = true;
  for (const ListedCheckpoint& listed : *list) {
    if (!path->name.empty() && listed.name != path->name) continue;
    const auto verified = VerifyListed(&disk, path->directory, listed);
    if (!verified.ok() && IsGone(store, listed)) {
      std::printf("%s was removed meanwhile: the job keeps newer ones\n", listed.name.c_str());
      ++verified_checkpoints;
      continue;
    }
    all_whole &= verified.ok();
    ++verified_checkpoints;
    const std::string what =
        verified.ok() ? Describe(*verified) : std::string(verified.status().message());
    std::printf("%s is %s: %s\n", listed.name.c_str(), WholenessOf(verified.status()),
                what.c_str());
    std::fflush(stdout);
  }
  if (verified_checkpoints == 0) {
    return Complain(path->name.empty() ? absl::StrCat("no checkpoint in ", path->directory)
                                       : DescribeFolder(*list, path->name),
                    kExitFailed);
  }
  if (!path->name.empty()) return all_whole ? kExitDone : kExitFailed;
  // Damaged checkpoints have been reported above.
  const absl::Status resumable = all_whole ? CheckResumable(store) : store.ReadJobState().status();
  if (!resumable.ok()) {
    std::printf("--resume would stop: %s\n", std::string(resumable.message()).c_str());
  }
  return all_whole && resumable.ok() ? kExitDone : kExitFailed;
}

int ExportOneCheckpoint(const CheckpointFlags& flags) {
  const auto path = CheckpointArgument(flags.path);
  if (!path.ok()) return Complain(path.status().message(), kExitUsage);
  PosixDisk disk;
  const CheckpointStore store(&disk, path->directory);
  const auto chosen = ChooseToExport(store, path->name);
  if (!chosen.ok()) return Complain(chosen.status().message(), kExitFailed);
  if (path->name.empty()) std::printf("%s\n", DescribeNewest(*chosen).c_str());
  ExportOptions options;
  options.optimizer_state = flags.optimizer_state;
  const auto exported =
      ExportCheckpoint(&disk, path->directory, chosen->manifest, flags.out, options);
  if (!exported.ok()) {
    const bool removed = IsGone(store, *chosen);
    return Complain(absl::StrCat(exported.status().message(),
                                 removed ? ": the job has removed this checkpoint meanwhile; try "
                                           "again, or keep more (checkpoint.keep)"
                                         : ""),
                    kExitFailed);
  }
  const Digest& digest = exported->verified.model_digest;
  std::fputs(
      absl::StrFormat("%s: %s, %d tensors, %s, model digest %016x%016x\n", flags.out, chosen->name,
                      exported->tensors, FormatBytes(exported->bytes), digest.high, digest.low)
          .c_str(),
      stdout);
  if (!exported->script_state.empty()) {
    std::printf("%s: what the job's script keeps, %s\n", exported->script_state.c_str(),
                FormatBytes(exported->script_state_bytes).c_str());
  }
  return kExitDone;
}

int CheckpointNow(const CheckpointFlags& flags) {
  SignalWatch signals;
  auto job = LoadJob(flags.run_dir + "/job.textproto", {});
  if (!job.ok()) return Complain(job.status().message(), kExitUsage);
  if (!WritesCheckpoints(*job)) {
    return Complain(absl::StrCat("job '", job->name(), "' writes no checkpoints (checkpoint.none)"),
                    kExitUsage);
  }
  const auto directory = RunDirectory::Open(flags.run_dir);
  if (!directory.ok()) return Complain(directory.status().message(), kExitUsage);
  FillCheckpointDirectory(*directory, &*job);
  const auto name = AskForCheckpoint(flags.run_dir, absl::Seconds(flags.timeout_s), [&signals] {
    signals.Drain();
    return signals.stop_requests() > 0;
  });
  if (!name.ok()) return Complain(name.status().message(), kExitFailed);
  std::printf("%s/%s\n", job->checkpoint().directory().c_str(), name->c_str());
  return kExitDone;
}

constexpr char kCheckpointPath[] =
    R"(PATH is a checkpoint directory, a run directory, or one checkpoint (DIRECTORY/step-999);
DIRECTORY/best is the checkpoint of the best evaluation (`evaluate` in the job).)";

}  // namespace

void AddCheckpoint(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<CheckpointFlags>();
  CLI::App* command =
      AddCommand(app, "checkpoint", "lists, verifies, exports and makes checkpoints",
                 absl::StrCat(kCheckpointPath, R"(
Exit code 1 if a checkpoint is not whole.

examples:
  thermocline checkpoint list runs/quickstart-20240101-120000
  thermocline checkpoint verify runs/quickstart-20240101-120000/checkpoints
  thermocline checkpoint export runs/kaggle/step-999 m.safetensors
  thermocline checkpoint now --run-dir runs/quickstart-20240101-120000)"));
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* summary, int (*run)(const CheckpointFlags&)) {
    CLI::App* subcommand = AddCommand(command, name, summary, kCheckpointPath);
    OnCommand(subcommand, action, run, flags);
    return subcommand;
  };
  const auto add_path = [&](CLI::App* subcommand) {
    AddValue(subcommand, "PATH", &flags->path, "DIR", "which checkpoints; see below")->required();
  };
  CLI::App* list = add("list", "shows the checkpoints, oldest first, from manifests and file sizes",
                       ListCheckpoints);
  add_path(list);
  list->add_flag("--json", flags->json, "prints JSON");

  add_path(add("verify",
               "reads every byte: damaged files, model digest, whether --resume could go on",
               VerifyCheckpoints));

  CLI::App* to_file =
      add("export", "verifies one checkpoint and writes it as safetensors", ExportOneCheckpoint);
  add_path(to_file);
  AddValue(to_file, "OUT", &flags->out, "FILE", "the file to write: model.safetensors")->required();
  to_file->add_flag("--optimizer-state", flags->optimizer_state, "also the optimizers' state");
  to_file->footer(absl::StrCat(kCheckpointPath, R"(
Of several checkpoints the newest is exported. deploy/python/thermocline_torch.py reads the file.)"));

  CLI::App* now =
      add("now", "makes a running job write a checkpoint, and prints its path", CheckpointNow);
  AddValue(now, "--run-dir", &flags->run_dir, "DIR", "the run directory of the job")->required();
  AddValue(now, "--timeout", &flags->timeout_s, "SECONDS", "how long to wait; default 600")
      ->transform(WholeNumber(1, 24 * 3600));
  now->footer("");
}

}  // namespace thermocline
