// CHECK: for bugs in our own code, on in release builds. Never for input, the network or the disk.
#ifndef THERMOCLINE_COMMON_BASE_CHECK_H_
#define THERMOCLINE_COMMON_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#include "absl/base/optimization.h"

namespace thermocline {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace thermocline

#define CHECK(condition)                               \
  (ABSL_PREDICT_TRUE(condition) ? static_cast<void>(0) \
                                : ::thermocline::CheckFailed(__FILE__, __LINE__, #condition))
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_NE(a, b) CHECK((a) != (b))
#define CHECK_LT(a, b) CHECK((a) < (b))
#define CHECK_LE(a, b) CHECK((a) <= (b))
#define CHECK_GT(a, b) CHECK((a) > (b))
#define CHECK_GE(a, b) CHECK((a) >= (b))

#endif  // THERMOCLINE_COMMON_BASE_CHECK_H_
