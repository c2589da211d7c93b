#include "common/die_with_parent.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>

namespace thermocline {

void DieWithParent() {
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // An orphan gets a new parent; one that was an orphan on arrival has init's.
  if (getppid() != parent || parent == 1) _Exit(EXIT_FAILURE);
}

}  // namespace thermocline
