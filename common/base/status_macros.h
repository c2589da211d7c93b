// Early return on absl::Status and absl::StatusOr.
#ifndef THERMOCLINE_COMMON_BASE_STATUS_MACROS_H_
#define THERMOCLINE_COMMON_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)                            \
  do {                                                         \
    absl::Status status_macro_result = (expression);           \
    if (!status_macro_result.ok()) return status_macro_result; \
  } while (false)

#define STATUS_MACROS_CONCAT_INNER(a, b) a##b
#define STATUS_MACROS_CONCAT(a, b) STATUS_MACROS_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(lhs, expression) \
  ASSIGN_OR_RETURN_IMPL(STATUS_MACROS_CONCAT(status_or_, __LINE__), lhs, expression)
#define ASSIGN_OR_RETURN_IMPL(statusor, lhs, expression)   \
  auto statusor = (expression);                            \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = *std::move(statusor)

#endif  // THERMOCLINE_COMMON_BASE_STATUS_MACROS_H_
