// Whether all hosts of a job see a folder alike: HISTORY and checkpoints need links that only one
// of several gets, renames in one step, and files that one host writes and the others read.
#ifndef THERMOCLINE_DEPLOY_NODES_SHARED_FOLDER_H_
#define THERMOCLINE_DEPLOY_NODES_SHARED_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/disk/disk.h"

namespace thermocline {

// A file by which nodes recognize a folder of their controller.
struct FolderMark {
  std::string name;  // New for each controller: no host has cached that there is no such file.
  std::string text;
};

// Of the controller: makes the folders, where they are missing, and puts the mark into each by a
// link, as records of HISTORY come; into all or none. Errors: kFailedPrecondition (no links on this
// file system; names the folder), kResourceExhausted, kUnavailable
absl::Status PutMarks(Disk* disk, const std::vector<std::string>& folders, const FolderMark& mark);
// Also what nodes that were killed during their test have left beside it. What can't be removed
// does no harm.
void RemoveMark(Disk* disk, const std::string& folder, const FolderMark& mark);

// A node that tests a folder.
struct FolderTester {
  std::string host;  // For messages.
  uint64_t nonce;    // Its registration: nodes of one host name don't disturb each other.
  absl::Duration patience;
};

// Of a node: whether this host sees the mark (waits up to `patience`: what another host wrote may
// come late), finds its name taken when it tries to link a file of its own there, and can rename
// that file. Leaves nothing behind. `what`: of the folder, for messages: "run directory". Errors:
// kFailedPrecondition (names the host, the folder and what it lacks)
absl::Status TestSharedFolder(Disk* disk, const FolderTester& tester, const std::string& what,
                              const std::string& folder, const FolderMark& mark);

// What another host wrote may come late: calls `look` until it answers something else than
// kNotFound, for up to `patience`, and returns its last answer.
absl::Status LookUntilFound(absl::Duration patience, absl::FunctionRef<absl::Status()> look);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_SHARED_FOLDER_H_
