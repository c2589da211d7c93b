#include "deploy/nodes/shared_folder.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/checkpoint/file_frame.h"

namespace thermocline {
namespace {

absl::Status WriteNew(Disk* disk, const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, disk->Create(path));
  RETURN_IF_ERROR(file->Append({text}));
  return file->Sync();
}

bool Holds(Disk* disk, const std::string& path, const std::string& text) {
  const absl::StatusOr<std::string> read = ReadWholeFile(disk, path);
  return read.ok() && *read == text;
}

// What is wrong with the folder; `path` is a file of this host's own. OK: nothing.
absl::Status TestNames(Disk* disk, const std::string& mark, const std::string& path) {
  const std::string renamed = path + ".renamed";
  RETURN_IF_ERROR(WriteNew(disk, path, path));
  const absl::Status linked = disk->Link(path, mark);
  if (linked.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("it could make ", mark, " again, which is there"));
  }
  if (!absl::IsAlreadyExists(linked)) return linked;
  // An answer may get lost: what is there counts.
  const absl::Status moved = disk->Rename(path, renamed);
  const bool is_there = Holds(disk, renamed, path);
  disk->Remove(renamed).IgnoreError();
  if (is_there) return absl::OkStatus();
  if (!moved.ok()) return moved;
  return absl::FailedPreconditionError(
      absl::StrCat("it renamed a file to ", renamed, ", and does not see it there"));
}

absl::Status PutMark(Disk* disk, const std::string& folder, const FolderMark& mark) {
  RETURN_IF_ERROR(CreateDirectories(disk, folder));
  const std::string path = absl::StrCat(folder, "/", mark.name);
  const std::string temporary = path + ".tmp";
  absl::Status put = WriteNew(disk, temporary, mark.text);
  if (put.ok()) put = disk->Link(temporary, path);
  if (Holds(disk, path, mark.text)) put = absl::OkStatus();  // Only the answer was lost.
  disk->Remove(temporary).IgnoreError();
  return put;
}

}  // namespace

absl::Status PutMarks(Disk* disk, const std::vector<std::string>& folders, const FolderMark& mark) {
  for (const std::string& folder : folders) {
    const absl::Status put = PutMark(disk, folder, mark);
    if (put.ok()) continue;
    for (const std::string& each : folders) RemoveMark(disk, each, mark);
    return put;
  }
  return absl::OkStatus();
}

void RemoveMark(Disk* disk, const std::string& folder, const FolderMark& mark) {
  const auto names = disk->List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name != mark.name && !absl::StartsWith(name, mark.name + ".")) continue;
    disk->Remove(absl::StrCat(folder, "/", name)).IgnoreError();
  }
}

absl::Status TestSharedFolder(Disk* disk, const FolderTester& tester, const std::string& what,
                              const std::string& folder, const FolderMark& mark) {
  const std::string path = absl::StrCat(folder, "/", mark.name);
  const absl::Status seen = LookUntilFound(tester.patience, [&] {
    return Holds(disk, path, mark.text) ? absl::OkStatus() : absl::NotFoundError(path);
  });
  if (!seen.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "host ", tester.host, " does not see the controller's ", what, " ", folder,
        ": it lies on a file system that all hosts share, at the same path on each (no ", mark.name,
        " there)"));
  }
  const std::string own = absl::StrCat(path, ".", tester.host, ".", absl::Hex(tester.nonce));
  const absl::Status names = TestNames(disk, path, own);
  disk->Remove(own).IgnoreError();
  if (names.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("host ", tester.host,
                                                    " can't use the controller's ", what, " ",
                                                    folder, ": ", names.message()));
}

absl::Status LookUntilFound(absl::Duration patience, absl::FunctionRef<absl::Status()> look) {
  const Stopwatch watch;
  while (true) {
    const bool is_last = watch.Elapsed() >= patience;
    absl::Status found = look();
    if (is_last || !absl::IsNotFound(found)) return found;
    absl::SleepFor(absl::Milliseconds(50));
  }
}

}  // namespace thermocline
