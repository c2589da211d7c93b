// A process between a program and its parent that ends all that the program has started.
//
// A parent can kill its child's process group, but not what has left that group: a daemon, or a
// process with a session of its own. The guard is the nearest reaper of all of them
// (PR_SET_CHILD_SUBREAPER): a descendant of the program whose parent ends becomes the guard's
// child. The guard outlives the program and its parent, and ends last.
#ifndef THERMOCLINE_COMMON_PROCESS_PROCESS_GUARD_H_
#define THERMOCLINE_COMMON_PROCESS_PROCESS_GUARD_H_

#include <sys/types.h>

#include "absl/time/time.h"

namespace thermocline {

// How long processes that were sent SIGKILL are waited for. Only one that hangs in the kernel (a
// dead network disk, a device) needs longer; it is left to the parent of its waiter.
inline constexpr absl::Duration kKilledPatience = absl::Seconds(10);

// Makes the calling process a guard, and starts a child of it. Returns in that child alone, which
// the kernel kills when the guard ends.
//
// The guard waits until the child has ended, or until the other end of a pipe is closed, which is
// how the guard learns that its own parent has ended. Then it kills the child's process group
// (whose number is the child's) and its own children, again and again until none is left or
// kKilledPatience is over. At last it ends as the child did: with its exit code, or by its signal.
// It does not wait for the child itself, whose number thus stays taken until the guard's own
// parent, if that is a reaper, or init has waited for it.
//
// The guard blocks all signals, keeps no file of the calling process open, and calls only what may
// be called between fork and exec in a process with threads.
//
//   end_fd: the reading end of the pipe; only the guard's parent has the writing end
// -1, and errno: there is no child, and the caller is no guard.
// REQUIRES: the caller has just been forked, and has one thread.
pid_t ForkUnderGuard(int end_fd);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_PROCESS_PROCESS_GUARD_H_
