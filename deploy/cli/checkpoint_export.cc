// thermocline checkpoint export.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "deploy/checkpoints/export_checkpoint.h"
#include "deploy/cli/checkpoint_command.h"
#include "deploy/cli/command.h"
#include "deploy/console/format.h"

namespace thermocline {
namespace {

int Export(const Flags& flags) {
  if (flags.positional().size() != 2) {
    return Complain(
        "checkpoint export takes CHECKPOINT and OUT.safetensors; see thermocline help checkpoint",
        kExitUsage);
  }
  const auto path = CheckpointArgument(flags.positional()[0]);
  if (!path.ok()) return Complain(path.status().message(), kExitUsage);
  const std::string& out = flags.positional()[1];
  PosixDisk disk;
  const CheckpointStore store(&disk, path->directory);
  absl::StatusOr<std::optional<CheckpointManifest>> manifest;
  if (path->name.empty()) {
    manifest = store.Newest();
  } else {
    manifest = store.Load(path->name);
  }
  if (!manifest.ok()) return Complain(manifest.status().message(), kExitFailed);
  if (!manifest->has_value()) {
    return Complain(absl::StrCat("no checkpoint in ", path->directory), kExitFailed);
  }
  ExportOptions options;
  options.optimizer_state = flags.Has("optimizer-state");
  const auto exported = ExportCheckpoint(&disk, path->directory, **manifest, out, options);
  const std::string name = CheckpointName({(*manifest)->generation(), Step((*manifest)->step())});
  if (!exported.ok()) {
    const bool removed = absl::IsNotFound(store.Load(name).status());
    return Complain(absl::StrCat(exported.status().message(),
                                 removed ? ": the job has removed this checkpoint meanwhile; try "
                                           "again, or keep more (checkpoint.keep)"
                                         : ""),
                    kExitFailed);
  }
  const Digest& digest = exported->verified.model_digest;
  std::fputs(
      absl::StrFormat("%s: %s, %d tensors, %s, model digest %016x%016x\n", out, name,
                      exported->tensors, FormatBytes(exported->bytes), digest.high, digest.low)
          .c_str(),
      stdout);
  return kExitDone;
}

}  // namespace

CheckpointAction CheckpointExportAction() {
  CheckpointAction action;
  action.name = "export";
  action.arguments = "PATH OUT.safetensors [--optimizer-state]";
  action.summary =
      "verifies a checkpoint (of several the newest) and writes it as safetensors, which\n"
      "      deploy/python/thermocline_torch.py reads";
  action.flags = {{"optimizer-state", "", "the optimizers' state, too"}};
  action.run = Export;
  return action;
}

}  // namespace thermocline
