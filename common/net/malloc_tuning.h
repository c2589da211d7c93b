// glibc's allocator, set for processes that send and receive messages of about a megabyte.
#ifndef THERMOCLINE_COMMON_NET_MALLOC_TUNING_H_
#define THERMOCLINE_COMMON_NET_MALLOC_TUNING_H_

namespace thermocline {

// By default glibc maps every block from 128 KiB on afresh and gives it back on free: a page fault
// for each 4 KiB of each message. From here on such blocks come from the heap and stay there. Call
// it first in main(), before threads start.
void TuneMallocForMessages();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_MALLOC_TUNING_H_
