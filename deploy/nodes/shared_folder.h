// Tests that all hosts of a job see a folder alike. HISTORY and checkpoints need links that only
// one of several hosts gets, renames in one step, and files that one host writes and the others
// read.
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
  std::string
      name;  // New for each controller, so that no host has cached that there is no such file.
  std::string text;
};

// The controller makes the folders that are missing, and puts the mark into each by a link, as
// records of HISTORY are made; into all or none. Errors: kFailedPrecondition (this file system has
// no links; names the folder), kResourceExhausted, kUnavailable
absl::Status PutMarks(Disk* disk, const std::vector<std::string>& folders, const FolderMark& mark);
// Removes the mark, and files that nodes have left beside it if they were killed during their test.
// Files that can't be removed do no harm.
void RemoveMark(Disk* disk, const std::string& folder, const FolderMark& mark);

// A node that tests a folder.
struct FolderTester {
  std::string host;  // For messages.
  uint64_t nonce;    // The nonce of its registration, since nodes may have the same host name.
  absl::Duration patience;
};

// A node tests that this host sees the mark (it waits for it up to `patience`, since other hosts'
// files may come late), that the name is taken when it tries to link a file of its own there, and
// that it can rename that file. It leaves no file.
//   what: what the folder is, for messages: "run directory"
// Errors: kFailedPrecondition (names the host, the folder and what it lacks)
absl::Status TestSharedFolder(Disk* disk, const FolderTester& tester, const std::string& what,
                              const std::string& folder, const FolderMark& mark);

// Calls `look` until it returns something else than kNotFound, for up to `patience`, and returns
// its last answer. It is for files of other hosts, which may come late.
absl::Status LookUntilFound(absl::Duration patience, absl::FunctionRef<absl::Status()> look);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_SHARED_FOLDER_H_
