// What the exit codes of our programs mean.
#ifndef THERMOCLINE_COMMON_BASE_EXIT_CODES_H_
#define THERMOCLINE_COMMON_BASE_EXIT_CODES_H_

namespace thermocline {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;  // Bad flags or a bad job file: nothing was done.
// Of a worker: it has lost a server, or what a server had acknowledged to it. The job itself is not
// at fault.
inline constexpr int kExitServerLost = 3;

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_EXIT_CODES_H_
