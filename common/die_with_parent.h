// Ends this process when the one that started it ends.
#ifndef THERMOCLINE_COMMON_DIE_WITH_PARENT_H_
#define THERMOCLINE_COMMON_DIE_WITH_PARENT_H_

namespace thermocline {

// Asks the kernel to kill this process with its parent; ends it at once where the parent has ended
// already. Call it first in main().
void DieWithParent();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DIE_WITH_PARENT_H_
