// What a job file, or a flag of one of its processes, may ask for. Above these limits a value is a
// typo, not a wish.
#ifndef THERMOCLINE_COMMON_PROCESS_LIMITS_H_
#define THERMOCLINE_COMMON_PROCESS_LIMITS_H_

namespace thermocline {

// One row of the largest dim with Adam's slots and its key still fits.
inline constexpr int kMinMessageBytes = 64 << 10;
inline constexpr int kMaxMessageBytes = 1 << 30;
inline constexpr int kMaxThreads = 1024;

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_PROCESS_LIMITS_H_
