// thermocline checkpoint list.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "deploy/cli/checkpoint_command.h"
#include "deploy/cli/command.h"
#include "deploy/console/format.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// Sums over the files of a checkpoint.
struct Contents {
  uint64_t files = 0, bytes = 0;
  // Of those that it wrote itself; the others are of checkpoints it builds on.
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

// The one that the newest whole checkpoint knows as the best; "": none is.
std::string BestOf(const std::vector<ListedCheckpoint>& list) {
  for (auto listed = list.rbegin(); listed != list.rend(); ++listed) {
    if (listed->status.ok()) return listed->manifest.evaluations().best_checkpoint();
  }
  return "";
}

bool HasManifest(const ListedCheckpoint& listed) { return listed.manifest.shards_size() > 0; }

std::string RenderJson(const std::string& directory, const std::vector<ListedCheckpoint>& list,
                       const std::string& best) {
  Json checkpoints = Json::array();
  for (const ListedCheckpoint& listed : list) {
    Json json = {{"name", listed.name},
                 {"generation", listed.id.generation},
                 {"step", listed.id.step.value()},
                 {"status", VerdictOn(listed.status)},
                 {"best", listed.name == best}};
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
                        const std::string& best) {
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
                  absl::StrCat(contents.kind, listed.name == best ? ", the best" : "")});
    }
    rows.push_back(std::move(row));
    if (!listed.status.ok()) {
      absl::StrAppend(&not_whole, listed.name, " is ", VerdictOn(listed.status), ": ",
                      listed.status.message(), "\n");
    }
  }
  return absl::StrCat(FormatTable(rows), not_whole,
                      "contents are not read, only manifests and the sizes of files; to read every "
                      "byte: thermocline checkpoint verify ",
                      directory, "\n");
}

int List(const Flags& flags) {
  if (flags.positional().size() != 1) {
    return Complain("checkpoint list takes one PATH; see thermocline help checkpoint", kExitUsage);
  }
  const auto path = CheckpointArgument(flags.positional()[0]);
  if (!path.ok()) return Complain(path.status().message(), kExitUsage);
  PosixDisk disk;
  auto list = CheckpointStore(&disk, path->directory).List();
  if (!list.ok()) return Complain(list.status().message(), kExitFailed);
  const std::string best = BestOf(*list);
  if (!path->name.empty()) {
    list->erase(std::remove_if(list->begin(), list->end(),
                               [&](const auto& listed) { return listed.name != path->name; }),
                list->end());
  }
  const std::string text = flags.Has("json") ? RenderJson(path->directory, *list, best)
                                             : RenderTable(path->directory, *list, best);
  std::fputs(text.c_str(), stdout);
  for (const ListedCheckpoint& listed : *list) {
    if (!listed.status.ok()) return kExitFailed;
  }
  return kExitDone;
}

}  // namespace

CheckpointAction CheckpointListAction() {
  CheckpointAction action;
  action.name = "list";
  action.arguments = "PATH [--json]";
  action.summary =
      "the checkpoints, oldest first: step, size, and whether all files are there with their\n"
      "      sizes; what is in them is not read";
  action.flags = {{"json", "", "prints JSON"}};
  action.run = List;
  return action;
}

}  // namespace thermocline
