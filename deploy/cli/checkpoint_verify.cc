// thermocline checkpoint verify.
#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/verify_checkpoint.h"
#include "common/disk/disk.h"
#include "deploy/checkpoints/resume.h"
#include "deploy/cli/checkpoint_command.h"
#include "deploy/cli/command.h"
#include "deploy/console/format.h"

namespace thermocline {
namespace {

absl::StatusOr<VerifiedCheckpoint> VerifyListed(Disk* disk, const std::string& directory,
                                                const ListedCheckpoint& listed) {
  RETURN_IF_ERROR(listed.status);
  const int processors = static_cast<int>(std::thread::hardware_concurrency());  // Or 0.
  return VerifyCheckpoint(disk, directory, listed.manifest, std::max(processors, 1));
}

std::string Describe(const VerifiedCheckpoint& verified) {
  uint64_t rows = 0;
  for (const auto& [table, count] : verified.rows) rows += count;
  return absl::StrFormat("%s rows of %d tables, %s in %d files, model digest %016x%016x",
                         FormatCount(rows), verified.rows.size(), FormatBytes(verified.bytes),
                         verified.files, verified.model_digest.high, verified.model_digest.low);
}

// Of a checkpoint's name without a manifest.
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

int Verify(const Flags& flags) {
  if (flags.positional().size() != 1) {
    return Complain("checkpoint verify takes one PATH; see thermocline help checkpoint",
                    kExitUsage);
  }
  const auto path = CheckpointArgument(flags.positional()[0]);
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
    if (!verified.ok() && absl::IsNotFound(store.Load(listed.name).status())) {
      std::printf("%s was removed meanwhile: the job keeps newer ones\n", listed.name.c_str());
      ++verified_checkpoints;
      continue;
    }
    all_whole &= verified.ok();
    ++verified_checkpoints;
    const std::string what =
        verified.ok() ? Describe(*verified) : std::string(verified.status().message());
    std::printf("%s is %s: %s\n", listed.name.c_str(), VerdictOn(verified.status()), what.c_str());
    std::fflush(stdout);
  }
  if (verified_checkpoints == 0) {
    return Complain(path->name.empty() ? absl::StrCat("no checkpoint in ", path->directory)
                                       : DescribeFolder(*list, path->name),
                    kExitFailed);
  }
  if (!path->name.empty()) return all_whole ? kExitDone : kExitFailed;
  // A checkpoint that is damaged has been named already.
  const absl::Status resumable = all_whole ? CheckResumable(store) : store.ReadJobState().status();
  if (!resumable.ok()) {
    std::printf("--resume would stop: %s\n", std::string(resumable.message()).c_str());
  }
  return all_whole && resumable.ok() ? kExitDone : kExitFailed;
}

}  // namespace

CheckpointAction CheckpointVerifyAction() {
  CheckpointAction action;
  action.name = "verify";
  action.arguments = "PATH";
  action.summary =
      "reads every byte: names the file that is damaged, or prints the model digest; of a\n"
      "      directory also whether --resume could go on";
  action.run = Verify;
  return action;
}

}  // namespace thermocline
