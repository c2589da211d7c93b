// The gradients of a step whose rows are updated on this worker's device, in its memory. A server
// checks the gradients that it gets; a worker that updates rows in a server's place does the same.
#ifndef THERMOCLINE_WORKER_ROWS_ROW_GRADIENTS_H_
#define THERMOCLINE_WORKER_ROWS_ROW_GRADIENTS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "kernels/device.h"
#include "worker/rows/step_context.h"

namespace thermocline {

// One step after the other uses the same memory, in the order of the device's operations. Not
// thread-safe.
class RowGradients {
 public:
  // `device` outlives it. tables: the plan's
  RowGradients(const std::vector<TableLayout>& tables, Device* device);

  // Gives every one of context->tables its gradients, of all tables one after the other. Where the
  // memory grows, waits for the device. Errors: the device's.
  absl::Status Place(StepContext* context);
  // Queues the search for the first one that is not finite, after what makes them. Those that the
  // model did not make become zeros for it.
  void FindBad(StepContext* context);
  // Once the device has finished the step. Errors: kInvalidArgument (a gradient is not finite:
  // names step, table and key).
  absl::Status Check(const StepContext& context) const;

 private:
  const std::vector<TableLayout> tables_;
  Device* const device_;
  std::unique_ptr<DeviceBuffer> gradients_;
  size_t size_ = 0;                             // floats
  std::unique_ptr<DeviceBuffer> bad_gradient_;  // [1] int64: the first one that is not finite
};

// Checks summed gradients of a table, one key after the other. Errors: kInvalidArgument (one is not
// finite: names step, what it is, table and key)
//   what: such as "the gradient"; key_of: the key of gradient i
absl::Status CheckFinite(Step step, const TableLayout& table, absl::Span<const float> values,
                         absl::string_view what, const std::function<Key(size_t)>& key_of);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_ROW_GRADIENTS_H_
